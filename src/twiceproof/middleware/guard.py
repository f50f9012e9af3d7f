"""The idempotency guard, independent of ASGI and WSGI: takes claims, replays and records responses."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from http import HTTPStatus
from typing import Any, Generic, Protocol, TypeVar

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
from .responses import (
    AnswerCutShort,
    ClaimAction,
    RecordedAnswer,
    Recording,
    as_page,
    handler_not_reached,
    make_answer,
    of_error,
    of_status,
    restore,
)
from .routes import Caller, HeldRequest, KeyedRequest, Route, RouteRule, Rules, marker_headers

__all__ = ["IdempotencyGuard", "IdempotencyMiddleware", "RequestLedger", "record", "record_error"]


Inner = TypeVar("Inner")  # the wrapped app
Carrier = TypeVar("Carrier")  # an ASGI scope or a WSGI environ

UNKNOWN = "it is not known whether its work was done"


def record(held_request: HeldRequest, action: ClaimAction, recording: Recording) -> Operation[Written | LostHold]:
    if action == "keep":
        return _keep(held_request, recording.answer())
    phrase = f"answered {recording.status} {_phrase(recording.status)}".rstrip()
    return _end(held_request, action, Fault(f"HTTP {recording.status}", phrase, retryable=action == "retry"))


def record_error(held_request: HeldRequest, action: ClaimAction, error: BaseException) -> Operation[Written | LostHold]:
    if action == "keep":
        return _keep(held_request, _as_answer(problems.broken_off()))
    return _end(held_request, action, fault_of(error, retryable=action == "retry"))


def _keep(held_request: HeldRequest, answer: RecordedAnswer) -> Operation[Written | LostHold]:
    scope = held_request.scope
    packed = pack(answer, scope.hold.held, most=scope.result_limit)
    return scope.complete(packed, held_request.request.rule.life)


def _end(held_request: HeldRequest, action: ClaimAction, fault: Fault) -> Operation[Written | LostHold]:
    if action == "release":
        return held_request.scope.release()
    if action == "retry":
        return held_request.scope.fail(fault, held_request.request.rule.life)
    return held_request.scope.park(fault, f"{fault.message or fault.type}: {UNKNOWN}")


def _as_answer(reply: Reply) -> RecordedAnswer:
    return make_answer(reply.status, reply.headers, reply.body)


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""


log = logging.getLogger("twiceproof.middleware")

FIRST_PAUSE = 0.02
NO_BODY = frozenset({204, 304})  # statuses without a content-length


class RequestLedger(Protocol):
    """The part of an `App` that the middleware needs."""

    @property
    def runtime(self) -> Runtime: ...


def _runtime_of(ledger: RequestLedger) -> Runtime:
    """Reject a web app passed by mistake, because those are called `app` too."""
    runtime = getattr(ledger, "runtime", None)
    if not isinstance(runtime, Runtime):
        kind = type(ledger).__name__
        raise Misuse(f'app= must be a twiceproof.App, but this is a {kind}; pass app=App("sqlite:///shop.db").')
    return runtime


class IdempotencyGuard:
    """Guards the routes of one middleware. It keeps no state between requests: everything is in the store."""

    def __init__(
        self,
        ledger: RequestLedger,
        *,
        routes: Iterable[Route | str] | None = None,
        anonymous: str | None = None,
        secret: str | bytes = b"",
    ) -> None:
        self._runtime = _runtime_of(ledger)
        self._claims = self._runtime.claims
        self._rules = Rules(routes)
        self._identity = Identity(secret)
        self.reader = Reader(anonymous=anonymous, secret=secret, now=self._runtime.clock.now)
        self._refuse_best_effort()

    def _refuse_best_effort(self) -> None:
        blind = [rule.path for rule in self._rules.all if not rule.reruns]
        if self._runtime.store.best_effort and not self._runtime.best_effort and blind:
            raise unsafe_store(f"{blind[0]} may never be repeated blindly", declare='Route(…, repeat="safe")')

    # -- before the app --------------------------------------------------------------------------

    def find_rule(self, method: str, path: str, root: str) -> tuple[RouteRule | None, str]:
        """Return the rule of a request and the path that matched: the whole path, or the part below the mount point.

        Both are tried because the mount point may be set on the server's command line, and routes that matched before
        must stay guarded.
        """
        rule, above = self._rules.find(method, path), root.rstrip("/")
        if rule is None and above and path.startswith(above + "/"):
            path = path[len(above) :]
            rule = self._rules.find(method, path)
        return rule, path

    def enter(self, request: KeyedRequest, body: bytes) -> Operation[HeldRequest | Reply | None]:
        """Return a held request to run the app, a reply to send instead, or None for a form that may run unguarded."""
        if not request.key:
            read = self.reader.read_form(request, body)
            if not isinstance(read, KeyedRequest):
                return read if read is None else self._marked(request, read)
            request = read
        try:
            claim_request = self._ask(request, body)
            scope = ClaimScope(self._claims, self._runtime.heartbeat, claim_request)
            outcome = yield from scope.enter()
            if isinstance(outcome, Busy) and request.rule.busy == "wait":
                outcome = yield from scope.wait(outcome, seconds=request.rule.wait, first_pause=FIRST_PAUSE)
            if isinstance(outcome, Held):
                yield from scope.begin(inside=False)
                return HeldRequest(request, scope)
            if isinstance(outcome, LostHold):
                return self._marked(request, problems.claim_lost(outcome))
            if not isinstance(outcome, Mismatch):
                self._claims.duplicates.blocked(
                    claim_request.operation, claim_request.key, "idempotency-key", tenant=claim_request.tenant
                )
            if isinstance(outcome, Done):
                return (yield from self._replay(request, outcome))
            return self._marked(request, _refusal(request, claim_request, outcome))
        except StoreError as error:
            log.error(
                "%s %s was refused, because its claim could not be taken: %s", request.method, request.path, error
            )
            return self._marked(request, problems.store_down(error))

    def _ask(self, request: KeyedRequest, body: bytes) -> ClaimRequest:
        rule, tenant = request.rule, self._runtime.tenant
        operation, key = rule.operation(request.method), self._identity.key(request)
        at = address_of(tenant, operation, key)
        return ClaimRequest(
            at=at,
            operation=operation,
            key=key,
            owner=self._runtime.owner(),
            lease=rule.lease,
            tenant=tenant,
            fingerprint=self._identity.fingerprint(request, body),
            run=run_id(at.space),
            repeat="safe" if rule.reruns else "never",
        )

    def _replay(self, request: KeyedRequest, done: Done) -> Operation[Reply]:
        text: str | Raw = done.result
        if done.spill is not None:
            text = yield from unpack(self._claims.store, done.at, done.result, done.spill)
        answer = restore(text) if text else None
        if answer is None or answer.left_out is not None:
            return self._marked(request, problems.answer_not_kept(done, answer))
        return _reply_of(request, answer)

    def _marked(self, request: KeyedRequest, reply: Reply) -> Reply:
        shown = as_page(reply) if request.page else reply
        return Reply(shown.status, (*shown.headers, *marker_headers(request, replayed=False)), shown.body)

    # -- after the app ---------------------------------------------------------------------------

    def record_answer(
        self, held_request: HeldRequest, recording: Recording, carrier: MutableMapping[str, Any]
    ) -> Operation[Reply | None]:
        """Record the app's response. Return None to send it, or the reply to send instead."""
        if held_request.scope.hold.lost is INHERITED:  # in a forked child
            self.abandon(held_request)
            return None
        if recording.is_cut_short:
            yield from self.record_failure(held_request, AnswerCutShort("the response was never finished"))
            return None
        action = of_status(recording.status, held_request.request.rule)
        if not held_request.begun or handler_not_reached(carrier, recording):
            action = "release"
        self._end(held_request)
        try:
            written = yield from record(held_request, action, recording)
        except StoreError as error:
            # The response is correct, so it is sent. A retry will find an expired lease and go to review.
            log.error(
                "%s was answered, but it is not known whether that was recorded: %s",
                held_request.scope.request.at.space,
                error,
            )
            return None
        return (
            self._marked(held_request.request, problems.claim_lost(written)) if isinstance(written, LostHold) else None
        )

    def record_failure(self, held_request: HeldRequest, error: BaseException) -> Operation[None]:
        """Record that the app raised an error instead of responding. The error itself propagates."""
        if held_request.scope.hold.lost is INHERITED:  # in a forked child
            self.abandon(held_request)
            return
        action = of_error(error, held_request.request.rule) if held_request.begun else "release"
        self._end(held_request)
        try:
            yield from record_error(held_request, action, error)
        except StoreError as worse:
            error.add_note(f"twiceproof could not record this failure: {worse}")

    def _end(self, held_request: HeldRequest) -> None:
        held_request.recorded = True
        held_request.scope.end()

    def abandon(self, held_request: HeldRequest) -> None:
        """Record nothing: the lease has to expire by itself."""
        self._end(held_request)


