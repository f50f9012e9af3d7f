"""What the claim service answers. Errors are problems that also have the fields a tool looks at."""

from __future__ import annotations

from typing import Any

from msgspec import Raw, Struct

from ...claims.outcomes import Busy, Failed, Held, InReview, Mismatch, Parked
from ...claims.states import Ask
from ...shell import typed
from ..reply import Reply, json_reply, problem, retry_after

__all__ = [
    "LONGEST_PAUSE",
    "Claimed",
    "Ended",
    "Prior",
    "Renewed",
    "claimed",
    "lost",
    "not_ours",
    "refused",
    "settling",
    "unsafe",
]

LONGEST_PAUSE = 30.0  # a lease may be long, and its holder done soon


class Claimed(Struct, frozen=True):
    """It is yours: do the work, then complete it with the token."""

    claimed: bool
    state: str
    token: str
    lease_until: float
    attempt: int
    run: str


class Prior(Struct, frozen=True):
    """It was done before, with this result."""

    claimed: bool
    state: str
    result: Raw | None
    result_kept: bool
    finished_at: float
    run: str


class Ended(Struct, frozen=True):
    """Your word is on record."""

    state: str
    run: str


class Renewed(Struct, frozen=True):
    state: str
    lease_until: float
    run: str


def claimed(held: Held, token: str) -> Reply:
    return json_reply(201, Claimed(True, "held", token, held.taken_at + held.lease, held.attempt, held.run))


def refused(ask: Ask, outcome: Busy | Failed | InReview | Mismatch | Parked) -> Reply:
    """Why it is not yours, and what can be done about it."""
    match outcome:
        case Busy():
            return _busy(ask, outcome)
        case InReview():
            return _problem(
                409, "needs-review", outcome.reason or "Whether this was done is not known.", "review", outcome.run,
                f"{settling(ask)} If doing it twice does no harm, claim it with \"repeat\": \"safe\".",
            )  # fmt: skip
        case Failed():
            return _problem(
                409, "prior-failure", f"It failed before: {outcome.fault.message or outcome.fault.type}", "failed",
                outcome.run, f"It is not tried again by itself. {settling(ask)}", error=outcome.fault.message,
            )  # fmt: skip
        case Mismatch():
            return _problem(
                422, "payload-mismatch", "This key was claimed with another payload.", outcome.state, outcome.run,
                "Use another key for another intent, or send the same payload.",
            )  # fmt: skip
        case Parked():
            return _problem(
                409, "waiting", outcome.why or "It waits for a worker.", outcome.state, outcome.run,
                "Look at the run.",
            )  # fmt: skip


def _busy(ask: Ask, busy: Busy) -> Reply:
    pause = retry_after(min(busy.retry_after, LONGEST_PAUSE))
    return _problem(
        409, "in-progress", "Somebody else is at work on this key.", "held", busy.run,
        f"Come back in {pause[1]} s; do nothing meanwhile.", headers=[pause],
        retry_after=int(pause[1]), lease_left=busy.retry_after,
    )  # fmt: skip


def lost(ask: Ask, state: str, kept: bool) -> Reply:
    """A token that has lost its claim."""
    finding = (
        "What you found out is kept as evidence, not taken as the result." if kept else "Stop before the next effect."
    )
    move = settling(ask) if state == "review" else "Look at the claim with GET, and stop this work."
    return _problem(409, "claim-lost", f"This token has lost its claim. {finding}", state or "unclaimed", ask.run, move)


def not_ours(ask: Ask) -> Reply:
    return problem(
        403, "wrong-token", "This token does not belong to this claim.",
        next_move="Send the token that the claim itself was answered with, to the same operation and key.",
    )  # fmt: skip


def unsafe() -> Reply:
    """Nothing was claimed, and trying again would not help."""
    return problem(
        501, "store-unsafe", "The server's store can lose acknowledged writes on failover.",
        next_move='Claim with "repeat": "safe", or have the server use PostgreSQL or SQLite, or accept it with '
        "App(best_effort=True).",
    )  # fmt: skip


def settling(ask: Ask) -> str:
    """How a person says what happened."""
    about = (ask.operation, ask.key)
    return (
        f'Find out whether it happened, then settle it: POST /v1/reviews/{ask.run} {{"verdict": "happened"}} or '
        '{"verdict": "did-not-happen"}; or type: '
        f"{typed('claims', 'settle', '--happened', about=about)} (or --did-not-happen)."
    )


def _problem(
    status: int, kind: str, detail: str, state: str, run: str, move: str, headers: Any = (), **more: Any
) -> Reply:  # fmt: skip
    fields = {"claimed": False, "state": state, "run": run, **more}
    return problem(status, kind, detail, next_move=move, headers=headers, more=fields)
