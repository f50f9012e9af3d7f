"""Showing and deciding. To show changes nothing; to decide takes a nonce of the page that showed it."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from ...drive import Operation
from ...errors import NoSuchWait, OwnRequest, PayloadMismatch
from ...flows.waits.approval import OPEN, Approval, Decided
from ...flows.waits.approvals import decide
from ...keys import validate_key
from ...stores.base import Store
from ..reply import Reply, problem
from .nonce import View, draw_nonce, is_nonce
from .seat import Seat

__all__ = ["DecideBody", "Nonces", "Shown", "decide_at", "shown_at"]

LONGEST_NOTE = 2_000


class DecideBody(Struct, frozen=True, forbid_unknown_fields=True):
    """`nonce` and `shown` come from the view: this decision's nonce, and the digest of what was shown."""

    decision: Literal["approve", "reject"]
    nonce: str
    shown: str
    by: str = ""
    note: str = ""


class Nonces(Struct, frozen=True):
    """Which one is sent back is the decision."""

    approve: str
    reject: str


class Shown(Struct, frozen=True):
    """`nonces` is null where there is nothing to decide any more."""

    approval: Approval
    nonces: Nonces | None


def shown_at(store: Store, seat: Seat, now: float) -> Operation[Shown]:
    if seat.approval.state != OPEN:
        return Shown(seat.told, None)
    view = _view(seat, seat.approval.digest)
    yes = yield from draw_nonce(store, view, "approve", now)
    no = yield from draw_nonce(store, view, "reject", now)
    return Shown(seat.approval, Nonces(yes, no))


def decide_at(store: Store, seat: Seat, body: DecideBody, now: float, *, mark: str) -> Operation[Decided | Reply]:
    """What it came to: the first word counts, and whoever comes second is told what it was."""
    if seat.by and body.by and body.by != seat.by:
        return _refused(403, "not-you", f"Here only {seat.by} decides.", "Leave out `by`.")
    if not (seat.by or body.by.strip()):
        return _refused(400, "nameless", "Nobody knows whose word this is.", "Say who you are (`by`).")
    if not (yield from is_nonce(store, body.nonce, _view(seat, body.shown), body.decision, now)):
        why = "This does not come from a page that was opened lately."
        return _refused(403, "stale-view", why, "Open it again, look, and decide.")
    return (yield from _decide(store, seat, body, mark))


def _decide(store: Store, seat: Seat, body: DecideBody, mark: str) -> Operation[Decided | Reply]:
    words: dict[str, Any] = {
        "approved": body.decision == "approve",
        "note": body.note[:LONGEST_NOTE],
        "shown": body.shown,
        "born": seat.born,
    }
    by = seat.by or validate_key(body.by.strip())
    try:
        return (yield from decide(store, seat.approval.id, by=by, mark=mark, **words))
    except PayloadMismatch:
        return _refused(422, "asked-anew", "What is asked has changed since you looked.", "Look at it again.")
    except OwnRequest as error:
        return _refused(403, "own-request", str(error), "Have somebody else decide.")
    except NoSuchWait as error:
        return _refused(410, "no-longer-asked", str(error), "Nothing is to be done here.")


def _view(seat: Seat, digest: str) -> View:
    return seat.approval.id, digest, seat.way


def _refused(status: int, kind: str, detail: str, move: str) -> Reply:
    return problem(status, kind, detail, next_move=move)
