"""What is due in the SQLite store: looked for without the write lock, which is taken if something was found."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Sequence

from ..records import Record
from .heads import FEW, chosen
from .sqlite_numbers import Numbers
from .sqlite_rows import COLUMNS, record_of

__all__ = ["hand_out", "look"]

NAMED = (
    "SELECT queue, min(due_at) AS first FROM twiceproof_records INDEXED BY twiceproof_records_due"
    " WHERE kind=? AND queue IN ({marks}) AND due_at IS NOT NULL GROUP BY queue ORDER BY first"
)
# From each queue in which something waits to the next: the index has them in this order, and the first due first.
ALL = """
WITH RECURSIVE heads (queue) AS (
    SELECT min(queue) FROM twiceproof_records INDEXED BY twiceproof_records_due WHERE kind=:kind AND due_at IS NOT NULL
    UNION ALL
    SELECT (
        SELECT min(r.queue) FROM twiceproof_records AS r INDEXED BY twiceproof_records_due
        WHERE r.kind=:kind AND r.due_at IS NOT NULL AND r.queue > heads.queue
    ) FROM heads WHERE heads.queue IS NOT NULL
)
SELECT queue, (
    SELECT min(r.due_at) FROM twiceproof_records AS r INDEXED BY twiceproof_records_due
    WHERE r.kind=:kind AND r.due_at IS NOT NULL AND r.queue = heads.queue
) AS first FROM heads WHERE queue IS NOT NULL ORDER BY first"""


def look(
    db: sqlite3.Connection, kind: str, queues: Collection[str], now: float, limit: int
) -> tuple[list[str], float | None]:
    """The queues in which something is due, and when the first of the others is."""
    asked = frozenset(queues)
    if not asked:
        return [], None
    if len(asked) <= FEW:
        heads = db.execute(NAMED.format(marks=_marks(asked)), (kind, *asked))
    else:
        heads = db.execute(ALL, {"kind": kind})
    try:
        return chosen(heads, asked, now, limit)
    finally:
        heads.close()


def hand_out(
    db: sqlite3.Connection, kind: str, queues: Sequence[str], limit: int, times: tuple[float, float], numbers: Numbers
) -> tuple[list[Record], float | None]:
    """Within a write transaction: what is due in these queues, hidden, and when the first of them is due next.
    `times`: now, and until when to hide."""
    now, until = times
    waiting = f"FROM twiceproof_records WHERE kind=? AND queue IN ({_marks(queues)}) AND due_at"
    rows = db.execute(
        f"SELECT {COLUMNS} {waiting} <= ? ORDER BY due_at, id LIMIT ?", (kind, *queues, now, limit)
    ).fetchall()
    number = numbers.next(db)
    if rows:
        db.executemany(
            "UPDATE twiceproof_records SET due_at=?, version=? WHERE id=?",
            [(until, number, row[0]) for row in rows],
        )
        numbers.use(db, 1)
    (later,) = db.execute(f"SELECT min(due_at) {waiting} IS NOT NULL", (kind, *queues)).fetchone()
    return [record_of((*row[:5], number, *row[6:12], until, row[13])) for row in rows], later


def _marks(queues: Collection[str]) -> str:
    return ",".join("?" * len(queues))
