"""Scans: statements of one page each, and what their rows mean.

Each statement is written so that one index fits it and no statistics can lead elsewhere: a page reads what it shows.
"""

from __future__ import annotations

from collections.abc import Sequence

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
from .codec import decode_record
from .schema import EQ, SCHEMA, TEXT, in_schema

__all__ = ["GT", "LE", "PostgresPrefixScan", "PostgresScan", "Rows"]

Rows = Sequence[Sequence[bytes | None]]

PAGE = """
SELECT clock.now, (page.r).id, {schema}.twiceproof_json(page.r) FROM (SELECT {schema}.twiceproof_now() AS now) AS clock
LEFT JOIN ({rows}) AS page ON true ORDER BY {order}"""
GT, LE = "OPERATOR(pg_catalog.>)", "OPERATOR(pg_catalog.<=)"
LT, GE = "OPERATOR(pg_catalog.<)", "OPERATOR(pg_catalog.>=)"

# $1: the kind, $2: what was met last, $3: how many, then the space or the family, and the state.
KIND, KEY, ID, MOST = f"$1::{TEXT}", f"$2::{TEXT}", "$2::bigint", "$3::bigint"
FOURTH, FIFTH, SIXTH = f"$4::{TEXT}", f"$5::{TEXT}", f"$6::{TEXT}"
IN_SPACE = f"""
SELECT r FROM {{schema}}.twiceproof_records AS r
WHERE (space, kind, key) {GT} ({FOURTH}, {KIND}, {KEY}) AND (space, kind) {LE} ({FOURTH}, {KIND}){{narrow}}
ORDER BY space, kind, key LIMIT {MOST}"""  # noqa: S608 - constants
# In a wrap that no index is made for: the server would read all that is in this state, to find the space in it.
NARROW = f" AND coalesce(state {EQ} {{state}}, false)"
FAMILY = ("pg_catalog.split_part(space, '/', 1)", "pg_catalog.split_part(space, '/', 2)")


class AgeOrder:
    """How a kind is read by age: the columns that its index begins with, what they must be, and the index's condition.

    The columns are compared as one row, so that no other index looks as good.
    """

    def __init__(self, newest: bool | None, by_family: bool) -> None:
        self.columns = FAMILY if by_family else ("kind",)
        self.values = (FOURTH, FIFTH) if by_family else (KIND,)
        self.condition = f"kind {EQ} 'run' AND kind {EQ} {KIND}" if by_family else f"id {GT} 0"
        self.beyond, self.until, self.down = (LT, GE, " DESC") if newest else (GT, LE, "")

    def row(self, *more: str) -> str:
        return f"({', '.join((*self.columns, *more))})"

    def wanted(self, *more: str) -> str:
        return f"({', '.join((*self.values, *more))})"

    def in_state(self, what: str, state: str) -> str:
        order = ", ".join(f"{column}{self.down}" for column in (*self.columns, "state", "id"))
        return f"""
SELECT {what} FROM {{schema}}.twiceproof_records AS r
WHERE {self.row("state", "id")} {self.beyond} {self.wanted(state, ID)}
    AND {self.row("state")} {self.until} {self.wanted(state)} AND {self.condition}
ORDER BY {order} LIMIT {MOST}"""  # noqa: S608 - constants

    def in_any_state(self) -> str:
        """A kind has a handful of states, each of which the index has in the order of ids."""
        order = ", ".join((*self.columns, "state"))
        return f"""
WITH RECURSIVE states (state) AS (
    (
        SELECT state FROM {{schema}}.twiceproof_records
        WHERE {self.row("state")} {GE} {self.wanted("''")} AND {self.row()} {LE} {self.wanted()} AND {self.condition}
        ORDER BY {order} LIMIT 1
    )
    UNION ALL
    SELECT (
        SELECT state FROM {{schema}}.twiceproof_records
        WHERE {self.row("state")} {GT} {self.wanted("states.state")} AND {self.row()} {LE} {self.wanted()}
            AND {self.condition}
        ORDER BY {order} LIMIT 1
    ) FROM states WHERE states.state IS NOT NULL
)
SELECT r FROM {{schema}}.twiceproof_records AS r WHERE id {EQ} ANY (ARRAY(
    SELECT id FROM states, LATERAL ({self.in_state("id", "states.state")}) AS part
    WHERE states.state IS NOT NULL ORDER BY id{self.down} LIMIT {MOST}
))"""  # noqa: S608 - constants


