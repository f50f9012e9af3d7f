"""Request bodies and replies of the claim service."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from ...claims.claim import HELD, Busy, Failed, Held, InReview, Mismatch, Parked, claim_of
from ...claims.queries import Evidence, evidence_of
from ...claims.results import unpack
from ...claims.retention import run_or_claim
from ...claims.states import ClaimRequest, is_expired, is_lapsed
from ...errors import ValueRefused
from ...inbound.reply import JSON, Reply, json_reply, problem, retry_after
from ...keys.duration import LONGEST
from ...operations import Operation
from ...records import Address, Record
from ...safe_text import suggested_command
from ...stores.base import Store
from ..openapi import KEEP, KEY_OR_NONE, LEASE, UUID_OR_NONE

__all__ = [
    "LONGEST_PAUSE",
    "OUTCOMES",
    "ClaimEnded",
    "ClaimReport",
    "ClaimView",
    "Claimed",
    "CompleteBody",
    "FailBody",
    "PriorClaim",
    "RenewBody",
    "Renewed",
    "TakeBody",
    "always_200",
    "claimed",
    "given",
    "how_to_settle",
    "look_at_claim",
    "lost",
    "refused",
    "unsafe",
    "wrong_token",
]


# Errors of the request, the caller or the store are excluded: taken for a duplicate, they would stop work silently.
OUTCOMES = (200, 201, 404, 409, 422)


def always_200(reply: Reply) -> Reply:
    if reply.status not in OUTCOMES:
        return reply
    fields = msgspec.json.decode(reply.body, type=dict[str, Raw])
    fields.setdefault("claimed", Raw(b"false"))
    fields["status"] = Raw(str(reply.status).encode())
    headers = [header for header in reply.headers if header[0] != "content-type"]
    return Reply(200, (("content-type", JSON), *headers), msgspec.json.encode(fields))


LONGEST_PAUSE = 30.0  # the holder may be done long before its lease ends


class Claimed(Struct, frozen=True):
    """The claim is taken: do the work, then complete it with the token."""

    claimed: bool
    state: str
    token: str
    lease_until: float
    attempt: int
    run: str


class PriorClaim(Struct, frozen=True):
    """The work was done before, with this result."""

    claimed: bool
    state: str
    result: Raw | None
    result_kept: bool
    finished_at: float
    run: str


class ClaimEnded(Struct, frozen=True):
    """The outcome is recorded."""

    state: str
    run: str


class Renewed(Struct, frozen=True):
    state: str
    lease_until: float
    run: str


def claimed(held: Held, token: str) -> Reply:
    return json_reply(201, Claimed(True, "held", token, held.taken_at + held.lease, held.attempt, held.run))


def refused(request: ClaimRequest, outcome: Busy | Failed | InReview | Mismatch | Parked) -> Reply:
    """Return why the claim was not taken, and what to do."""
    match outcome:
        case Busy():
            return _busy(request, outcome)
        case InReview():
            return _problem(
                409,
                "needs-review",
                outcome.reason or "It is not known whether this was done.",
                "review",
                outcome.run,
                f'{how_to_settle(request)} If it may be repeated, claim it with "repeat": "safe".',
            )
        case Failed():
            return _problem(
                409,
                "prior-failure",
                f"It failed before: {outcome.fault.message or outcome.fault.type}",
                "failed",
                outcome.run,
                f"It is not retried automatically. {how_to_settle(request)}",
                error=outcome.fault.message,
            )
        case Mismatch():
            return _problem(
                422,
                "payload-mismatch",
                "This key was claimed with a different payload.",
                outcome.state,
                outcome.run,
                "Use another key for another request, or send the same payload.",
            )
        case Parked():
            return _problem(
                409,
                "waiting",
                outcome.why or "It waits for a worker.",
                outcome.state,
                outcome.run,
                "Look at the run.",
            )


def _busy(request: ClaimRequest, busy: Busy) -> Reply:
    pause = retry_after(min(busy.retry_after, LONGEST_PAUSE))
    return _problem(
        409,
        "in-progress",
        "Another caller is working on this key.",
        "held",
        busy.run,
        f"Try again in {pause[1]} s; do nothing meanwhile.",
        headers=[pause],
        retry_after=int(pause[1]),
        lease_left=busy.retry_after,
    )


def lost(request: ClaimRequest, state: str, kept: bool) -> Reply:
    """The reply to a token that has lost its claim."""
    finding = "What you reported is stored as evidence, not as the result." if kept else "Stop before the next effect."
    move = how_to_settle(request) if state == "review" else "Look at the claim with GET, and stop this work."
    return _problem(
        409, "claim-lost", f"This token has lost its claim. {finding}", state or "unclaimed", request.run, move
    )


def wrong_token(request: ClaimRequest) -> Reply:
    return problem(
        403,
        "wrong-token",
        "This token does not belong to this claim.",
        next_move="Send the token that was returned with the claim, to the same operation and key.",
    )


def unsafe() -> Reply:
    """The store is not safe for this claim. Nothing was claimed, and a retry would not help."""
    return problem(
        501,
        "store-unsafe",
        "The server's store can lose acknowledged writes on failover.",
        next_move='Claim with "repeat": "safe", or have the server use PostgreSQL or SQLite, or accept it with '
        "App(best_effort=True).",
    )


def how_to_settle(request: ClaimRequest) -> str:
    """Tell how a person settles the claim."""
    about = (request.operation, request.key)
    return (
        f'Find out whether it happened, then settle it: POST /v1/reviews/{request.run} {{"verdict": "happened"}} or '
        '{"verdict": "did-not-happen"}; or type: '
        f"{suggested_command('claims', 'settle', '--happened', about=about)} (or --did-not-happen)."
    )


def _problem(
    status: int, kind: str, detail: str, state: str, run: str, move: str, headers: Any = (), **more: Any
) -> Reply:
    fields = {"claimed": False, "state": state, "run": run, **more}
    return problem(status, kind, detail, next_move=move, headers=headers, more=fields)


# Only part of the API description: an invalid duration is answered with an explanation, not with a pattern.
_SECONDS = Meta(extra_json_schema={"exclusiveMinimum": 0, "maximum": int(LONGEST)})
Seconds = Annotated[int, _SECONDS] | Annotated[float, _SECONDS]
Span = Annotated[str, Meta(extra_json_schema=LEASE)] | Seconds
Link = Annotated[str, Meta(extra_json_schema=KEY_OR_NONE)]
RequestId = Annotated[str, Meta(extra_json_schema=UUID_OR_NONE)]
Keep = Annotated[str, Meta(extra_json_schema=KEEP)] | Seconds


class TakeBody(Struct, frozen=True, forbid_unknown_fields=True):
    """`payload` is compared with that of earlier claims, also if it is null; if left out, nothing is compared.

    `request_id`: a random UUID, new for each request, and the same for every retry of it.
    """

    payload: Raw | UnsetType = UNSET
    lease: Span = "5m"
    repeat: Literal["never", "safe"] = "never"
    request_id: RequestId = ""
    link: Link = ""


class CompleteBody(Struct, frozen=True, forbid_unknown_fields=True):
    """`keep` is how long the key is remembered: "30d", "forever"."""

    token: str
    result: Raw | UnsetType = UNSET
    keep: Keep | None = None


class FailBody(Struct, frozen=True, forbid_unknown_fields=True):
    """`retryable`: the next claim may try again. `unknown`: it may have happened, so a person must decide."""

    token: str
    error: str = ""
    retryable: bool = True
    unknown: bool = False
    keep: Keep | None = None


class RenewBody(Struct, frozen=True, forbid_unknown_fields=True):
    token: str
    lease: Span = "5m"


def given(value: Raw | UnsetType) -> Raw:
    """Return the JSON without blanks, as duplicates will get it; a missing value is null."""
    if isinstance(value, UnsetType):
        return Raw(b"null")
    try:
        msgspec.json.decode(value)  # an endless number passes as raw JSON until it is decoded
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ValueRefused(f"A value cannot be decoded ({error}); send it as text.") from None
    return Raw(msgspec.json.format(bytes(value), indent=-1))


class ClaimReport(Struct, frozen=True):
    """What a holder reported after it had lost its claim."""

    owner: str
    seen_at: float
    result: Raw | None
    error: str


class ClaimView(Struct, frozen=True):
    """Times are those of the store, in seconds since 1970."""

    operation: str
    key: str
    state: str
    lapsed: bool  # the holder's lease has expired: the outcome is unknown
    attempt: int
    owner: str
    run: str
    link: str
    lease_until: float | None
    updated_at: float
    result: Raw | None
    result_kept: bool
    error: str
    reason: str
    evidence: list[ClaimReport]


def look_at_claim(store: Store, at: Address) -> Operation[Reply]:
    found = yield from run_or_claim(store, at.space)
    record = found.record
    if record is None or is_expired(record, found.now):
        return problem(
            404,
            "unclaimed",
            "This key is not claimed, or its claim has expired.",
            next_move="Claim it with PUT.",
            more={"claimed": False, "state": "unclaimed"},
        )
    return json_reply(200, (yield from _view(store, record, found.now)))


def _view(store: Store, record: Record, now: float) -> Operation[ClaimView]:
    claim = claim_of(record)
    result = yield from unpack(store, record.at, claim.result, claim.spill)
    evidence = yield from evidence_of(store, record.at.space)
    return ClaimView(
        claim.operation,
        claim.key,
        record.state,
        record.state == HELD and is_lapsed(record, now),
        claim.attempt,
        claim.owner,
        claim.run,
        claim.link,
        record.lease_until,
        record.updated_at,
        Raw(result) if result else None,
        bool(result),
        claim.fault.message if claim.fault else "",
        claim.reason,
        [_report(piece) for piece in evidence],
    )


def _report(piece: Evidence) -> ClaimReport:
    error = piece.fault.message if piece.fault else ""
    return ClaimReport(piece.owner, piece.seen_at, Raw(piece.result) if piece.result else None, error)
