"""Scans of the PostgreSQL store: each page reads no more rows than it shows, however many there are.

Places are compared as wholes, `(kind, state, id) > (…)`. Of `kind = … AND state = … ORDER BY id` the server may hold
that reading the table by id will soon have met enough of them, and that is a guess: it has read all of a large table
for a page of what lies at its end.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..records import Page
from .cursors import after_id, after_key, cursor_of_key
from .postgres_rows import decode_record
from .postgres_schema import EQ, SCHEMA, TEXT, in_schema

__all__ = ["Scan"]

PAGE = """
SELECT clock.now, (page.r).id, {schema}.twiceproof_json(page.r) FROM (SELECT {schema}.twiceproof_now() AS now) AS clock
LEFT JOIN ({rows}) AS page ON true ORDER BY {order}"""
GT, LE = "OPERATOR(pg_catalog.>)", "OPERATOR(pg_catalog.<=)"
BY_ID, BY_KEY = "(page.r).id", "(page.r).key"

# $1: the kind, $2: what was met last, $3: how many, $4: the space or the state, $5: the state in a space.
KIND, KEY, ID, MOST, FOURTH, FIFTH = (
    f"$1::{TEXT}", f"$2::{TEXT}", "$2::bigint", "$3::bigint", f"$4::{TEXT}", f"$5::{TEXT}",
)  # fmt: skip
IN_SPACE = f"""
SELECT r FROM {{schema}}.twiceproof_records AS r
WHERE (space, kind, key) {GT} ({FOURTH}, {KIND}, {KEY}) AND (space, kind) {LE} ({FOURTH}, {KIND}){{narrow}}
ORDER BY space, kind, key LIMIT {MOST}"""  # noqa: S608 - constants
# In a wrap that no index is made for: the server would read all that is in this state, to find the space in it.
NARROW = f" AND coalesce(state {EQ} {FIFTH}, false)"


def _in_state(what: str, state: str) -> str:
    return f"""
SELECT {what} FROM {{schema}}.twiceproof_records AS r
WHERE (kind, state, id) {GT} ({KIND}, {state}, {ID}) AND (kind, state) {LE} ({KIND}, {state}) AND id {GT} 0
ORDER BY kind, state, id LIMIT {MOST}"""  # noqa: S608 - constants


IN_STATE = _in_state("r", FOURTH)
# A kind has a handful of states, each of which the index has in the order of ids.
IN_KIND = f"""
WITH RECURSIVE states (state) AS (
    (SELECT state FROM {{schema}}.twiceproof_records WHERE kind {EQ} {KIND} AND id {GT} 0 ORDER BY kind, state LIMIT 1)
    UNION ALL
    SELECT (
        SELECT state FROM {{schema}}.twiceproof_records
        WHERE (kind, state) {GT} ({KIND}, states.state) AND kind {LE} {KIND} AND id {GT} 0 ORDER BY kind, state LIMIT 1
    ) FROM states WHERE states.state IS NOT NULL
)
SELECT r FROM {{schema}}.twiceproof_records AS r WHERE id {EQ} ANY (ARRAY(
    SELECT id FROM states, LATERAL ({_in_state("id", "states.state")}) AS part
    WHERE states.state IS NOT NULL ORDER BY id LIMIT {MOST}
))"""  # noqa: S608 - constants


class Scan:
    """One page: what to ask, and what the rows mean."""

    def __init__(
        self, kind: str, space: str | None, state: str | None, after: str | None, limit: int, *, schema: str = SCHEMA
    ) -> None:  # fmt: skip
        self._by_key = space is not None
        self._limit = limit
        met = after_key(after) if self._by_key else str(after_id(after))
        narrow = [given for given in (space, state) if given is not None]
        self.values = [text.encode() for text in (kind, met, str(limit + 1), *narrow)]
        rows = self._rows(state)
        page = PAGE.replace("{rows}", rows).replace("{order}", BY_KEY if self._by_key else BY_ID)
        self.sql = in_schema(page, schema)

    def _rows(self, state: str | None) -> str:
        if self._by_key:
            return IN_SPACE.replace("{narrow}", "" if state is None else NARROW)
        return IN_KIND if state is None else IN_STATE

    def page(self, rows: Sequence[Sequence[bytes | None]]) -> Page:
        now = float(rows[0][0] or 0)
        there = [(ident, text) for _, ident, text in rows if ident is not None and text is not None]
        records = [decode_record(text) for _, text in there[: self._limit]]
        if len(there) <= self._limit:
            return Page(records, None, now)
        last = records[-1].at.key
        return Page(records, cursor_of_key(last) if self._by_key else there[self._limit - 1][0].decode(), now)
