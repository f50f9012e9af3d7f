"""A simulator of Dataverse's Web API: rows by alternate key, conditions, ETags, lists, codes of errors, throttling.

It does what Microsoft's documents say of version 9.2 (read in November 2026). The service itself was not at hand.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from operator import eq, gt
from typing import Any
from uuid import UUID

from msgspec import Struct

from .server import SimulatedAnswer, SimulatedRequest, Simulator

__all__ = ["DataverseSimulator"]

ROOT = "/api/data/v9.2/"
_ROW = re.compile(r"(?P<table>\w+)\((?P<key>.*)\)")
_PART = re.compile(r"(\w+)=(?:'((?:[^']|'')*)'|(\d+))(?:,|$)")
_WORD = re.compile(r"\s*(?:(?P<text>'(?:[^']|'')*')|(?P<other>[()]|[^\s()]+))")
UNUSABLE = re.compile(r"[/<>*%&:\\?+]")
NOT_TEXT = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f]")  # what XML has no place for

_Row = dict[str, Any]
_Test = Callable[[_Row], bool]


class StoredRow(Struct):
    """One row. `version` grows with each change of any row, as a rowversion does."""

    id: str
    values: dict[str, Any]
    version: int
    created: float = 0.0
    modified: float = 0.0

    @property
    def etag(self) -> str:
        return f'W/"{self.version}"'

    @property
    def stamps(self) -> dict[str, str]:
        """In whole seconds, as the service has them."""
        return {"createdon": _moment(self.created), "modifiedon": _moment(self.modified)}

    def shown(self, chosen: str) -> dict[str, Any]:
        """All columns, or the chosen ones."""
        every = {**self.values, **self.stamps} if chosen else self.values
        values = {name: every.get(name) for name in chosen.split(",")} if chosen else every
        return {"@odata.etag": self.etag, **values}


class DataverseSimulator(Simulator):
    """`tables` names for each entity set the columns of its alternate key. `key_states` may say `Pending` or `Failed`.

    `columns` are the other columns of each table, for its description. `throttle(seconds)` answers the next request
    with 429. `rows(table)` are the rows as they are. `settings` are further properties of the tables' description.
    """

    def __init__(
        self,
        tables: Mapping[str, Sequence[str]],
        *,
        key_states: Mapping[str, str] | None = None,
        token: str = "",
        columns: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        super().__init__()
        self._keys = {table: tuple(columns) for table, columns in tables.items()}
        self._states = dict(key_states or {})
        self._columns = dict(columns or {})
        self.settings: dict[str, Any] = {"IsOptimisticConcurrencyEnabled": True, "TableType": "Standard"}
        self.requests_left = 6_000
        self._rows: dict[str, dict[tuple[Any, ...], StoredRow]] = {table: {} for table in tables}
        self._token = token
        self._version = 1_000

    def rows(self, table: str) -> list[dict[str, Any]]:
        return [dict(row.values) for row in self._rows[table].values()]

    def insert(self, table: str, values: Mapping[str, Any]) -> None:
        """Create a row as another program would."""
        self._rows[table][self._place(table, values)] = self._new(dict(values))

    def throttle(self, seconds: int, method: str = "PATCH") -> None:
        told = {"error": {"code": "0x80072322", "message": "Number of requests exceeded the limit of 6000."}}
        self.refuse(method, SimulatedAnswer(429, told, {"Retry-After": str(seconds)}))

    def handle(self, request: SimulatedRequest) -> SimulatedAnswer:
        if self._token and request.headers.get("authorization") != f"Bearer {self._token}":
            return _error(401, "0x80040200", "The token is not valid.")
        name = request.path.removeprefix(ROOT)
        if name == "EntityDefinitions":
            return self._definitions(request)
        if name in self._keys:
            return self._post(name, request) if request.method == "POST" else self._list(name, request)
        found = _ROW.fullmatch(name)
        if found is None or found["table"] not in self._keys:
            return _error(404, "0x80060888", f"Resource not found for the segment '{name}'.")
        key = self._key(found["table"], found["key"])
        if isinstance(key, SimulatedAnswer):
            return key
        handlers = {"GET": self._get, "PATCH": self._patch, "DELETE": self._delete}
        return handlers[request.method](found["table"], key, request)

    def _definitions(self, request: SimulatedRequest) -> SimulatedAnswer:
        wanted = re.search(r"EntitySetName eq '(\w+)'", request.query.get("$filter", ""))
        table = wanted[1] if wanted else ""
        left = {"x-ms-ratelimit-burst-remaining-xrm-requests": str(self.requests_left)}
        if table not in self._keys:
            return SimulatedAnswer(200, {"value": []}, left)
        state = self._states.get(table, "Active")
        keys = [{"KeyAttributes": list(self._keys[table]), "EntityKeyIndexStatus": state}] if self._keys[table] else []
        there = [{"LogicalName": name} for name in (*self._keys[table], *self._columns.get(table, ()))]
        entity = {"LogicalName": table.rstrip("s"), "Keys": keys, "Attributes": there, **self.settings}
        return SimulatedAnswer(200, {"value": [entity]}, left)

    def _key(self, table: str, text: str) -> dict[str, Any] | SimulatedAnswer:
        parts = {
            name: int(number) if number else words.replace("''", "'") for name, words, number in _PART.findall(text)
        }
        if set(parts) != set(self._keys[table]) or self._states.get(table, "Active") != "Active":
            return _error(400, "0x80060886", "The specified key attributes are not a defined key for the entity.")
        if any(isinstance(value, str) and UNUSABLE.search(value) for value in parts.values()):
            return _error(400, "0x80060888", "Bad Request - Error in query syntax.")
        return parts

    # -- reading ---------------------------------------------------------------------------------

    def _get(self, table: str, key: dict[str, Any], request: SimulatedRequest) -> SimulatedAnswer:
        row = self._find(table, key)
        if row is None:
            return _missing(table)
        return SimulatedAnswer(200, row.shown(request.query.get("$select", "")), {"ETag": row.etag})

    def _list(self, table: str, request: SimulatedRequest) -> SimulatedAnswer:
        """Filters by comparisons with `and`, `or` and brackets; `$orderby` and `$top`."""
        query = request.query
        test = _Filter(query["$filter"]).test() if "$filter" in query else lambda row: True
        found = [row for row in self._rows[table].values() if test(row.values)]
        order = query.get("$orderby", "").split(",") if query.get("$orderby") else []
        found.sort(key=lambda row: [_folded(row.values.get(name)) for name in order])
        chosen = found[: int(query.get("$top", "5000"))]
        return SimulatedAnswer(200, {"value": [row.shown(query.get("$select", "")) for row in chosen]})

    # -- writing ---------------------------------------------------------------------------------

    def _post(self, table: str, request: SimulatedRequest) -> SimulatedAnswer:
        key = {name: request.json.get(name) for name in self._keys[table]}
        if key and self._find(table, key) is not None:
            return _error(412, "0x80060892", "A record with matching key values already exists.")
        row = self._new({})
        refused = self._put(row, request.json)
        if refused is None:
            self._rows[table][self._place(table, row.values)] = row
        return refused or self._written(table, row, request, created=True)

    def _patch(self, table: str, key: dict[str, Any], request: SimulatedRequest) -> SimulatedAnswer:
        row = self._find(table, key)
        condition = request.headers.get("if-match", "")
        if row is None and condition:
            return _missing(table)  # If-Match: * never creates
        if row is not None and request.headers.get("if-none-match") == "*":
            return _error(412, "0x80060892", "A record with matching key values already exists.")
        if row is not None and condition not in ("", "*", row.etag):
            return _changed()
        written = row or self._new(dict(key))
        refused = self._put(written, request.json)
        if refused is None:
            self._rows[table][self._place(table, key)] = written
        return refused or self._written(table, written, request, created=row is None)

    def _put(self, row: StoredRow, values: Mapping[str, Any]) -> SimulatedAnswer | None:
        """Texts lose blanks at their end, and empty ones become null. Some characters are refused."""
        if any(isinstance(value, str) and NOT_TEXT.search(value) for value in values.values()):
            return _error(400, "0x80040203", "Invalid character in field.")
        self._version += 1
        row.values.update(
            {name: (value.rstrip(" ") or None) if isinstance(value, str) else value for name, value in values.items()}
        )
        row.version, row.modified = self._version, self.now()
        return None

    def _delete(self, table: str, key: dict[str, Any], request: SimulatedRequest) -> SimulatedAnswer:
        row = self._find(table, key)
        if row is None:
            return _missing(table)
        if request.headers.get("if-match", "") not in ("", "*", row.etag):
            return _changed()
        del self._rows[table][self._place(table, key)]
        return SimulatedAnswer(204)

    def _written(self, table: str, row: StoredRow, request: SimulatedRequest, *, created: bool) -> SimulatedAnswer:
        address = {"OData-EntityId": f"{self.url}{ROOT}{table}({row.id})"}
        if request.headers.get("prefer") != "return=representation":
            return SimulatedAnswer(204, None, address)
        shown = row.shown(request.query.get("$select", ""))
        return SimulatedAnswer(201 if created else 200, shown, {**address, "ETag": row.etag})

    # -- rows ------------------------------------------------------------------------------------

    def _place(self, table: str, values: Mapping[str, Any]) -> tuple[Any, ...]:
        """Texts are compared without case, as the service's collation does."""
        return tuple(_folded(values.get(column)) for column in self._keys[table])

    def _find(self, table: str, key: Mapping[str, Any]) -> StoredRow | None:
        return self._rows[table].get(self._place(table, key))

    def _new(self, values: dict[str, Any]) -> StoredRow:
        self._version += 1
        now = self.now()
        return StoredRow(str(UUID(int=self._version)), values, self._version, now, now)


