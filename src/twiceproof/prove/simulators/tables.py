"""Simulators of Airtable, Google Sheets and SharePoint lists: each creates any number of equal rows.

They do what their makers' documents say (read in November 2026); the services themselves were not at hand. Only a
SharePoint list with a unique column refuses a second row, and with the same text as any other bad request.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote
from uuid import UUID

from msgspec import Struct

from .server import SimulatedAnswer, SimulatedRequest, Simulator

__all__ = ["AirtableSimulator", "SharePointSimulator", "SheetsSimulator"]

_SAME = re.compile(r"\{([^}]*)\}=(?:'((?:[^'\\]|\\.)*)'|([^,)]*))")
_EQ = re.compile(r"fields/(\w+) eq (?:'((?:[^']|'')*)'|(\S+))")
_GT = re.compile(r"fields/(\w+) gt (\S+)")
_ITEM = re.compile(r".*/items/(\d+)(/fields)?")
MOST_TEXT = 63_999  # characters in a column of several lines
NOT_TEXT = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f]")


class AirtableSimulator(Simulator):
    """One table; `rows` are those in it. `refuse("POST", …)` and `lose_answer("POST")` are its faults."""

    def __init__(self) -> None:
        super().__init__()
        self._records: list[dict[str, Any]] = []

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [record["fields"] for record in self._records]

    def insert(self, values: Mapping[str, Any]) -> None:
        """Create a row as another program would."""
        number = len(self._records) + 1
        at = f"2026-11-01T{number // 3600:02}:{number // 60 % 60:02}:{number % 60:02}.000Z"
        self._records.append({"id": f"rec{number:014}", "createdTime": at, "fields": dict(values)})

    def handle(self, request: SimulatedRequest) -> SimulatedAnswer:
        if request.method == "POST":
            before = len(self._records)
            for record in request.json["records"]:
                self.insert(record["fields"])
            return SimulatedAnswer(200, {"records": self._records[before:]})
        wanted = [
            (name, _unescaped(text) if text or not other else other)
            for name, text, other in _SAME.findall(request.query["filterByFormula"])
        ]
        found = [
            one for one in self._records if all(str(one["fields"].get(name, "")) == value for name, value in wanted)
        ]
        return SimulatedAnswer(200, {"records": found[::-1]})  # in the order of a view, which is arbitrary


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text)


class SheetsSimulator(Simulator):
    """One sheet, with the names of its columns in the first row."""

    def __init__(self, columns: Sequence[str]) -> None:
        super().__init__()
        self._columns = list(columns)
        self._lines: list[list[Any]] = [list(columns)]

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [dict(zip(self._columns, line, strict=False)) for line in self._lines[1:]]

    def insert(self, values: Mapping[str, Any]) -> None:
        """Add a row as a person would."""
        self._lines.append([values.get(name, "") for name in self._columns])

    def handle(self, request: SimulatedRequest) -> SimulatedAnswer:
        if request.method == "POST":
            if request.query.get("valueInputOption") != "RAW" or not request.path.endswith(":append"):
                return SimulatedAnswer(400, {"error": {"code": 400, "message": "Invalid value input option."}})
            self._lines += request.json["values"]
            last = len(self._lines)
            return SimulatedAnswer(200, {"updates": {"updatedRange": f"Sheet1!A{last}:Z{last}", "updatedRows": 1}})
        lines = self._lines[:1] if request.path.endswith("!1:1") else self._lines
        return SimulatedAnswer(200, {"range": "Sheet1", "majorDimension": "ROWS", "values": lines})


class StoredItem(Struct):
    """One item. Its version grows with each of its changes; its id is never used again."""

    id: int
    fields: dict[str, Any]
    created: float
    modified: float
    version: int = 1

    @property
    def etag(self) -> str:
        return f'"{UUID(int=self.id)},{self.version}"'

    def stamped(self) -> dict[str, Any]:
        stamps = {"Created": _moment(self.created), "Modified": _moment(self.modified)}
        return {"@odata.etag": self.etag, **self.fields, **stamps}

    def shown(self) -> dict[str, Any]:
        return {"id": str(self.id), "eTag": self.etag, "fields": self.stamped()}


class SharePointSimulator(Simulator):
    """One list; `unique` names a column with enforced unique values, `columns` the others, `indexed` those of an index.

    `throttle(seconds)` answers the next request with 429, `throttle(seconds, status=503)` with 503.
    """

    def __init__(self, unique: str = "", *, columns: Sequence[str] = (), indexed: Sequence[str] = ()) -> None:
        super().__init__()
        self._unique = unique
        self._columns = columns
        self._indexed = indexed
        self._items: dict[int, StoredItem] = {}
        self._taken: dict[str, int] = {}
        self._number = 0
        self.units_left = 1_200

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [dict(item.fields) for item in self._items.values()]

    def insert(self, values: Mapping[str, Any]) -> bool:
        """Add an item as another program would; False if the list refuses it."""
        return self._add(values) is not None

    def throttle(self, seconds: int, method: str = "POST", status: int = 429) -> None:
        told = {"error": {"code": "activityLimitReached", "message": "The request has been throttled"}}
        self.refuse(method, SimulatedAnswer(status, told, {"Retry-After": str(seconds)}))

    def handle(self, request: SimulatedRequest) -> SimulatedAnswer:
        if "/lists/" not in request.path:
            return SimulatedAnswer(200, {"id": "shop.sharepoint.com,1,2"})
        found = _ITEM.fullmatch(request.path)
        return self._of_list(request) if found is None else self._of_item(int(found[1]), request)

    def _of_list(self, request: SimulatedRequest) -> SimulatedAnswer:
        if request.path.endswith("/columns"):
            return self._described()
        return self._post(request.json["fields"]) if request.method == "POST" else self._list(request.query)

    def _of_item(self, number: int, request: SimulatedRequest) -> SimulatedAnswer:
        item = self._items.get(number)
        if item is None:
            return _error(404, "itemNotFound", "The specified list item was not found")
        if request.headers.get("if-match", item.etag) not in (item.etag, "*"):
            return _error(412, "notAllowed", "ETag does not match current item's value")
        return self._delete(item) if request.method == "DELETE" else self._patch(item, request)

    def _described(self) -> SimulatedAnswer:
        unique = {"name": self._unique, "enforceUniqueValues": True, "indexed": True}
        others = [{"name": name, "indexed": name in self._indexed} for name in self._columns if name != self._unique]
        limits = {"RateLimit-Limit": "1200", "RateLimit-Remaining": str(self.units_left)}
        return SimulatedAnswer(200, {"value": [*([unique] if self._unique else []), *others]}, limits)

    def _post(self, fields: Mapping[str, Any]) -> SimulatedAnswer:
        item = None if _is_refused(fields) else self._add(fields)
        if item is not None:
            return SimulatedAnswer(201, item.shown())
        told = "One or more fields with unique constraints already has the provided value."
        return _error(400, "invalidRequest", "Invalid field." if _is_refused(fields) else told)

    def _add(self, fields: Mapping[str, Any]) -> StoredItem | None:
        mine = str(fields.get(self._unique, "")).casefold()
        if self._unique and mine in self._taken:
            return None
        self._number += 1
        now = self.now()
        self._items[self._number] = item = StoredItem(self._number, _kept(fields), now, now)
        self._taken[mine] = self._number
        return item

    def _patch(self, item: StoredItem, request: SimulatedRequest) -> SimulatedAnswer:
        if request.method == "GET":
            return SimulatedAnswer(200, item.shown())
        if _is_refused(request.json):
            return _error(400, "invalidRequest", "Invalid field.")
        item.fields.update(_kept(request.json))
        item.version += 1
        item.modified = self.now()
        return SimulatedAnswer(200, item.stamped())

    def _delete(self, item: StoredItem) -> SimulatedAnswer:
        del self._items[item.id]
        self._taken.pop(str(item.fields.get(self._unique, "")).casefold(), None)
        return SimulatedAnswer(204)

    def _list(self, query: Mapping[str, str]) -> SimulatedAnswer:
        """By id, or by a column; the next page begins after the last item of this one."""
        found = self._chosen(query.get("$filter", ""))
        order = query.get("$orderby", "").removeprefix("fields/")
        found.sort(key=lambda item: (item.fields.get(order) or 0.0, item.id) if order else (0.0, item.id))
        if "$skiptoken" in query:
            last = [float(part) for part in b64decode(query["$skiptoken"]).decode().split("&")]
            found = [item for item in found if [item.fields.get(order) or 0.0, item.id] > last]
        most = int(query.get("$top", "200"))
        answer: dict[str, Any] = {"value": [item.shown() for item in found[:most]]}
        if len(found) > most:
            end = found[most - 1]
            token = b64encode(f"{end.fields.get(order) or 0.0!r}&{end.id}".encode()).decode()
            answer["@odata.nextLink"] = f"{self.url}/v1.0/next?$skiptoken={quote(token)}"
        return SimulatedAnswer(200, answer)

    def _chosen(self, wanted: str) -> list[StoredItem]:
        same = [
            (name, text.replace("''", "'") if text or not other else other) for name, text, other in _EQ.findall(wanted)
        ]
        if len(same) == 1 and same[0][0] == self._unique:
            number = self._taken.get(same[0][1].casefold())
            return [] if number is None else [self._items[number]]
        above = [(name, float(text)) for name, text in _GT.findall(wanted)]
        return [
            item
            for item in self._items.values()
            if all(str(item.fields.get(name, "")).casefold() == value.casefold() for name, value in same)
            and all((item.fields.get(name) or 0.0) > value for name, value in above)
        ]


def _is_refused(fields: Mapping[str, Any]) -> bool:
    texts = [value for value in fields.values() if isinstance(value, str)]
    return any(len(text.encode("utf-16-le")) // 2 > MOST_TEXT or NOT_TEXT.search(text) for text in texts)


def _kept(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Texts lose blanks at their ends, and empty ones become null."""
    return {name: (value.strip() or None) if isinstance(value, str) else value for name, value in fields.items()}


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _error(status: int, code: str, told: str) -> SimulatedAnswer:
    return SimulatedAnswer(status, {"error": {"code": code, "message": told}})
