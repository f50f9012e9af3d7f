"""Tables of Airtable, Google Sheets and SharePoint lists: find rows by a key, and create one.

Airtable and Google Sheets have no unique columns, so nothing there prevents a second row; `table.find_or_create` guards
it with a claim. A SharePoint list can have one (`unique=True`), which decides atomically. Checked against our
simulators.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

from msgspec import Struct

from ..errors import Misuse, NotDone
from .json_api import ApiAnswer, JsonApi, Token, encoded, json_api

__all__ = [
    "AirtableTable",
    "RowTable",
    "SharePointList",
    "SheetTable",
    "StoredTableRow",
    "airtable",
    "sharepoint",
    "sheets",
]

AIRTABLE, SHEETS, GRAPH = "https://api.airtable.com", "https://sheets.googleapis.com", "https://graph.microsoft.com"
AIRTABLE_PAUSE = 30.0  # seconds that Airtable demands after a 429
MOST_FOUND = 100  # rows of one key that are read: several are too many in any case
NAME = re.compile(r"[^\x00-\x1f{}'\"\\]{1,200}")


class StoredTableRow(Struct, frozen=True):
    """A row that was found. The first of several is the oldest."""

    id: str
    values: dict[str, Any]


class RowTable(Protocol):
    """What `table.find_or_create` needs of a table. `unique`: the service itself refuses a second row with this key."""

    @property
    def name(self) -> str: ...

    @property
    def unique(self) -> bool: ...

    @property
    def timeout(self) -> float: ...

    def find(self, key: Mapping[str, Any]) -> list[StoredTableRow]:
        """Return the rows with these values, the oldest first. Raises what `JsonApi.require` raises."""

    def create(self, values: Mapping[str, Any], effect_key: str) -> str:
        """Create a row in one request, which carries the effect key in a header, and return its id."""


def airtable(base: str, table: str, *, auth: Token, url: str = AIRTABLE, timeout: float = 30.0) -> AirtableTable:
    """Return a table of a base (`appXXXX`), by its name or id."""
    return AirtableTable(json_api(url, auth, timeout=timeout), _named(base), _named(table))


def sheets(spreadsheet: str, sheet: str, *, auth: Token, url: str = SHEETS, timeout: float = 30.0) -> SheetTable:
    """Return a sheet of a Google spreadsheet. Its first row has the names of the columns."""
    return SheetTable(json_api(url, auth, timeout=timeout), _named(spreadsheet), _named(sheet))


def sharepoint(
    site: str, items: str, *, auth: Token, unique: bool = False, url: str = GRAPH, timeout: float = 30.0
) -> SharePointList:
    """Return a list of a SharePoint site, by their ids or names in Microsoft Graph.

    `unique=True` says that the key's column is indexed and enforces unique values: a second row is then refused by
    SharePoint itself. Column names are the internal ones.
    """
    return SharePointList(json_api(url, auth, timeout=timeout), _named(site), _named(items), unique)


class _ApiTable(Struct, frozen=True):
    """A table behind an API: `base` is its base, spreadsheet or site, `table` its own name."""

    api: JsonApi
    base: str
    table: str
    unique: bool = False

    service: ClassVar[str]

    @property
    def name(self) -> str:
        return f"{self.service}/{self.base}/{self.table}"

    @property
    def timeout(self) -> float:
        return self.api.timeout


class AirtableTable(_ApiTable, frozen=True):
    """`airtable(…)`. It has no unique columns: upserts by `performUpsert` can create two rows, too."""

    service: ClassVar[str] = "airtable"

    def find(self, key: Mapping[str, Any]) -> list[StoredTableRow]:
        same = ",".join(f"{{{_named(column)}}}={_formula_value(value)}" for column, value in key.items())
        params = {"filterByFormula": f"AND({same})", "pageSize": str(MOST_FOUND)}
        found = self._require("GET", params=params).body["records"]
        rows = sorted(found, key=lambda one: (one["createdTime"], one["id"]))
        return [StoredTableRow(one["id"], one["fields"]) for one in rows]

    def create(self, values: Mapping[str, Any], effect_key: str) -> str:
        answer = self._require("POST", json={"records": [{"fields": dict(values)}]}, effect_key=effect_key)
        return str(answer.body["records"][0]["id"])

    def _require(self, method: str, **given: Any) -> ApiAnswer:
        path = f"/v0/{encoded(self.base)}/{encoded(self.table)}"
        return self.api.settle(self.api.call(method, path, **given), f"{method} {self.name}", wait=AIRTABLE_PAUSE)


class SheetTable(_ApiTable, frozen=True):
    """`sheets(…)`. Values are written as they are: a text that begins with `=` does not become a formula."""

    service: ClassVar[str] = "sheets"

    def find(self, key: Mapping[str, Any]) -> list[StoredTableRow]:
        """Return rows by their numbers. A number holds until rows are sorted or removed."""
        lines = self._lines("")
        columns = self._columns(lines, key)
        rows = [StoredTableRow(str(at), dict(zip(columns, line, strict=False))) for at, line in enumerate(lines, 1)]
        return [row for row in rows[1:] if all(str(row.values.get(name, "")) == str(key[name]) for name in key)]

    def create(self, values: Mapping[str, Any], effect_key: str) -> str:
        columns = self._columns(self._lines("!1:1"), values)
        line = [values.get(name, "") for name in columns]
        params = {"valueInputOption": "RAW", "insertDataOption": "INSERT_ROWS"}
        given = {"params": params, "json": {"values": [line]}, "effect_key": effect_key}
        answer = self.api.require("POST", f"{self._path('')}:append", **given)
        found = re.search(r"![A-Z]+([0-9]+)", str(answer.body["updates"]["updatedRange"]))
        return found[1] if found else ""

    def _lines(self, part: str) -> list[list[Any]]:
        params = {"majorDimension": "ROWS", "valueRenderOption": "UNFORMATTED_VALUE"}
        found: list[list[Any]] = self.api.require("GET", self._path(part), params=params).body.get("values", [])
        return found

    def _columns(self, lines: list[list[Any]], wanted: Mapping[str, Any]) -> list[str]:
        columns = [str(name) for name in lines[0]] if lines else []
        missing = sorted(set(wanted) - set(columns))
        if missing:
            raise NotDone(f"{self.name} has no column {', '.join(missing)} in its first row; add it there.", final=True)
        return columns

    def _path(self, part: str) -> str:
        return f"/v4/spreadsheets/{encoded(self.base)}/values/{encoded(self.table + part)}"


class SharePointList(_ApiTable, frozen=True):
    """`sharepoint(…)`, by Microsoft Graph."""

    service: ClassVar[str] = "sharepoint"

    def find(self, key: Mapping[str, Any]) -> list[StoredTableRow]:
        same = " and ".join(f"fields/{_named(column)} eq {_odata_value(value)}" for column, value in key.items())
        params = {"$expand": "fields", "$filter": same, "$top": str(MOST_FOUND)}
        found = self.api.require("GET", self._path, params=params).body["value"]
        rows = sorted(found, key=lambda one: int(one["id"]))
        return [StoredTableRow(str(one["id"]), one["fields"]) for one in rows]

    def create(self, values: Mapping[str, Any], effect_key: str) -> str:
        answer = self.api.require("POST", self._path, json={"fields": dict(values)}, effect_key=effect_key)
        return str(answer.body["id"])

    @property
    def _path(self) -> str:
        return f"/v1.0/sites/{encoded(self.base)}/lists/{encoded(self.table)}/items"


def _named(text: str) -> str:
    if not isinstance(text, str) or not NAME.fullmatch(text):
        raise Misuse(f"{text!r} is not the name of a table or column; quotes, braces and backslashes cannot be used.")
    return text


def _formula_value(value: Any) -> str:
    """A value in a formula of Airtable."""
    if isinstance(value, str):
        return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
    return str(value)


def _odata_value(value: Any) -> str:
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else str(value)
