"""Transport-free: take, replay, record."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from http import HTTPStatus
from typing import Any, Protocol

from msgspec import Raw

from ..claims.claim import (
    Busy,
    Done,
    Failed,
    Fault,
    Held,
    InReview,
    LostHold,
    Mismatch,
    TakeOutcome,
    address_of,
    run_id,
)
from ..claims.error_classification import fault_of
from ..claims.error_messages import unsafe_store
from ..claims.held_claim import INHERITED, ClaimScope
from ..claims.results import pack, unpack
from ..claims.states import ClaimRequest
from ..errors import Misuse, StoreError
from ..flows.runtime import Runtime
from ..inbound.reply import Reply
from ..operations import Operation
from ..records import Written
from . import problems
from .request import Identity, Reader
from .responses import AnswerCutShort, RecordedAnswer, Recording, as_page, make_answer, restore
from .routes import HeldRequest, KeyedRequest, Route, RouteRule, Rules, Who, marks
from .status_policy import ClaimAction, handler_not_reached, of_error, of_status

__all__ = ["IdempotencyGuard", "RequestLedger", "record", "record_error"]


UNKNOWN = "whether its work was done is unknown"


def record(turn: HeldRequest, word: ClaimAction, recording: Recording) -> Operation[Written | LostHold]:
    if word == "keep":
        return _keep(turn, recording.answer())
    phrase = f"answered {recording.status} {_phrase(recording.status)}".rstrip()
    return _end(turn, word, Fault(f"HTTP {recording.status}", phrase, retryable=word == "retry"))


def record_error(turn: HeldRequest, word: ClaimAction, error: BaseException) -> Operation[Written | LostHold]:
    if word == "keep":
        return _keep(turn, _as_answer(problems.broken_off()))
    return _end(turn, word, fault_of(error, retryable=word == "retry"))


def _keep(turn: HeldRequest, answer: RecordedAnswer) -> Operation[Written | LostHold]:
    return turn.scope.complete(pack(answer, turn.scope.hold.held), turn.visit.rule.life)


def _end(turn: HeldRequest, word: ClaimAction, fault: Fault) -> Operation[Written | LostHold]:
    if word == "release":
        return turn.scope.release()
    if word == "retry":
        return turn.scope.fail(fault, turn.visit.rule.life)
    return turn.scope.park(fault, f"{fault.message or fault.type}: {UNKNOWN}")


def _as_answer(reply: Reply) -> RecordedAnswer:
    return make_answer(reply.status, reply.headers, reply.body)


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""


log = logging.getLogger("twiceproof.middleware")

FIRST_PAUSE = 0.02
NO_BODY = frozenset({204, 304})  # statuses that say no length


class RequestLedger(Protocol):
    """What is needed of an `App`."""

    @property
    def parts(self) -> Runtime: ...


def _parts_of(ledger: RequestLedger) -> Runtime:
    """Web apps are called `app` as well, and are what is passed by mistake."""
    parts = getattr(ledger, "parts", None)
    if not isinstance(parts, Runtime):
        kind = type(ledger).__name__
        raise Misuse(f'app= is the ledger, a twiceproof.App, and this is a {kind}; pass app=App("sqlite:///shop.db").')
    return parts


class IdempotencyGuard:
    """One middleware's door. Holds no state between requests: everything rests in the store."""

    def __init__(
        self,
        ledger: RequestLedger,
        *,
        routes: Iterable[Route | str] | None = None,
        anonymous: str | None = None,
        secret: str | bytes = b"",
    ) -> None:
        self._parts = _parts_of(ledger)
        self._claims = self._parts.claims
        self._rules = Rules(routes)
        self._identity = Identity(secret)
        self._reader = Reader(anonymous=anonymous, secret=secret, now=self._parts.clock.now)
        self._refuse_best_effort()

    def _refuse_best_effort(self) -> None:
        blind = [rule.path for rule in self._rules.all if not rule.reruns]
        if self._parts.store.best_effort and not self._parts.best_effort and blind:
            raise unsafe_store(f"{blind[0]} may never be repeated blindly", declare='Route(…, repeat="safe")')

    # -- before the app --------------------------------------------------------------------------

    def place(self, method: str, path: str, root: str) -> tuple[RouteRule | None, str]:
        """The rule of a request, and the path that it fits: the whole one, or what is below where the app is mounted.

        Where that is may be said on the server's command line: routes that fitted yesterday must not be left alone.
        """
        rule, above = self._rules.find(method, path), root.rstrip("/")
        if rule is None and above and path.startswith(above + "/"):
            path = path[len(above) :]
            rule = self._rules.find(method, path)
        return rule, path

    def read(
        self, rule: RouteRule, method: str, path: str, query: str, headers: Mapping[str, str], who: Callable[[], Who]
    ) -> KeyedRequest | Reply | None:
        """Whether it comes in at all. None: without a key, and it may."""
        return self._reader.read(rule, method, path, query, headers, who)

    def enter(self, visit: KeyedRequest, body: bytes) -> Operation[HeldRequest | Reply | None]:
        """A turn: run the app. A reply: send it instead. None: a form without a token, which may run unguarded."""
        if not visit.key:
            read = self._reader.read_form(visit, body)
            if not isinstance(read, KeyedRequest):
                return read if read is None else self._dressed(visit, read)
            visit = read
        try:
            ask = self._ask(visit, body)
            scope = ClaimScope(self._claims, self._parts.heartbeat, ask)
            outcome = yield from scope.enter()
            if isinstance(outcome, Busy) and visit.rule.busy == "wait":
                outcome = yield from scope.wait(outcome, seconds=visit.rule.wait, first_pause=FIRST_PAUSE)
            if isinstance(outcome, Held):
                yield from scope.begin(inside=False)
                return HeldRequest(visit, scope)
            if isinstance(outcome, LostHold):
                return self._dressed(visit, problems.claim_lost(outcome))
            if not isinstance(outcome, Mismatch):
                self._claims.duplicates.blocked(ask.operation, ask.key, "idempotency-key", tenant=ask.tenant)
            if isinstance(outcome, Done):
                return (yield from self._replay(visit, outcome))
            return self._dressed(visit, _refusal(visit, ask, outcome))
        except StoreError as error:
            log.error("%s %s was refused, its claim cannot be had: %s", visit.method, visit.path, error)
            return self._dressed(visit, problems.store_down(error))

    def _ask(self, visit: KeyedRequest, body: bytes) -> ClaimRequest:
        rule, tenant = visit.rule, self._parts.tenant
        operation, key = rule.operation(visit.method), self._identity.key(visit)
        at = address_of(tenant, operation, key)
        return ClaimRequest(
            at=at,
            operation=operation,
            key=key,
            owner=self._parts.owner(),
            lease=rule.lease,
            tenant=tenant,
            fingerprint=self._identity.fingerprint(visit, body),
            run=run_id(at.space),
            repeat="safe" if rule.reruns else "never",
        )

    def _replay(self, visit: KeyedRequest, done: Done) -> Operation[Reply]:
        text: str | Raw = done.result
        if done.spill is not None:
            text = yield from unpack(self._claims.store, done.at, done.result, done.spill)
        answer = restore(text) if text else None
        if answer is None or answer.left_out is not None:
            return self._dressed(visit, problems.answer_not_kept(done, answer))
        return _reply_of(visit, answer)

    def _dressed(self, visit: KeyedRequest, reply: Reply) -> Reply:
        shown = as_page(reply) if visit.page else reply
        return Reply(shown.status, (*shown.headers, *marks(visit, replayed=False)), shown.body)

    # -- after the app ---------------------------------------------------------------------------

    def leave(
        self, turn: HeldRequest, recording: Recording, carrier: MutableMapping[str, Any]
    ) -> Operation[Reply | None]:
        """The app has answered: say the last word about the claim. None: pass the answer on."""
        if turn.scope.hold.lost is INHERITED:  # in a forked child
            self.abandon(turn)
            return None
        if recording.short:
            yield from self.give_up(turn, AnswerCutShort("the answer was never finished"))
            return None
        word = of_status(recording.status, turn.visit.rule)
        if not turn.begun or handler_not_reached(carrier, recording):
            word = "release"
        self._end(turn)
        try:
            written = yield from record(turn, word, recording)
        except StoreError as error:
            # The answer is true all the same. Who asks again meets a lapsed claim, and a person.
            log.error("%s was answered, but its record is in doubt: %s", turn.scope.request.at.space, error)
            return None
        return self._dressed(turn.visit, problems.claim_lost(written)) if isinstance(written, LostHold) else None

    def give_up(self, turn: HeldRequest, error: BaseException) -> Operation[None]:
        """The app has ended with an error instead of an answer. The error goes on by itself."""
        if turn.scope.hold.lost is INHERITED:  # in a forked child
            self.abandon(turn)
            return
        word = of_error(error, turn.visit.rule) if turn.begun else "release"
        self._end(turn)
        try:
            yield from record_error(turn, word, error)
        except StoreError as worse:
            error.add_note(f"twiceproof could not record this failure: {worse}")

    def _end(self, turn: HeldRequest) -> None:
        turn.left = True
        turn.scope.end()

    def abandon(self, turn: HeldRequest) -> None:
        """Nothing more can be said, the lease must lapse by itself."""
        self._end(turn)


def _refusal(visit: KeyedRequest, ask: ClaimRequest, outcome: TakeOutcome) -> Reply:
    if isinstance(outcome, Busy):
        return problems.busy(visit, outcome)
    if isinstance(outcome, Mismatch):
        return problems.mismatch(visit, outcome)
    if isinstance(outcome, Failed):
        return problems.abandoned(outcome)
    reason = outcome if isinstance(outcome, InReview) else InReview("", ask.run, 0.0)
    return problems.in_review(ask, reason)


def _reply_of(visit: KeyedRequest, answer: RecordedAnswer) -> Reply:
    body = answer.body
    length = () if answer.status in NO_BODY else (("content-length", str(len(body))),)
    return Reply(answer.status, (*answer.headers, *length, *marks(visit, replayed=True)), body)