class PostgresScan:
    """One page of a kind by age, or of one space by key: what to ask, and what the rows mean."""

    def __init__(
        self,
        kind: str,
        space: str | None,
        state: str | None,
        after: str | None,
        limit: int,
        newest: bool | None = None,
        family: str | None = None,
        *,
        schema: str = SCHEMA,
    ) -> None:
        self._by_key = space is not None
        self._limit = limit
        met = after_key(after) if self._by_key else str(after_id(after, newest=newest))
        places = [space] if space is not None else family.split("/")[:2] if family is not None else []
        narrow = [*places, *([] if state is None else [state])]
        self.values = [text.encode() for text in (kind, met, str(limit + 1), *narrow)]
        told = None if state is None else (FOURTH, FIFTH, SIXTH)[len(places)]
        rows, order = _in_space(told) if self._by_key else _by_age(told, newest, family is not None)
        self.sql = in_schema(PAGE.replace("{rows}", rows).replace("{order}", order), schema)

    def page(self, rows: Rows) -> Page:
        now = float(rows[0][0] or 0)
        there = [(ident, text) for _, ident, text in rows if ident is not None and text is not None]
        records = [decode_record(text) for _, text in there[: self._limit]]
        more = len(there) > self._limit
        if self._by_key:
            return Page(records, cursor_of_key(records[-1].at.key) if more else None, now)
        cursors = [ident.decode() for ident, _ in there[: self._limit]]
        return Page(records, cursors[-1] if more else None, now, cursors)


def _in_space(state: str | None) -> tuple[str, str]:
    narrow = "" if state is None else NARROW.replace("{state}", state)
    return IN_SPACE.replace("{narrow}", narrow), "(page.r).key"


def _by_age(state: str | None, newest: bool | None, by_family: bool) -> tuple[str, str]:
    order = AgeOrder(newest, by_family)
    rows = order.in_any_state() if state is None else order.in_state("r", state)
    return rows, f"(page.r).id{order.down}"


# $1: the kind, $2 to $4: the space, kind and key that were met last, $5: the end, $6: how many entries, $7: how many
# records, $8: the state.
AT = f"$2::{TEXT}, $3::{TEXT}, $4::{TEXT}"
ENTRIES = f"{{schema}}.twiceproof_entries({AT}, $5::{TEXT}, $6::bigint)"
BY_PREFIX = f"""
SELECT r FROM {{schema}}.twiceproof_records AS r WHERE id {EQ} ANY (ARRAY(
    SELECT e.id FROM {ENTRIES} AS e WHERE e.kind {EQ} {KIND}{{until}} ORDER BY e.space, e.key{{first}}
)){{narrow}} ORDER BY space, key LIMIT $7::bigint"""  # noqa: S608 - constants
BORDER = f"""
SELECT space, kind, key FROM {ENTRIES} AS e WHERE $1::{TEXT} IS NOT NULL
ORDER BY space, kind, key OFFSET $7::bigint"""  # noqa: S608 - constants


BEHIND = b"\x01"  # no space comes between one and the same with this appended: no text holds a NUL


def _until(state: str | None) -> str:
    """The condition that an entry is not behind the border, whose values are the last ones."""
    first = 8 if state is None else 9
    border = ", ".join(f"${nth}::{TEXT}" for nth in range(first, first + 3))
    return f" AND (e.space, e.kind, e.key) {LE} ({border})"


class PostgresPrefixScan:
    """One page of the spaces that begin alike, in the order of addresses: so many entries of their index, which has
    other kinds between, and those of them that were meant."""

    def __init__(
        self, kind: str, prefix: str, state: str | None, after: str | None, limit: int, *, schema: str = SCHEMA
    ) -> None:
        self._limit = limit
        texts = (kind, *after_place(after, prefix), end_of_prefix(prefix))
        narrow = [] if state is None else [state]
        self.values = [text.encode() for text in (*texts, str(MOST_LOOKED_AT), str(limit + 1), *narrow)]
        # Without a state, no more rows are read than shown.
        rows = BY_PREFIX.replace("{first}", " LIMIT $7::bigint" if state is None else "")
        rows = rows.replace("{narrow}", "" if state is None else NARROW.replace("{state}", f"$8::{TEXT}"))
        page = PAGE.replace("{rows}", rows).replace("{order}", "(page.r).space, (page.r).key")
        self.sql, self._until = (in_schema(page.replace("{until}", until), schema) for until in ("", _until(state)))
        self.border = in_schema(BORDER, schema)
        self.border_values = [text.encode() for text in (*texts, str(MOST_LOOKED_AT), str(MOST_LOOKED_AT - 1))]

    def until(self, border: Sequence[bytes | None]) -> tuple[bytes, list[bytes]]:
        """Return the query for the records among all entries up to the border, however many these are by now: a record
        that was inserted or removed since it was found moves no other to another page.
        """
        place = [part or b"" for part in border]
        end = place[0] + BEHIND
        return self._until, [*self.values[:4], end, str(EVERY).encode(), *self.values[6:], *place]

    def is_short(self, rows: Rows) -> bool:
        """Whether there may be more behind the last entry that was looked at: the border tells."""
        return len(rows) <= self._limit

    def page(self, rows: Rows, border: Rows) -> Page:
        now = float(rows[0][0] or 0)
        records = [decode_record(text) for _, _, text in rows[: self._limit] if text is not None]
        cursors = [cursor_of_place(record.at.space, record.at.kind, record.at.key) for record in records]
        if not self.is_short(rows):
            return Page(records, cursors[-1], now, cursors)
        after = [cursor_of_place(*((part or b"").decode() for part in row)) for row in border]
        return Page(records, after[0] if after else None, now, cursors)
