"""Statements; writes to rows and back; scans; version numbers.

Scans read no more rows than they return. Each statement names its index: statistics from when a table was small must
not make it read all of a large one.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from itertools import chain
from typing import Any

from ...records import Address, Batch, Check, Conflict, Insert, Outcome, Page, Record, Remove, Replace, Write, Written
from ..base import after_id, after_key, cursor_of_key, fits

__all__ = ["COLUMNS", "SqliteScan", "VersionCounter", "catch_up", "land_all", "land_counted", "read_row", "record_of"]


RESERVED = 1_024  # at a time: writing the counter with every commit would cost a page of it

PER_SECOND, SINCE = 2**22, 1_577_836_800  # below 2^53 until 2088
MOST = 2**52  # an upper limit, for a wrong clock


def catch_up(db: sqlite3.Connection, now: float) -> None:
    """Bring the counter up to the present: a file that was copied back from a backup draws no number again."""
    present = min(int((now - SINCE) * PER_SECOND), MOST)
    db.execute("UPDATE twiceproof_counter SET number=? WHERE number < ?", (present, present))


class VersionCounter:
    """Version numbers of one writing connection, each drawn within its write transaction.

    A block is reserved in the file and used up from memory, as long as no other process has written. One that has
    began after our block, so the rest of the block is no longer larger than everything drawn before: it is skipped, as
    it is after a crash.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """After a transaction that did not land, or on another connection: what was reserved may not be."""
        self._next = self._reserved = 0
        self._seen: int | None = None

    def next(self, db: sqlite3.Connection) -> int:
        """The first number that was never drawn."""
        (seen,) = db.execute("PRAGMA data_version").fetchone()  # changes when another connection has written
        if seen != self._seen:
            (self._reserved,) = db.execute("SELECT number FROM twiceproof_counter").fetchone()
            self._next, self._seen = self._reserved + 1, seen
        return self._next

    def use(self, db: sqlite3.Connection, count: int) -> None:
        """So many, from the next one on."""
        self._next += count
        if self._next > self._reserved + 1:
            self._reserved = self._next + RESERVED
            db.execute("UPDATE twiceproof_counter SET number=?", (self._reserved,))


COLUMNS = "id, space, kind, key, state, version, fence, nonce, created_at, updated_at, lease_until, queue, due_at, body"
READ = f"SELECT {COLUMNS} FROM twiceproof_records WHERE space=? AND kind=? AND key=?"  # noqa: S608 - constants
INSERT = (
    "INSERT INTO twiceproof_records (space, kind, key, state, version, fence, nonce, created_at, updated_at,"
    " lease_until, queue, due_at, body) VALUES {rows} ON CONFLICT DO NOTHING"
)
REPLACE = (
    "UPDATE twiceproof_records SET state=?, version=?, fence=coalesce(?, fence), nonce=?, updated_at=?,"
    " lease_until=?, queue=?, due_at=?, body=coalesce(?, body) WHERE space=? AND kind=? AND key=? AND "
)
REPLACE_BY = {"fence": REPLACE + "fence=?", "version": REPLACE + "version=?"}
REPLACE_MANY = (  # INDEXED BY: statistics of a table that was small must not make it read all of a large one
    "UPDATE twiceproof_records INDEXED BY twiceproof_records_at SET state=w.column1, version=w.column2,"
    " fence=coalesce(w.column3, fence), nonce=w.column4, updated_at=w.column5, lease_until=w.column6,"
    " queue=w.column7, due_at=w.column8, body=coalesce(w.column9, body) FROM (VALUES {rows}) AS w"
    " WHERE space=w.column10 AND kind=w.column11 AND key=w.column12 AND "
)
Row = tuple[Any, ...]
ROW = "(?,?,?,?,?,?,?,?,?,?,?,?,?)"
KNOWS_UPDATE_FROM = sqlite3.sqlite_version_info >= (3, 33)
CHUNKS = (64, 32, 16, 8, 4, 2, 1) if KNOWS_UPDATE_FROM else (1,)  # few sizes, so that all stay prepared


def _many(statement: str, size: int) -> str:
    return statement.format(rows=",".join([ROW] * size))


