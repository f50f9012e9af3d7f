"""How long a worker holds something that comes round again and again, such as a poll.

The lease follows the interval, and is renewed while the worker is at it: one that died is followed after a few
intervals, and one that takes long is left alone.
"""

from __future__ import annotations

from ...claims.heartbeat import Heartbeat
from ...claims.hold import Hold
from ...claims.outcomes import Held, LostHold
from ...claims.states import Ask
from ...drive import Operation
from ...records import Record, Replace, Written
from ...stores.base import Store

__all__ = ["LONGEST", "SHORTEST", "lease_for", "take_duty"]

INTERVALS = 3
SHORTEST, LONGEST = 5.0, 300.0  # seconds


def lease_for(interval: float) -> float:
    """Seconds for which nobody else takes what comes round every `interval` seconds."""
    return min(max(SHORTEST, INTERVALS * interval), LONGEST)


def take_duty(store: Store, heartbeat: Heartbeat, record: Record, lease: float) -> Operation[Hold | None]:
    """Take a record as it was handed out, and keep it until the hold is dropped. None: another worker has it.

    The last write is conditional on the fence and draws another: a renewal that straggles in cannot undo it.
    """
    taken = yield from store.write(
        Replace(record.at, None, version=record.version, draw=True, lease=lease, queue=record.queue, due_in=lease)
    )
    if not isinstance(taken, Written):
        return None
    held = Held(record.at, taken.fence, "", 1, "", lease, 0.0, record.queue, taken.now)
    hold = Hold(Ask(record.at, record.queue, record.at.key, "", lease), held)
    hold.renew = lambda held: _renew(store, held)
    heartbeat.keep(hold)
    return hold


def _renew(store: Store, held: Held) -> Operation[Held | LostHold]:
    again = Replace(held.at, None, fence=held.fence, lease=held.lease, queue=held.queue, due_in=held.lease)
    written = yield from store.write(again)
    return held if isinstance(written, Written) else LostHold("another worker's", "")
