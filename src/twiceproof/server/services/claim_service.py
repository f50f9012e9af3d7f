"""The claim service: take, complete, fail and renew claims over HTTP.

The token proves that a claim is, or was, the caller's. The store keeps the hash of its secret as the claim's owner, so
reading the store, even with its signing key, yields no token.

Reserved operations cannot be claimed over HTTP: the server stores under them what it later relies on. A caller that
could claim `start.pay` could decide which run another request has started.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Container
from hashlib import sha256

from msgspec import Raw, Struct, UnsetType, structs

from ...claims.claim import (
    DONE,
    FAILED,
    HELD,
    REVIEW,
    RUN,
    Busy,
    Claim,
    Done,
    Failed,
    Fault,
    Held,
    InReview,
    LostHold,
    Mismatch,
    Parked,
    address_of,
    body_of,
    claim_of,
    run_id,
    validate_name,
)
from ...claims.manager import ClaimManager
from ...claims.policy import DEFAULT_KEEP
from ...claims.results import pack, unpack
from ...claims.retention import HTTP_OWNER
from ...claims.states import AnswerOnly, BeginClaim, ClaimRequest, Lifetime, Move, claim_for, decide, is_lapsed
from ...errors import Misuse
from ...inbound.reply import Reply, json_reply
from ...inbound.source import report
from ...keys import body_hash, validate_key
from ...keys.duration import lifetime, seconds
from ...operations import Operation
from ...records import Address, Record, Replace, Written
from ...stores.base import Store
from ..openapi import UUID_OR_NONE
from ..tokens import signer
from .claim_messages import (
    ClaimEnded,
    CompleteBody,
    FailBody,
    Keep,
    PriorClaim,
    RenewBody,
    Renewed,
    TakeBody,
    claimed,
    given,
    look_at_claim,
    lost,
    refused,
    unsafe,
    wrong_token,
)

__all__ = [
    "ClaimService",
    "ClaimToken",
    "decide_claim",
    "decide_request",
    "new_secret",
    "owner_of",
    "read_token",
    "refuse_reserved",
    "secret_of_request",
    "write_token",
]


def decide_claim(request: ClaimRequest, record: Record | None, now: float) -> Move:
    """Decide as usual, but refuse runs, and let a claim with repeat "safe" take one that is in review."""
    if record is not None and record.at.kind == RUN:
        raise Misuse(
            f"{request.operation} is a flow, and this key has a run; start it with: POST /v1/runs/{request.operation}"
        )
    move = decide(request, record, now)
    if (
        record is None
        or request.repeat != "safe"
        or not isinstance(move, AnswerOnly)
        or not isinstance(move.outcome, InReview)
    ):
        return move
    attempt = claim_of(record).attempt + 1
    body = body_of(claim_for(request, attempt))
    return BeginClaim(Replace(request.at, body, HELD, version=record.version, draw=True, lease=request.lease), attempt)


def decide_request(request: ClaimRequest, record: Record | None, now: float) -> Move:
    """Decide a request with an id: if its reply was lost and it is repeated, it keeps its claim and fence."""
    if record is not None and record.state == HELD and not is_lapsed(record, now):
        claim = claim_of(record)
        if claim.owner == request.owner and claim.fingerprint == request.fingerprint:
            left = (record.lease_until or now) - now
            return AnswerOnly(
                Held(request.at, record.fence, request.owner, claim.attempt, claim.run, left, 0.0, "", now)
            )
    return decide_claim(request, record, now)


RESERVED = re.compile(
    r"(?:hook|start|POST|PATCH|PUT|DELETE)\..*|http|@.*|.*@(?:slots|order|letters|schedule|poll)", re.ASCII
)


def refuse_reserved(operation: str, flows: Container[str]) -> None:
    if operation in flows:
        raise Misuse(f"{operation} is a flow; start it with: POST /v1/runs/{operation}")
    if RESERVED.fullmatch(operation):
        raise Misuse(f"{operation} is reserved for the server; choose another name.")


RANDOM_UUID = re.compile(UUID_OR_NONE["pattern"])
TOKEN = re.compile(r"ct_([0-9a-f]{1,32})\.([0-9a-f]{1,8})\.([0-9a-f]{32})\.([0-9a-f]{32})", re.ASCII)


class ClaimToken(Struct, frozen=True):
    """Identifies one take of a claim: the fence is unique, and the owner survives the claim's end."""

    fence: int
    attempt: int
    owner: str


def new_secret() -> str:
    """A new secret per call: two calls are two owners."""
    return secrets.token_hex(16)


