"""What is due in the PostgreSQL store, where many queues are asked for: first, in which of them anything is."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from .heads import chosen
from .postgres_scan import GT, LE
from .postgres_schema import EQ, TEXT, in_schema

__all__ = ["look"]

Rows = Sequence[Sequence[bytes | None]]

# From each queue in which something waits to the next: the index has them in this order, and the first due first.
HEADS = f"""
WITH RECURSIVE heads (queue, due_at) AS (
    (
        SELECT queue, due_at FROM {{schema}}.twiceproof_records WHERE kind {EQ} $1::{TEXT} AND due_at IS NOT NULL
        ORDER BY kind, queue, due_at LIMIT 1
    )
    UNION ALL
    SELECT following.queue, following.due_at FROM heads, LATERAL (
        SELECT r.queue, r.due_at FROM {{schema}}.twiceproof_records AS r
        WHERE (r.kind, r.queue) {GT} ($1::{TEXT}, heads.queue) AND r.kind {LE} $1::{TEXT} AND r.due_at IS NOT NULL
        ORDER BY r.kind, r.queue, r.due_at LIMIT 1
    ) AS following
)
SELECT clock.now, first.queue, first.due_at FROM (SELECT {{schema}}.twiceproof_now() AS now) AS clock
LEFT JOIN (SELECT queue, due_at FROM heads ORDER BY due_at LIMIT $2::bigint) AS first ON true
ORDER BY first.due_at"""  # noqa: S608 - constants
BESIDES, LARGER = 32, 16  # heads of others' queues that are put up with, and how many more if that was not enough


def look(
    ask: Callable[[bytes, list[bytes | None]], Rows], kind: str, asked: Collection[str], limit: int, schema: str
) -> tuple[list[str], float | None, float]:
    """The queues in which something is due, when the first of the others is, and the server's time."""
    most = limit + BESIDES
    while True:
        rows = ask(in_schema(HEADS, schema), [kind.encode(), str(most).encode()])
        now = float(rows[0][0] or 0)
        heads = [(queue.decode(), float(due_at)) for _, queue, due_at in rows if queue is not None and due_at]
        ripe, later = chosen(heads, asked, now, limit)
        if later is not None or len(heads) < most:
            return ripe, later, now
        most *= LARGER