INSERT_ONE = _many(INSERT, 1)
SIZED = {  # statements for one row, and the same for many
    (INSERT_ONE, size): _many(INSERT, size) for size in CHUNKS
} | {
    (one, size): one if size == 1 else _many(f"{REPLACE_MANY}{by}=w.column13", size)
    for by, one in REPLACE_BY.items()
    for size in CHUNKS
}
MISFITS = (  # given a fence, or a version, or neither: then nothing may be there
    "SELECT count(*) FROM (VALUES {rows}) AS w LEFT JOIN twiceproof_records AS r INDEXED BY twiceproof_records_at"
    " ON r.space=w.column1 AND r.kind=w.column2 AND r.key=w.column3 WHERE CASE"
    " WHEN w.column4 IS NOT NULL THEN r.fence IS NOT w.column4"
    " WHEN w.column5 IS NOT NULL THEN r.version IS NOT w.column5 ELSE r.id IS NOT NULL END"
)
MISFITS_SIZED = {size: MISFITS.format(rows=",".join(["(?,?,?,?,?)"] * size)) for size in CHUNKS}
REMOVE = "DELETE FROM twiceproof_records WHERE space=? AND kind=? AND key=? AND "
REMOVE_BY = {"fence": REMOVE + "fence=?", "version": REMOVE + "version=?"}


def land_counted(
    db: sqlite3.Connection, batches: Sequence[Batch], numbers: VersionCounter, now: float
) -> list[Outcome]:
    """Land each batch or not, within a write transaction, with numbers that were never drawn before."""
    outcomes = land_all(db, batches, numbers.next(db), now)
    if any(type(outcome) is Written for outcome in outcomes):
        numbers.use(db, len(batches))
    return outcomes


def land_all(db: sqlite3.Connection, batches: Sequence[Batch], number: int, now: float) -> list[Outcome]:
    """Land each batch or not. Plain ones go through a few statements together, all others one by one."""
    outcomes: list[Any] = [None] * len(batches)
    lone, several = _plain(batches)
    for statement, alike in _rows(batches, lone, number, now).items():
        everyone_fits = _execute(db, statement, [row for _, row in alike]) == len(alike)
        for at, _ in alike:
            if everyone_fits:
                outcomes[at] = Written(str(number + at), number + at, now)
            else:
                outcomes[at] = _told_apart(db, batches[at], number + at, now)
    if several and _all_fit(db, [write for place in several for write in batches[place].writes]):
        for statement, alike in _rows(batches, several, number, now).items():
            _execute(db, statement, [row for _, row in alike])
        for at in several:
            outcomes[at] = Written(str(number + at), number + at, now)
    for place, outcome in enumerate(outcomes):
        if outcome is None:
            outcomes[place] = _land(db, batches[place], number + place, now)
    return outcomes


def _plain(batches: Sequence[Batch]) -> tuple[list[int], list[int]]:
    """Places of batches that take nothing away: those of one write, and those of several.

    A space's second batch must see its first: it is not plain.
    """
    lone: list[int] = []
    several: list[int] = []
    seen: set[str] = set()
    for place, batch in enumerate(batches):
        writes = batch.writes
        space = writes[0].at.space
        if space not in seen:
            seen.add(space)
            if len(writes) > 1:
                if not any(type(write) is Remove for write in writes):
                    several.append(place)
            elif isinstance(writes[0], (Insert, Replace)):
                lone.append(place)
    return lone, several


def _rows(batches: Sequence[Batch], places: list[int], number: int, now: float) -> dict[str, list[tuple[int, Row]]]:
    """What these batches put, by statement."""
    groups: dict[str, list[tuple[int, Row]]] = {}
    for place in places:
        batch = batches[place]
        for write in batch.writes:
            if not isinstance(write, Check):
                row = _values(write, number + place, batch.nonce, now)
                groups.setdefault(_statement(write), []).append((place, row))
    return groups


def _all_fit(db: sqlite3.Connection, writes: list[Write]) -> bool:
    """In one look. The write lock is held: what fits now fits when it is written."""
    misfits = done = 0
    for size in CHUNKS:
        while len(writes) - done >= size:
            wanted = [value for write in writes[done : done + size] for value in _wanted(write)]
            misfits += db.execute(MISFITS_SIZED[size], wanted).fetchone()[0]
            done += size
    return misfits == 0


def _wanted(write: Write) -> Row:
    at = write.at
    if isinstance(write, Insert) or (write.fence is None and write.version is None):
        return at.space, at.kind, at.key, None, None
    if write.fence is not None:
        return at.space, at.kind, at.key, write.fence, None
    return at.space, at.kind, at.key, None, _number(write.version or "")


def _execute(db: sqlite3.Connection, statement: str, rows: list[Row]) -> int:
    """How many rows fit. `executemany` would let go of the interpreter at each row, and wait for it as often."""
    before, done = db.total_changes, 0
    for size in CHUNKS:
        while len(rows) - done >= size:
            db.execute(SIZED[statement, size], tuple(chain.from_iterable(rows[done : done + size])))
            done += size
    return db.total_changes - before