def secret_of_request(at: Address, caller: str, request: str) -> str:
    """Derive the secret from the request id, so that a retry after a lost reply has the same one.

    Only the id distinguishes a retry from a second caller with the same server token and payload. So an id that another
    caller could arrive at (a counter, a run's number) is refused: both would hold the claim.
    """
    if RANDOM_UUID.fullmatch(request) is None:
        raise Misuse(
            f"request_id {request[:60]!r} is not a random UUID, and another caller could send the same; generate one "
            "for each request (version 4 or 7), and send it again with each retry. Files made by an earlier "
            "`twiceproof connector` must be made and imported again."
        )
    return sha256(f"{len(at.space)}:{at.space}{len(caller)}:{caller}{request.lower()}".encode()).hexdigest()[:32]


def owner_of(secret: str) -> str:
    return HTTP_OWNER + sha256(f"owner:{secret}".encode()).hexdigest()[:16]


def write_token(store: Store, at: Address, fence: int, attempt: int, secret: str) -> Operation[str]:
    stem = f"{fence:x}.{attempt:x}.{secret}"
    return f"ct_{stem}.{(yield from signer(store)).sign('claim', at.space, stem)}"


def read_token(store: Store, at: Address, text: str) -> Operation[ClaimToken | None]:
    """Return None if the token was not issued for this claim. The holder is identified by the owner."""
    found = TOKEN.fullmatch(text)
    if found is None:
        return None
    fence, attempt, secret, signature = found.groups()
    if not (yield from signer(store)).signed(signature, "claim", at.space, f"{fence}.{attempt}.{secret}"):
        return None
    return ClaimToken(int(fence, 16), int(attempt, 16), owner_of(secret))


REPORTED = "Reported"  # the type of a fault reported by a caller
LONGEST_ERROR = 500
DEFAULT_LIFE = Lifetime(keep=lifetime(DEFAULT_KEEP, name="keep"))
# The names of outcomes in logs and metrics, as for webhooks.
OUTCOME_NAMES = {
    Held: "new",
    Done: "duplicate",
    Busy: "busy",
    Parked: "busy",
    Failed: "failed",
    InReview: "review",
    Mismatch: "mismatch",
}


