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
from ..base import (
    MOST_LOOKED_AT,
    after_id,
    after_key,
    after_place,
    cursor_of_key,
    cursor_of_place,
    end_of_prefix,
    fits,
)

__all__ = [
    "BORDER",
    "COLUMNS",
    "SqlitePrefixScan",
    "SqliteScan",
    "VersionCounter",
    "catch_up",
    "land_all",
    "land_counted",
    "number_at",
    "read_row",
    "record_of",
]


RESERVED = 1_024  # at a time: writing the counter with every commit would cost a page of it
IN_TURNS = 16  # at a time, while other processes write, too: the rest of each block is skipped

PER_SECOND, SINCE = 2**22, 1_577_836_800  # below 2^53 until 2088
MOST = 2**52  # an upper limit, for a wrong clock


def catch_up(db: sqlite3.Connection, now: float) -> None:
    """Bring the counter up to the present: a file that was copied back from a backup draws no number again."""
    present = number_at(now)
    db.execute("UPDATE twiceproof_counter SET number=? WHERE number < ?", (present, present))


def number_at(now: float) -> int:
    """The number of a moment. All that are drawn until then are smaller, if fewer are used up than a second has."""
    return min(int((now - SINCE) * PER_SECOND), MOST)


class VersionCounter:
    """Version numbers of one writing connection, each drawn within its write transaction.

    A block is reserved in the file and used up from memory, as long as no other process has written. One that has
    began after our block, so the rest of the block is no longer larger than everything drawn before: it is skipped, as
    it is after a crash. Blocks are small then: processes that write in turns would skip so many numbers that the
    counter runs ahead of the time, and a file that was copied back would draw some of them again.
    """

    def __init__(self) -> None:
        self._block = RESERVED
        self.forget()

    def forget(self) -> None:
        """After a transaction that did not land, or on another connection: what was reserved may not be."""
        self._next = self._reserved = 0
        self._seen: int | None = None

    def next(self, db: sqlite3.Connection) -> int:
        """The first number that was never drawn."""
        (seen,) = db.execute("PRAGMA data_version").fetchone()  # changes when another connection has written
        if seen != self._seen:
            self._block = RESERVED if self._seen is None else IN_TURNS
            (self._reserved,) = db.execute("SELECT number FROM twiceproof_counter").fetchone()
            self._next, self._seen = self._reserved + 1, seen
        return self._next

    def use(self, db: sqlite3.Connection, count: int) -> None:
        """So many, from the next one on."""
        self._next += count
        if self._next > self._reserved + 1:
            self._reserved = self._next + self._block
            self._block = min(2 * self._block, RESERVED)
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
        spaces = (writes[0].at.space, *batch.others)
        if seen.isdisjoint(spaces):
            seen.update(spaces)
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
FAMILY = "substr(space, 1, instr(space, '/') + instr(substr(space, instr(space, '/') + 1), '/'))"
# A kind has a handful of states, each of which the index has in the order of ids. Asked for a kind alone, it would
# have all of it read and sorted for each page.
IN_STATE = f"{ROWS} INDEXED BY {{index}} WHERE {{which}} AND state=:state AND id{{beyond}}:after"
IN_KIND = f"""
WITH RECURSIVE states (state) AS (
    SELECT min(state) FROM twiceproof_records INDEXED BY {{index}} WHERE {{which}}
    UNION ALL
    SELECT (
        SELECT min(r.state) FROM twiceproof_records AS r INDEXED BY {{index}} WHERE {{which}} AND r.state > states.state
    ) FROM states WHERE states.state IS NOT NULL
)
{ROWS} WHERE id IN (
    SELECT r.id FROM states CROSS JOIN twiceproof_records AS r ON r.id IN (
        SELECT s.id FROM twiceproof_records AS s INDEXED BY {{index}}
        WHERE {{which}} AND s.state = states.state AND s.id{{beyond}}:after ORDER BY s.id{{down}} LIMIT :most
    ) ORDER BY r.id{{down}} LIMIT :most
)"""  # noqa: S608
# By the index of addresses, which has other kinds between: so many entries of it, and those that were meant.
ENTRIES = """SELECT id, space, kind, key FROM twiceproof_records INDEXED BY twiceproof_records_at
    WHERE (space, kind, key) > (:space, :of_kind, :key) AND space < :end ORDER BY space, kind, key"""
BY_PREFIX = f"""
{ROWS} WHERE id IN (SELECT e.id FROM ({ENTRIES} LIMIT :looked) AS e WHERE e.kind=:kind){{narrow}}
ORDER BY space, key LIMIT :most"""  # noqa: S608
BORDER = f"SELECT space, kind, key FROM ({ENTRIES} LIMIT 1 OFFSET :looked - 1)"  # noqa: S608


class SqliteScan:
    """One page: what to ask, and what the rows mean."""

    def __init__(
        self,
        kind: str,
        space: str | None,
        state: str | None,
        after: str | None,
        limit: int,
        newest: bool | None = None,
        family: str | None = None,
    ) -> None:
        self._by_key = space is not None
        self._limit = limit
        down = " DESC" if newest else ""
        if space is not None:
            sql = IN_SPACE + ("" if state is None else " AND state=:state")
        else:
            index, which = ("state", "kind=:kind") if family is None else ("family", f"kind='run' AND {FAMILY}=:family")
            sql = (IN_KIND if state is None else IN_STATE).format(
                index=f"twiceproof_records_{index}", which=which, beyond="<" if newest else ">", down=down
            )
        self.sql = f"{sql} ORDER BY {'key' if self._by_key else 'id' + down} LIMIT :most"
        self.values = {
            "kind": kind,
            "space": space,
            "state": state,
            "family": family,
            "after": after_key(after) if self._by_key else after_id(after, newest=newest),
            "most": limit + 1,
        }

    def page(self, rows: Sequence[Row], now: float) -> Page:
        records = [record_of(row) for row in rows[: self._limit]]
        more = len(rows) > self._limit
        if self._by_key:
            return Page(records, cursor_of_key(records[-1].at.key) if more else None, now)
        cursors = [str(row[0]) for row in rows[: self._limit]]
        return Page(records, cursors[-1] if more else None, now, cursors)


class SqlitePrefixScan:
    """A page of the spaces that begin alike, in the order of addresses."""

    def __init__(self, kind: str, prefix: str, state: str | None, after: str | None, limit: int) -> None:
        self._limit = limit
        space, of_kind, key = after_place(after, prefix)
        self.sql = BY_PREFIX.format(narrow="" if state is None else " AND state=:state")
        self.values = {
            "kind": kind,
            "space": space,
            "of_kind": of_kind,
            "key": key,
            "end": end_of_prefix(prefix),
            "state": state,
            "most": limit + 1,
            "looked": MOST_LOOKED_AT,
        }

    def page(self, rows: Sequence[Row], border: tuple[str, str, str] | None, now: float) -> Page:
        """`border`: the last entry that was looked at, if there may be more behind it."""
        records = [record_of(row) for row in rows[: self._limit]]
        cursors = [cursor_of_place(*place_of(record)) for record in records]
        if len(rows) > self._limit:
            return Page(records, cursors[-1], now, cursors)
        return Page(records, None if border is None else cursor_of_place(*border), now, cursors)


def place_of(record: Record) -> tuple[str, str, str]:
    return record.at.space, record.at.kind, record.at.key