def _told_apart(db: sqlite3.Connection, batch: Batch, number: int, now: float) -> Outcome:
    """A batch of the group did not fit: those that did left their numbers. A nonce may be from an earlier try."""
    at = batch.writes[0].at
    found = read_row(db, at)
    landed = found is not None and found.version == str(number)
    return Written(str(number), number, now) if landed else Conflict(at, found, now)


def _land(db: sqlite3.Connection, batch: Batch, number: int, now: float) -> Outcome:
    """Land one batch or leave everything as it was. The write lock is held, so looking first is safe."""
    for write in batch.writes:
        found = read_row(db, write.at)
        if not fits(write, found):
            return Conflict(write.at, found, now)
    for write in batch.writes:
        if not isinstance(write, Check):
            db.execute(_statement(write), _values(write, number, batch.nonce, now))
    return Written(str(number), number, now)


def _statement(write: Insert | Replace | Remove) -> str:
    if isinstance(write, Insert):
        return INSERT_ONE
    by = "version" if write.fence is None else "fence"
    return REPLACE_BY[by] if isinstance(write, Replace) else REMOVE_BY[by]


def _values(write: Write, number: int, nonce: str, now: float) -> Row:
    at = write.at
    if isinstance(write, Insert):
        return (
            at.space,
            at.kind,
            at.key,
            write.state,
            number,
            number if write.draw else 0,
            nonce,
            now,
            now,
            None if write.lease is None else now + write.lease,
            write.queue,
            None if write.due_in is None else now + write.due_in,
            write.body,
        )
    if isinstance(write, Replace):
        return (
            write.state,
            number,
            number if write.draw else None,
            nonce,
            now,
            None if write.lease is None else now + write.lease,
            write.queue,
            None if write.due_in is None else now + write.due_in,
            write.body,
            at.space,
            at.kind,
            at.key,
            _condition(write),
        )
    return at.space, at.kind, at.key, _condition(write)


def _condition(write: Replace | Remove | Check) -> int:
    return _number(write.version or "") if write.fence is None else write.fence


def _number(version: str) -> int:
    """A version of another store, or none at all, is simply not the one found."""
    number = int(version) if version.isdecimal() and len(version) < 19 else -1
    return number if str(number) == version else -1


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


ROWS = f"SELECT {COLUMNS} FROM twiceproof_records"  # noqa: S608 - constants
IN_SPACE = f"{ROWS} INDEXED BY twiceproof_records_at WHERE space=:space AND kind=:kind AND key>:after"
IN_STATE = f"{ROWS} INDEXED BY twiceproof_records_state WHERE kind=:kind AND state=:state AND id>:after"
# A kind has a handful of states, each of which the index has in the order of ids. Asked for a kind alone, it would
# have all of it read and sorted for each page.
IN_KIND = f"""
WITH RECURSIVE states (state) AS (
    SELECT min(state) FROM twiceproof_records WHERE kind=:kind
    UNION ALL
    SELECT (SELECT min(r.state) FROM twiceproof_records AS r WHERE r.kind=:kind AND r.state > states.state)
    FROM states WHERE states.state IS NOT NULL
)
{ROWS} WHERE id IN (
    SELECT r.id FROM states CROSS JOIN twiceproof_records AS r ON r.id IN (
        SELECT s.id FROM twiceproof_records AS s INDEXED BY twiceproof_records_state
        WHERE s.kind=:kind AND s.state = states.state AND s.id>:after ORDER BY s.id LIMIT :most
    ) ORDER BY r.id LIMIT :most
)"""  # noqa: S608


class SqliteScan:
    """One page: what to ask, and what the rows mean."""

    def __init__(self, kind: str, space: str | None, state: str | None, after: str | None, limit: int) -> None:
        self._by_key = space is not None
        self._limit = limit
        sql = IN_SPACE if self._by_key else IN_KIND if state is None else IN_STATE
        narrow = " AND state=:state" if self._by_key and state is not None else ""
        self.sql = f"{sql}{narrow} ORDER BY {'key' if self._by_key else 'id'} LIMIT :most"
        self.values = {
            "kind": kind,
            "space": space,
            "state": state,
            "after": after_key(after) if self._by_key else after_id(after),
            "most": limit + 1,
        }

    def page(self, rows: Sequence[Row], now: float) -> Page:
        records = [record_of(row) for row in rows[: self._limit]]
        if len(rows) <= self._limit:
            return Page(records, None, now)
        last = records[-1].at.key
        return Page(records, cursor_of_key(last) if self._by_key else str(rows[self._limit - 1][0]), now)
