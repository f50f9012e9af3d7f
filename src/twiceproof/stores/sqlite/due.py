"""What is due in the SQLite store: looked for without the write lock, which is taken if something was found."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Sequence

from ...records import Record
from ..base import FEW, chosen
from .rows import COLUMNS, VersionCounter, record_of

__all__ = ["hand_out", "look"]


# Of one queue alone the smallest time is where the index begins; of several together, all of it would be read.
FIRST = (
    "SELECT min(r.due_at) FROM twiceproof_records AS r INDEXED BY twiceproof_records_due"
    " WHERE r.kind={kind} AND r.due_at IS NOT NULL AND r.queue = {queue}"
)
NAMED = (
    f"SELECT column1 AS queue, ({FIRST.format(kind='?1', queue='column1')}) AS first FROM (VALUES {{names}})"  # noqa: S608
    " WHERE first IS NOT NULL ORDER BY first"
)
# From each queue in which something waits to the next: the index has them in this order, and the first due first.
ALL = f"""
WITH RECURSIVE heads (queue) AS (
    SELECT min(queue) FROM twiceproof_records INDEXED BY twiceproof_records_due WHERE kind=:kind AND due_at IS NOT NULL
    UNION ALL
    SELECT (
        SELECT min(r.queue) FROM twiceproof_records AS r INDEXED BY twiceproof_records_due
        WHERE r.kind=:kind AND r.due_at IS NOT NULL AND r.queue > heads.queue
    ) FROM heads WHERE heads.queue IS NOT NULL
)
SELECT queue, ({FIRST.format(kind=":kind", queue="heads.queue")}) AS first FROM heads
WHERE queue IS NOT NULL ORDER BY first"""  # noqa: S608


def look(
    db: sqlite3.Connection, kind: str, queues: Collection[str], now: float, limit: int
) -> tuple[list[str], float | None]:
    """The queues in which something is due, and when the first of the others is."""
    asked = frozenset(queues)
    if not asked:
        return [], None
    heads = _named(db, kind, asked) if len(asked) <= FEW else db.execute(ALL, {"kind": kind})
    try:
        return chosen(heads, asked, now, limit)
    finally:
        heads.close()


def hand_out(
    db: sqlite3.Connection,
    kind: str,
    queues: Sequence[str],
    limit: int,
    times: tuple[float, float],
    numbers: VersionCounter,
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
    _, later = _named(db, kind, queues).fetchone() or ("", None)
    return [record_of((*row[:5], number, *row[6:12], until, row[13])) for row in rows], later


def _named(db: sqlite3.Connection, kind: str, queues: Collection[str]) -> sqlite3.Cursor:
    return db.execute(NAMED.format(names=",".join(["(?)"] * len(queues))), (kind, *queues))


def _marks(queues: Collection[str]) -> str:
    return ",".join("?" * len(queues))