class _Filter:
    """Reads `a eq 'x' and (b gt 1 or c ne null)`."""

    def __init__(self, text: str) -> None:
        self._words = [found["text"] or found["other"] for found in _WORD.finditer(text)]

    def test(self) -> _Test:
        return self._any()

    def _any(self) -> _Test:
        parts = self._joined("or", self._every)
        return lambda row: any(part(row) for part in parts)

    def _every(self) -> _Test:
        parts = self._joined("and", self._one)
        return lambda row: all(part(row) for part in parts)

    def _joined(self, word: str, part: Callable[[], _Test]) -> list[_Test]:
        parts = [part()]
        while self._words and self._words[0] == word:
            self._words.pop(0)
            parts.append(part())
        return parts

    def _one(self) -> _Test:
        if self._words[0] == "(":
            self._words.pop(0)
            inner = self._any()
            self._words.pop(0)
            return inner
        column, verb, text = (self._words.pop(0) for _ in range(3))
        return lambda row: _compared(_folded(row.get(column)), verb, _folded(_value(text)))


def _compared(found: Any, verb: str, wanted: Any) -> bool:
    if verb == "ne":
        return bool(found != wanted)
    if found is None or wanted is None:
        return found is wanted and verb == "eq"
    return bool({"eq": eq, "gt": gt}[verb](found, wanted))


def _value(text: str) -> Any:
    if text.startswith("'"):
        return text[1:-1].replace("''", "'")
    return None if text == "null" else float(text)


def _folded(value: Any) -> Any:
    return value.casefold() if isinstance(value, str) else value


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _changed() -> SimulatedAnswer:
    told = "The version of the existing record doesn't match the RowVersion property provided."
    return _error(412, "0x80060882", told)


def _missing(table: str) -> SimulatedAnswer:
    return _error(404, "0x80040217", f"A record with the specified key values does not exist in {table} entity")


def _error(status: int, code: str, told: str) -> SimulatedAnswer:
    return SimulatedAnswer(status, {"error": {"code": code, "message": told}})
