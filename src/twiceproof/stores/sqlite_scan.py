"""Scans of the SQLite store: each page reads no more rows than it shows, however many there are.

An index is named in every statement: statistics of a table that was small must not make it read all of a large one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..records import Page
from .cursors import after_id, after_key, cursor_of_key
from .sqlite_rows import COLUMNS, record_of

__all__ = ["Scan"]

Row = tuple[Any, ...]

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


class Scan:
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
