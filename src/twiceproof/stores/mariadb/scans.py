"""Scans: pages by age, by key in a space, and by the beginning of a space."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...records import Page
from ..base import (
    EVERY,
    MOST_LOOKED_AT,
    after_id,
    after_key,
    after_place,
    cursor_of_key,
    cursor_of_place,
    end_of_prefix,
)
from .rows import COLUMNS, LedgerSql, Row, Statement, record_of, text_of

__all__ = ["MariadbPrefixScan", "MariadbScan"]


class MariadbScan:
    """One page: its statements, and how to read the rows. The few states of a kind are queried first."""

    def __init__(
        self,
        sql: LedgerSql,
        kind: str,
        space: str | None,
        state: str | None,
        after: str | None,
        limit: int,
        newest: bool | None = None,
        family: str | None = None,
    ) -> None:
        self._sql = sql
        self._kind, self._space, self._state = kind, space, state
        self._limit = limit
        self._after: str | int = after_id(after, newest=newest) if space is None else after_key(after)
        self._beyond, self._down = ("<", " DESC") if newest else (">", "")
        index, self._column, self._value = ("state", "r.kind", kind)
        if family is not None:
            index, self._column, self._value = ("family", "r.family", family[:-1])
        self._indexed = f"{sql.records} FORCE INDEX (twiceproof_records_{index})"
        self.needs_states = space is None and state is None

    def states(self) -> Statement:
        return f"SELECT r.state FROM {self._indexed} WHERE {self._column} = %s GROUP BY r.state", [self._value]  # noqa: S608

    def rows(self, states: Sequence[Any] = ()) -> Statement:
        if self._space is not None:
            return self._in_space(self._space)
        chosen = states if self.needs_states else [self._state]
        one = f"(SELECT {COLUMNS} FROM {self._indexed} WHERE {self._column} = %s AND r.state = %s"  # noqa: S608
        one += f" AND r.id {self._beyond} %s ORDER BY r.id{self._down} LIMIT %s)"
        values = [value for state in chosen for value in (self._value, state, self._after, self._limit + 1)]
        return f"{' UNION ALL '.join([one] * len(chosen))} ORDER BY id{self._down} LIMIT %s", [*values, self._limit + 1]

    def _in_space(self, space: str) -> Statement:
        narrow = "" if self._state is None else " AND r.state = %s"
        sql = f"SELECT {COLUMNS} FROM {self._sql.at} WHERE r.space = %s AND r.kind = %s AND r.`key` > %s{narrow}"  # noqa: S608
        state = [] if self._state is None else [self._state]
        return f"{sql} ORDER BY r.`key` LIMIT %s", [space, self._kind, self._after, *state, self._limit + 1]

    def page(self, rows: Sequence[Row], now: float) -> Page:
        records = [record_of(row) for row in rows[: self._limit]]
        more = len(rows) > self._limit
        if self._space is not None:
            return Page(records, cursor_of_key(records[-1].at.key) if more else None, now)
        cursors = [str(row[0]) for row in rows[: self._limit]]
        return Page(records, cursors[-1] if more else None, now, cursors)


class MariadbPrefixScan:
    """A page of the spaces with a prefix, in the order of addresses: reads a number of index entries, which include
    other kinds, and returns the matching ones.
    """

    def __init__(
        self, sql: LedgerSql, kind: str, prefix: str, state: str | None, after: str | None, limit: int
    ) -> None:
        self._sql, self._kind, self._state, self._limit = sql, kind, state, limit
        space, of_kind, key = after_place(after, prefix)
        self._from = [space, end_of_prefix(prefix), space, of_kind, of_kind, key]

    def _entries(self, limit: str, until: str = "") -> str:
        return (
            f"SELECT r.id, r.space, r.kind, r.`key` FROM {self._sql.at} WHERE r.space >= %s AND r.space < %s"  # noqa: S608
            f" AND (r.space > %s OR r.kind > %s OR (r.kind = %s AND r.`key` > %s)){until}"
            f" ORDER BY r.space, r.kind, r.`key` LIMIT {limit}"
        )

    def rows(self, border: Row = ()) -> Statement:
        """Return the records among the first entries; with `border`, among all entries up to that one, however many
        these are by now: a record that was inserted or removed since it was found moves no other to another page.
        """
        narrow, state = ("", []) if self._state is None else (" AND r.state = %s", [self._state])
        until, last, most = "", [], MOST_LOOKED_AT
        if border:
            space, kind, key = map(text_of, border[1:])
            until = " AND r.space <= %s AND (r.space < %s OR r.kind < %s OR (r.kind = %s AND r.`key` <= %s))"
            last, most = [space, space, kind, kind, key], EVERY
        return (
            f"SELECT {COLUMNS} FROM ({self._entries('%s', until)}) AS e STRAIGHT_JOIN {self._sql.records}"  # noqa: S608
            f" FORCE INDEX (PRIMARY) ON r.id = e.id WHERE e.kind = %s{narrow} ORDER BY e.space, e.`key` LIMIT %s",
            [*self._from, *last, most, self._kind, *state, self._limit + 1],
        )

    def border(self) -> Statement:
        """The last entry that was read, if there may be more after it."""
        return self._entries("1 OFFSET %s"), [*self._from, MOST_LOOKED_AT - 1]

    def is_short(self, rows: Sequence[Row]) -> bool:
        return len(rows) <= self._limit

    def page(self, rows: Sequence[Row], border: Sequence[Row], now: float) -> Page:
        records = [record_of(row) for row in rows[: self._limit]]
        cursors = [cursor_of_place(record.at.space, record.at.kind, record.at.key) for record in records]
        if not self.is_short(rows):
            return Page(records, cursors[-1], now, cursors)
        after = [cursor_of_place(*map(text_of, row[1:])) for row in border]
        return Page(records, after[0] if after else None, now, cursors)