class ClaimService:
    """Claims for one caller of one tenant. `life_of` returns how long an operation's claims are kept, if declared."""

    def __init__(
        self,
        claims: ClaimManager,
        tenant: str,
        *,
        best_effort: bool = False,
        life_of: Callable[[str], Lifetime | None] = lambda operation: None,
        flows: Container[str] = (),
        caller: str = "",
    ) -> None:
        self._claims = claims
        self._store = claims.store
        self._tenant = tenant
        self._best_effort = best_effort
        self._life_of = life_of
        self._flows = flows
        self._caller = caller

    # -- taking ----------------------------------------------------------------------------------

    def take(self, operation: str, key: str, body: TakeBody) -> Operation[Reply]:
        request = self._ask(operation, key)
        refuse_reserved(operation, self._flows)
        if self._store.best_effort and body.repeat == "never" and not self._best_effort:
            return unsafe()
        secret = self._secret(request, body.request_id)
        request = structs.replace(
            request,
            lease=seconds(body.lease, name="lease"),
            repeat=body.repeat,
            fingerprint=_fingerprint(body.payload),
            link=body.link and validate_key(body.link),
            owner=owner_of(secret),
        )
        outcome = yield from self._claims.take(request, decide_request if body.request_id else decide_claim)
        report("claims", OUTCOME_NAMES[type(outcome)], key=key, run=request.run)
        if not isinstance(outcome, Held | Mismatch):
            self._claims.duplicates.blocked(operation, key, "http", tenant=request.tenant)
        match outcome:
            case Held():
                token = yield from write_token(self._store, request.at, outcome.fence, outcome.attempt, secret)
                return claimed(outcome, token)
            case Done():
                return (yield from self._prior(outcome))
            case _:
                return refused(request, outcome)

    def _secret(self, claim_request: ClaimRequest, request: str) -> str:
        return secret_of_request(claim_request.at, self._caller, request) if request else new_secret()

    def _prior(self, done: Done) -> Operation[Reply]:
        text = yield from unpack(self._store, done.at, done.result, done.spill)
        return json_reply(
            200, PriorClaim(False, "done", Raw(text) if text else None, bool(text), done.finished_at, done.run)
        )

    def look(self, operation: str, key: str) -> Operation[Reply]:
        return (yield from look_at_claim(self._store, self._ask(operation, key).at))

    # -- ending ----------------------------------------------------------------------------------

    def complete(self, operation: str, key: str, body: CompleteBody) -> Operation[Reply]:
        request, life = self._ask(operation, key), self._life(operation, body.keep)
        token, record = yield from self._read_token(request, body.token)
        if token is None:
            return wrong_token(request)
        held = _held(request, token)
        packed = pack(given(body.result), held, most=self._claims.result_limit)
        if record is not None and _reported_before(record, token, DONE) and packed.is_kept_in(claim_of(record)):
            return json_reply(200, ClaimEnded(DONE, request.run))
        answer = yield from self._claims.complete(held, _claim(request, token, record), packed, life, twice=True)
        return self._ended(request, answer, DONE)

    def fail(self, operation: str, key: str, body: FailBody) -> Operation[Reply]:
        request, life = self._ask(operation, key), self._life(operation, body.keep)
        token, record = yield from self._read_token(request, body.token)
        if token is None:
            return wrong_token(request)
        state, fault = REVIEW if body.unknown else FAILED, _fault(body)
        if record is not None and _reported_before(record, token, state) and fault.weighs_like(claim_of(record).fault):
            return json_reply(200, ClaimEnded(state, request.run))
        held, claim = _held(request, token), _claim(request, token, record)
        if body.unknown:
            reason = f"its holder does not know the outcome: {fault.message}"
            answer = yield from self._claims.park(held, claim, fault, reason, twice=True)
        else:
            answer = yield from self._claims.fail(held, claim, fault, life, twice=True)
        return self._ended(request, answer, state)

    def renew(self, operation: str, key: str, body: RenewBody) -> Operation[Reply]:
        request, lease = self._ask(operation, key), seconds(body.lease, name="lease")
        token, _ = yield from self._read_token(request, body.token)
        if token is None:
            return wrong_token(request)
        answer = yield from self._claims.renew(_held(request, token), lease)
        if isinstance(answer, LostHold):
            return lost(request, answer.state, kept=False)
        record = (yield from self._store.read(request.at)).record
        until = record.lease_until if record is not None else None
        return json_reply(200, Renewed(HELD, until or 0.0, request.run))

    def _ended(self, request: ClaimRequest, answer: Written | LostHold, state: str) -> Reply:
        if isinstance(answer, LostHold):
            return lost(request, answer.state, kept=True)
        return json_reply(200, ClaimEnded(state, request.run))

    def _read_token(self, request: ClaimRequest, text: str) -> Operation[tuple[ClaimToken | None, Record | None]]:
        """Return the token and its record. A fence has one owner, so a token of another owner is forged."""
        token = yield from read_token(self._store, request.at, text)
        if token is None:
            return None, None
        record = (yield from self._store.read(request.at)).record
        if record is not None and record.fence == token.fence and claim_of(record).owner != token.owner:
            return None, record
        return token, record

    # -- requests --------------------------------------------------------------------------------

    def _ask(self, operation: str, key: str) -> ClaimRequest:
        operation, key = validate_name("operation", operation), validate_key(key)
        at = address_of(self._tenant, operation, key)
        return ClaimRequest(
            at=at, operation=operation, key=key, owner="", lease=0.0, tenant=self._tenant, run=run_id(at.space)
        )

    def _life(self, operation: str, keep: Keep | None) -> Lifetime:
        if keep is not None:
            span = lifetime(keep, name="keep")
            return Lifetime(span, keep_failed=span)
        return self._life_of(operation) or DEFAULT_LIFE


def _fingerprint(payload: Raw | UnsetType) -> str:
    """The fingerprint as in `app.claim(…, payload=…)`, so that programs and tools can share an operation."""
    return "" if isinstance(payload, UnsetType) else body_hash(b'{"payload":' + bytes(given(payload)) + b"}")


def _held(request: ClaimRequest, token: ClaimToken) -> Held:
    return Held(request.at, token.fence, token.owner, token.attempt, request.run, 0.0, 0.0)


def _claim(request: ClaimRequest, token: ClaimToken, record: Record | None) -> Claim:
    """The claim as it was taken. If it is gone, nothing of this will be written."""
    if record is None:
        return Claim(request.operation, request.key, token.owner, request.tenant)
    return claim_of(record)


def _reported_before(record: Record, token: ClaimToken, state: str) -> bool:
    """Whether the same report was recorded before, and is repeated because its reply was lost."""
    claim = claim_of(record)
    return record.state == state and (claim.owner, claim.attempt) == (token.owner, token.attempt)


def _fault(body: FailBody) -> Fault:
    message = " ".join(body.error.split())[:LONGEST_ERROR] or "no reason was given"
    return Fault(REPORTED, message.replace("\0", "\N{SYMBOL FOR NULL}"), retryable=body.retryable and not body.unknown)
