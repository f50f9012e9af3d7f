"""DueWork protocol: a kind of due record."""

from __future__ import annotations

from typing import Protocol

from ...claims.claim import Held, LostHold
from ...claims.held_claim import Heartbeat, HeldClaim
from ...claims.states import ClaimRequest
from ...operations import Operation
from ...records import Record, Replace, Written
from ...stores.base import Store
from .log import About

__all__ = ["LONGEST", "SHORTEST", "DueWork", "lease_for", "take_duty"]


INTERVALS = 3
SHORTEST, LONGEST = 5.0, 300.0  # seconds


def lease_for(interval: float) -> float:
    """Seconds for which nobody else takes what comes round every `interval` seconds."""
    return min(max(SHORTEST, INTERVALS * interval), LONGEST)


def take_duty(store: Store, heartbeat: Heartbeat, record: Record, lease: float) -> Operation[HeldClaim | None]:
    """Take a record as it was handed out, and keep it until the hold is dropped. None: another worker has it.

    The last write is conditional on the fence and draws another: a renewal that straggles in cannot undo it.
    """
    taken = yield from store.write(
        Replace(record.at, None, version=record.version, draw=True, lease=lease, queue=record.queue, due_in=lease)
    )
    if not isinstance(taken, Written):
        return None
    held = Held(record.at, taken.fence, "", 1, "", lease, 0.0, record.queue, taken.now)
    request = ClaimRequest(at=record.at, operation=record.queue, key=record.at.key, owner="", lease=lease)
    hold = HeldClaim(request, held)
    hold.renew = lambda held: _renew(store, held)
    heartbeat.keep(hold)
    return hold


def _renew(store: Store, held: Held) -> Operation[Held | LostHold]:
    again = Replace(held.at, None, fence=held.fence, lease=held.lease, queue=held.queue, due_in=held.lease)
    written = yield from store.write(again)
    return held if isinstance(written, Written) else LostHold("another worker's", "")


class DueWork(Protocol):
    """Derive from it, and append an instance to `app.duties`."""

    kind: str  # of the records it serves
    rank: int = 1  # a duty of a lower rank is looked after first; those of one rank take turns

    def queues(self) -> list[str]:
        """Where it looks. Asked before each look: what is declared later is served too."""
        raise NotImplementedError

    def flow_of(self, queue: str) -> str:
        """Whose flow's work is in one of its queues: a worker may serve some of them only."""
        return queue.partition("/")[2].rpartition("@")[0]

    def prepare(self) -> Operation[None]:
        """Before a worker begins: put into the store what is to fall due."""
        yield from ()

    def carry_out(self, record: Record) -> Operation[None]:
        """Do what a record that has fallen due asks for. It is hidden from other workers for a few seconds: take it by
        its version, or it is handed out again."""
        raise NotImplementedError

    def put_off(self, record: Record) -> float:
        """For how many seconds a record that could not be carried out is left alone."""
        return LONGEST

    def about(self, record: Record) -> About:
        """Which run the log's lines are about while it is carried out, if it is one."""
        return About()

    def awaits(self, record: Record) -> bool:
        """Whether it must be carried out on an event loop."""
        return False
