"""Whom a landed batch wakes: those who wait for its space, and those who wait for something to do."""

from __future__ import annotations

from collections.abc import Iterator

from ..records import Batch, Insert, Remove, Replace, Write

__all__ = ["SOON", "queue_place", "rings"]

# Only what falls due sooner than this rings. Whoever waits for a queue asks at least this often, and so hears of
# everything else in time. Leases are usually longer: taking a claim, and keeping it, wakes nobody.
SOON = 20.0


def queue_place(queue: str) -> str:
    """The name under which one waits for a queue. No space is called so: a tenant's name has no colon."""
    return f"queue:{queue}"


def rings(batch: Batch) -> list[str]:
    """The names to ring."""
    return [place for write in batch.writes for place in _rung_by(write)]


def _rung_by(write: Write) -> Iterator[str]:
    if isinstance(write, Remove) or (isinstance(write, Replace) and write.draw):
        yield write.at.space
    if isinstance(write, Insert | Replace) and _is_due_soon(write):
        yield queue_place(write.queue)


def _is_due_soon(write: Insert | Replace) -> bool:
    """A heartbeat is not: it draws nothing, and keeps a lease."""
    return write.due_in is not None and write.due_in < SOON and (write.draw or write.lease is None)