class IdempotencyMiddleware(Generic[Inner, Carrier]):
    """What the ASGI and the WSGI middleware share: the wrapped app, the guard, and the caller's identity."""

    def __init__(
        self,
        inner: Inner,
        /,
        *,
        app: RequestLedger,
        routes: Iterable[Route | str] | None = None,
        principal: Callable[[Carrier], Caller] | None = None,
        anonymous: str | None = None,
        secret: str | bytes = b"",
    ) -> None:
        self._inner = inner
        self._guard = IdempotencyGuard(app, routes=routes, anonymous=anonymous, secret=secret)
        self._principal = principal

    def _caller(self, carrier: Carrier, headers: Mapping[str, str]) -> Caller:
        return headers.get("authorization") if self._principal is None else self._principal(carrier)


def _refusal(request: KeyedRequest, claim_request: ClaimRequest, outcome: TakeOutcome) -> Reply:
    if isinstance(outcome, Busy):
        return problems.busy(request, outcome)
    if isinstance(outcome, Mismatch):
        return problems.mismatch(request, outcome)
    if isinstance(outcome, Failed):
        return problems.abandoned(outcome)
    reason = outcome if isinstance(outcome, InReview) else InReview("", claim_request.run, 0.0)
    return problems.in_review(claim_request, reason)


def _reply_of(request: KeyedRequest, answer: RecordedAnswer) -> Reply:
    body = answer.body
    length = () if answer.status in NO_BODY else (("content-length", str(len(body))),)
    return Reply(answer.status, (*answer.headers, *length, *marker_headers(request, replayed=True)), body)
