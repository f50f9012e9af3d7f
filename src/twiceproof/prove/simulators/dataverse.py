"""A simulator of Dataverse's Web API: rows by alternate key, conditions, ETags, codes of errors, throttling.

It does what Microsoft's documents say of version 9.2 (read in November 2026). The service itself was not at hand.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from msgspec import Struct

from .server import SimulatedAnswer, SimulatedRequest, Simulator

__all__ = ["DataverseSimulator"]

ROOT = "/api/data/v9.2/"
_ROW = re.compile(r"(?P<table>\w+)\((?P<key>.*)\)")
_PART = re.compile(r"(\w+)=(?:'((?:[^']|'')*)'|(\d+))(?:,|$)")
UNUSABLE = re.compile(r"[/<>*%&:\\?+]")


class StoredRow(Struct):
    """One row. `version` grows with each change of any row, as a rowversion does."""

    id: str
    values: dict[str, Any]
    version: int

    @property
    def etag(self) -> str:
        return f'W/"{self.version}"'


class DataverseSimulator(Simulator):
    """`tables` names for each entity set the columns of its alternate key. `key_states` may say `Pending` or `Failed`.

    `throttle(seconds)` answers the next request with 429. `rows(table)` are the rows as they are.
    """

    def __init__(
        self, tables: Mapping[str, Sequence[str]], *, key_states: Mapping[str, str] | None = None, token: str = ""
    ) -> None:
        super().__init__()
        self._keys = {table: tuple(columns) for table, columns in tables.items()}
        self._states = dict(key_states or {})
        self._rows: dict[str, list[StoredRow]] = {table: [] for table in tables}
        self._token = token
        self._version = 1_000

    def rows(self, table: str) -> list[dict[str, Any]]:
        return [dict(row.values) for row in self._rows[table]]

    def insert(self, table: str, values: Mapping[str, Any]) -> None:
        """What somebody else creates."""
        self._insert(table, dict(values))

    def throttle(self, seconds: int, method: str = "PATCH") -> None:
        told = {"error": {"code": "0x80072322", "message": "Number of requests exceeded the limit of 6000."}}
        self.refuse(method, SimulatedAnswer(429, told, {"Retry-After": str(seconds)}))

    def handle(self, request: SimulatedRequest) -> SimulatedAnswer:
        if self._token and request.headers.get("authorization") != f"Bearer {self._token}":
            return _error(401, "0x80040200", "The token is not valid.")
        name = request.path.removeprefix(ROOT)
        if name == "EntityDefinitions":
            return self._definitions(request)
        found = _ROW.fullmatch(name)
        if found is None or found["table"] not in self._keys:
            return _error(404, "0x80060888", f"Resource not found for the segment '{name}'.")
        key = self._key(found["table"], found["key"])
        if isinstance(key, SimulatedAnswer):
            return key
        return {"GET": self._get, "PATCH": self._patch}[request.method](found["table"], key, request)

    def _definitions(self, request: SimulatedRequest) -> SimulatedAnswer:
        wanted = re.search(r"EntitySetName eq '(\w+)'", request.query.get("$filter", ""))
        table = wanted[1] if wanted else ""
        if table not in self._keys:
            return SimulatedAnswer(200, {"value": []})
        state = self._states.get(table, "Active")
        keys = [{"KeyAttributes": list(self._keys[table]), "EntityKeyIndexStatus": state}]
        return SimulatedAnswer(200, {"value": [{"LogicalName": table.rstrip("s"), "Keys": keys}]})

    def _key(self, table: str, text: str) -> dict[str, Any] | SimulatedAnswer:
        parts = {
            name: int(number) if number else words.replace("''", "'") for name, words, number in _PART.findall(text)
        }
        if set(parts) != set(self._keys[table]) or self._states.get(table, "Active") != "Active":
            return _error(400, "0x80060886", "The specified key attributes are not a defined key for the entity.")
        if any(isinstance(value, str) and UNUSABLE.search(value) for value in parts.values()):
            return _error(400, "0x80060888", "Bad Request - Error in query syntax.")
        return parts

    def _get(self, table: str, key: dict[str, Any], request: SimulatedRequest) -> SimulatedAnswer:
        row = self._find(table, key)
        if row is None:
            return _missing(table)
        return SimulatedAnswer(200, {"@odata.etag": row.etag, **row.values}, {"ETag": row.etag})

    def _patch(self, table: str, key: dict[str, Any], request: SimulatedRequest) -> SimulatedAnswer:
        row = self._find(table, key)
        condition = request.headers.get("if-match", "")
        if row is None and condition:
            return _missing(table)  # If-Match: * never creates
        if row is not None and request.headers.get("if-none-match") == "*":
            return _error(412, "0x80060892", "A record with matching key values already exists.")
        if row is not None and condition not in ("", "*", row.etag):
            told = "The version of the existing record doesn't match the RowVersion property provided."
            return _error(412, "0x80060882", told)
        created = row is None
        row = row or self._insert(table, dict(key))
        self._version += 1
        row.values.update(request.json)
        row.version = self._version
        return self._written(table, row, request, created=created)

    def _written(self, table: str, row: StoredRow, request: SimulatedRequest, *, created: bool) -> SimulatedAnswer:
        address = {"OData-EntityId": f"{self.url}{ROOT}{table}({row.id})"}
        if request.headers.get("prefer") != "return=representation":
            return SimulatedAnswer(204, None, address)
        chosen = request.query.get("$select", "")
        values = {name: row.values.get(name) for name in (chosen.split(",") if chosen else row.values)}
        return SimulatedAnswer(
            201 if created else 200, {"@odata.etag": row.etag, **values}, {**address, "ETag": row.etag}
        )

    def _find(self, table: str, key: Mapping[str, Any]) -> StoredRow | None:
        """Texts are compared without case, as the service's collation does."""
        for row in self._rows[table]:
            if all(_folded(row.values.get(column)) == _folded(value) for column, value in key.items()):
                return row
        return None

    def _insert(self, table: str, values: dict[str, Any]) -> StoredRow:
        self._version += 1
        row = StoredRow(str(UUID(int=self._version)), values, self._version)
        self._rows[table].append(row)
        return row


def _folded(value: Any) -> Any:
    return value.casefold() if isinstance(value, str) else value


def _missing(table: str) -> SimulatedAnswer:
    return _error(404, "0x80040217", f"A record with the specified key values does not exist in {table} entity")


def _error(status: int, code: str, told: str) -> SimulatedAnswer:
    return SimulatedAnswer(status, {"error": {"code": code, "message": told}})
