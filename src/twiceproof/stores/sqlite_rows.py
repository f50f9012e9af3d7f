"""SQLite rows: the statements, and how a write or a record becomes one."""

from __future__ import annotations

import sqlite3
from typing import Any

from ..records import (
    Address,
    Batch,
    Check,
    Conflict,
    Insert,
    Outcome,
    Record,
    Remove,
    Replace,
    Write,
    Written,
)
from .conditions import fits

__all__ = ["COLUMNS", "land", "read_row", "record_of"]

COLUMNS = (
    "id, space, kind, key, state, version, fence, nonce,"
    " created_at, updated_at, lease_until, queue, due_at, body"
)
READ = f"SELECT {COLUMNS} FROM twiceproof_records WHERE space=? AND kind=? AND key=?"  # noqa: S608 - constants
INSERT = (
    "INSERT INTO twiceproof_records (space, kind, key, state, version, fence, nonce, created_at, updated_at,"
    " lease_until, queue, due_at, body) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?) ON CONFLICT DO NOTHING"
)
REPLACE = (
    "UPDATE twiceproof_records SET state=?, version=?, fence=coalesce(?, fence), nonce=?, updated_at=?,"
    " lease_until=?, queue=?, due_at=?, body=coalesce(?, body) WHERE space=? AND kind=? AND key=? AND "
)
REPLACE_BY = {"fence": REPLACE + "fence=?", "version": REPLACE + "version=?"}
REMOVE = "DELETE FROM twiceproof_records WHERE space=? AND kind=? AND key=? AND "
REMOVE_BY = {"fence": REMOVE + "fence=?", "version": REMOVE + "version=?"}


def land(db: sqlite3.Connection, batch: Batch, number: int, now: float) -> Outcome:
    """Land one batch or leave everything as it was. The write lock is held, so looking first is safe."""
    writes = batch.writes
    if len(writes) > 1 or isinstance(writes[0], Check):
        for write in writes:
            found = read_row(db, write.at)
            if not fits(write, found):
                return Conflict(write.at, found, now)
    for write in writes:
        if not _apply(db, write, number, batch.nonce, now):
            return Conflict(write.at, read_row(db, write.at), now)
    return Written(str(number), number, now)


def _apply(db: sqlite3.Connection, write: Write, number: int, nonce: str, now: float) -> bool:
    """Do one write if its condition holds; tell whether it did."""
    at = write.at
    if type(write) is Insert:
        done = db.execute(
            INSERT,
            (
                at.space, at.kind, at.key, write.state, number, number if write.draw else 0, nonce, now, now,
                None if write.lease is None else now + write.lease,
                write.queue, None if write.due_in is None else now + write.due_in, write.body,
            ),
        )  # fmt: skip
    elif type(write) is Replace:
        by, value = _condition(write)
        done = db.execute(
            REPLACE_BY[by],
            (
                write.state, number, number if write.draw else None, nonce, now,
                None if write.lease is None else now + write.lease,
                write.queue, None if write.due_in is None else now + write.due_in, write.body,
                at.space, at.kind, at.key, value,
            ),
        )  # fmt: skip
    elif type(write) is Remove:
        by, value = _condition(write)
        done = db.execute(REMOVE_BY[by], (at.space, at.kind, at.key, value))
    else:
        return True  # a Check writes nothing
    return done.rowcount == 1


def _condition(write: Replace | Remove) -> tuple[str, int]:
    if write.fence is not None:
        return "fence", write.fence
    # A version of another store, or none at all, is simply not the one found.
    return "version", int(write.version) if write.version and write.version.isdecimal() else -1


def read_row(db: sqlite3.Connection, at: Address) -> Record | None:
    row = db.execute(READ, (at.space, at.kind, at.key)).fetchone()
    return record_of(row) if row else None


def record_of(row: tuple[Any, ...]) -> Record:
    _, space, kind, key, state, version, fence, nonce, created, updated, lease, queue, due, body = row
    return Record(
        Address(space, kind, key),
        body,
        state,
        str(version),
        fence,
        nonce,
        created,
        updated,
        lease,
        queue,
        due,
    )
