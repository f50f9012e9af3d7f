"""Bodies and answers of the claim service."""

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
    "look_at_claim",
    "lost",
    "not_ours",
    "refused",
    "settling",
    "unsafe",
]


# Not what is wrong with the request, the caller or the ledger: taken for a duplicate, it would stop work in silence.
OUTCOMES = (200, 201, 404, 409, 422)


def always_200(reply: Reply) -> Reply:
    if reply.status not in OUTCOMES:
        return reply
    fields = msgspec.json.decode(reply.body, type=dict[str, Raw])
    fields.setdefault("claimed", Raw(b"false"))
    fields["status"] = Raw(str(reply.status).encode())
    headers = [header for header in reply.headers if header[0] != "content-type"]
    return Reply(200, (("content-type", JSON), *headers), msgspec.json.encode(fields))


LONGEST_PAUSE = 30.0  # a lease may be long, and its holder done soon


class Claimed(Struct, frozen=True):
    """It is yours: do the work, then complete it with the token."""

    claimed: bool
    state: str
    token: str
    lease_until: float
    attempt: int
    run: str


class PriorClaim(Struct, frozen=True):
    """It was done before, with this result."""

    claimed: bool
    state: str
    result: Raw | None
    result_kept: bool
    finished_at: float
    run: str


class ClaimEnded(Struct, frozen=True):
    """Your word is on record."""

    state: str
    run: str


class Renewed(Struct, frozen=True):
    state: str
    lease_until: float
    run: str


def claimed(held: Held, token: str) -> Reply:
    return json_reply(201, Claimed(True, "held", token, held.taken_at + held.lease, held.attempt, held.run))


def refused(ask: ClaimRequest, outcome: Busy | Failed | InReview | Mismatch | Parked) -> Reply:
    """Why it is not yours, and what can be done about it."""
    match outcome:
        case Busy():
            return _busy(ask, outcome)
        case InReview():
            return _problem(
                409,
                "needs-review",
                outcome.reason or "Whether this was done is not known.",
                "review",
                outcome.run,
                f'{settling(ask)} If doing it twice does no harm, claim it with "repeat": "safe".',
            )
        case Failed():
            return _problem(
                409,
                "prior-failure",
                f"It failed before: {outcome.fault.message or outcome.fault.type}",
                "failed",
                outcome.run,
                f"It is not tried again by itself. {settling(ask)}",
                error=outcome.fault.message,
            )
        case Mismatch():
            return _problem(
                422,
                "payload-mismatch",
                "This key was claimed with another payload.",
                outcome.state,
                outcome.run,
                "Use another key for another intent, or send the same payload.",
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


def _busy(ask: ClaimRequest, busy: Busy) -> Reply:
    pause = retry_after(min(busy.retry_after, LONGEST_PAUSE))
    return _problem(
        409,
        "in-progress",
        "Somebody else is at work on this key.",
        "held",
        busy.run,
        f"Come back in {pause[1]} s; do nothing meanwhile.",
        headers=[pause],
        retry_after=int(pause[1]),
        lease_left=busy.retry_after,
    )


def lost(ask: ClaimRequest, state: str, kept: bool) -> Reply:
    """A token that has lost its claim."""
    finding = (
        "What you found out is kept as evidence, not taken as the result." if kept else "Stop before the next effect."
    )
    move = settling(ask) if state == "review" else "Look at the claim with GET, and stop this work."
    return _problem(409, "claim-lost", f"This token has lost its claim. {finding}", state or "unclaimed", ask.run, move)


def not_ours(ask: ClaimRequest) -> Reply:
    return problem(
        403,
        "wrong-token",
        "This token does not belong to this claim.",
        next_move="Send the token that the claim itself was answered with, to the same operation and key.",
    )


def unsafe() -> Reply:
    """Nothing was claimed, and trying again would not help."""
    return problem(
        501,
        "store-unsafe",
        "The server's store can lose acknowledged writes on failover.",
        next_move='Claim with "repeat": "safe", or have the server use PostgreSQL or SQLite, or accept it with '
        "App(best_effort=True).",
    )


def settling(ask: ClaimRequest) -> str:
    """How a person says what happened."""
    about = (ask.operation, ask.key)
    return (
        f'Find out whether it happened, then settle it: POST /v1/reviews/{ask.run} {{"verdict": "happened"}} or '
        '{"verdict": "did-not-happen"}; or type: '
        f"{suggested_command('claims', 'settle', '--happened', about=about)} (or --did-not-happen)."
    )


def _problem(
    status: int, kind: str, detail: str, state: str, run: str, move: str, headers: Any = (), **more: Any
) -> Reply:
    fields = {"claimed": False, "state": state, "run": run, **more}
    return problem(status, kind, detail, next_move=move, headers=headers, more=fields)


# Only told in descriptions: who writes it otherwise hears from us how durations are written, not of a pattern.
_SECONDS = Meta(extra_json_schema={"exclusiveMinimum": 0, "maximum": int(LONGEST)})
Seconds = Annotated[int, _SECONDS] | Annotated[float, _SECONDS]
Span = Annotated[str, Meta(extra_json_schema=LEASE)] | Seconds
Word = Annotated[str, Meta(extra_json_schema=KEY_OR_NONE)]
RequestId = Annotated[str, Meta(extra_json_schema=UUID_OR_NONE)]
Keep = Annotated[str, Meta(extra_json_schema=KEEP)] | Seconds


class TakeBody(Struct, frozen=True, forbid_unknown_fields=True):
    """`payload` is what the fingerprint is made of, null too; left out, nothing is compared.

    `request_id`: a random UUID, drawn once for each request and the same whenever that request is sent again.
    """

    payload: Raw | UnsetType = UNSET
    lease: Span = "5m"
    repeat: Literal["never", "safe"] = "never"
    request_id: RequestId = ""
    link: Word = ""


class CompleteBody(Struct, frozen=True, forbid_unknown_fields=True):
    """`keep` is how long the key is known: "30d", "forever"."""

    token: str
    result: Raw | UnsetType = UNSET
    keep: Keep | None = None


class FailBody(Struct, frozen=True, forbid_unknown_fields=True):
    """`retryable`: the next one may try again. `unknown`: nobody knows whether it happened; a person must say."""

    token: str
    error: str = ""
    retryable: bool = True
    unknown: bool = False
    keep: Keep | None = None


class RenewBody(Struct, frozen=True, forbid_unknown_fields=True):
    token: str
    lease: Span = "5m"


def given(value: Raw | UnsetType) -> Raw:
    """Without the blanks between, as it will be told to every duplicate; nothing is null."""
    if isinstance(value, UnsetType):
        return Raw(b"null")
    try:
        msgspec.json.decode(value)  # a number without an end passes for JSON until somebody reads it
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ValueRefused(f"A value cannot be read back ({error}); send it as text.") from None
    return Raw(msgspec.json.format(bytes(value), indent=-1))


class ClaimReport(Struct, frozen=True):
    """What a holder said that had lost its claim."""

    owner: str
    seen_at: float
    result: Raw | None
    error: str


class ClaimView(Struct, frozen=True):
    """Times are the ledger's, in seconds since 1970."""

    operation: str
    key: str
    state: str
    lapsed: bool  # held, but by nobody any more: what became of it is not known
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
            "Nobody has claimed this key, or its time is over.",
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
