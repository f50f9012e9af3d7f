"""Heads: for each queue in which something waits, when the first of it is due.

A look goes by them, so that it costs what waits, and not how many queues are asked for: a worker serves a queue for
each tenant's flow, and most of them are empty.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

__all__ = ["FEW", "chosen"]

FEW = 32  # queues that are asked for one by one


def chosen(
    heads: Iterable[tuple[str, float]], asked: Collection[str], now: float, limit: int
) -> tuple[list[str], float | None]:
    """Of heads in the order of their times: the queues from which the `limit` longest overdue come, and when the first
    of the others is due. None: nothing else waits."""
    ripe: list[str] = []
    for queue, due_at in heads:
        if queue in asked:
            if due_at > now or len(ripe) == limit:
                return ripe, due_at
            ripe.append(queue)
    return ripe, None
