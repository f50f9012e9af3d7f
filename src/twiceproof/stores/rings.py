"""Whom a landed batch wakes: those who wait for its space, and those who wait for something to do."""

from __future__ import annotations

from ..records import Batch, Check, Insert, Remove, Replace

__all__ = ["SOON", "queue_place", "rings"]

# Only what falls due sooner than this rings. Whoever waits for a queue asks at least this often, and so hears of
# everything else in time. Leases are usually longer: taking a claim, and keeping it, wakes nobody.
SOON = 20.0


def queue_place(queue: str) -> str:
    """The name under which one waits for a queue. No space is called so: a tenant's name has no colon."""
    return f"queue:{queue}"


def rings(batch: Batch) -> list[str]:
    """The names to ring. Asked of every batch that lands: most ring nobody, and must not pay for it."""
    places = []
    for write in batch.writes:
        if isinstance(write, Check):
            continue
        if isinstance(write, Remove) or (isinstance(write, Replace) and write.draw):
            places.append(write.at.space)
        if not isinstance(write, Remove) and write.due_in is not None and _is_soon(write, write.due_in):
            places.append(queue_place(write.queue))
    return places


def _is_soon(write: Insert | Replace, due_in: float) -> bool:
    """A heartbeat is not: it draws nothing, and keeps a lease."""
    return due_in < SOON and (write.draw or write.lease is None)
