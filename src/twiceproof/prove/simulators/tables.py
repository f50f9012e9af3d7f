"""Simulators of Airtable, Google Sheets and SharePoint lists: each creates as many equal rows as it is asked for.

They do what their makers' documents say (read in November 2026); the services themselves were not at hand. Only a
SharePoint list with a unique column refuses a second row, and with the same text as any other bad request.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from .server import SimulatedAnswer, SimulatedRequest, Simulator

__all__ = ["AirtableSimulator", "SharePointSimulator", "SheetsSimulator"]

_SAME = re.compile(r"\{([^}]*)\}=(?:'((?:[^'\\]|\\.)*)'|([^,)]*))")
_EQ = re.compile(r"fields/(\w+) eq (?:'((?:[^']|'')*)'|(\S+))")


class AirtableSimulator(Simulator):
    """One table; `rows` are those in it. `refuse("POST", …)` and `lose_answer("POST")` are its faults."""

    def __init__(self) -> None:
        super().__init__()
        self._records: list[dict[str, Any]] = []

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [record["fields"] for record in self._records]

    def insert(self, values: Mapping[str, Any]) -> None:
        """What somebody else creates."""
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
        return SimulatedAnswer(200, {"records": found[::-1]})  # in the order of a view, which is anything


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
        """What somebody else types in."""
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


class SharePointSimulator(Simulator):
    """One list; `unique` names a column with enforced unique values."""

    def __init__(self, unique: str = "") -> None:
        super().__init__()
        self._unique = unique
        self._items: list[dict[str, Any]] = []

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [item["fields"] for item in self._items]

    def insert(self, values: Mapping[str, Any]) -> bool:
        """What somebody else adds; False if the list refuses it."""
        taken = self._unique and any(row.get(self._unique) == values.get(self._unique) for row in self.rows)
        if not taken:
            self._items.append({"id": str(len(self._items) + 1), "fields": dict(values)})
        return not taken

    def handle(self, request: SimulatedRequest) -> SimulatedAnswer:
        if request.method == "POST":
            if self.insert(request.json["fields"]):
                return SimulatedAnswer(201, self._items[-1])
            told = "One or more fields with unique constraints already has the provided value."
            return SimulatedAnswer(400, {"error": {"code": "invalidRequest", "message": told}})
        wanted = [
            (name, text.replace("''", "'") if text or not other else other)
            for name, text, other in _EQ.findall(request.query["$filter"])
        ]
        found = [one for one in self._items if all(str(one["fields"].get(name, "")) == value for name, value in wanted)]
        return SimulatedAnswer(200, {"value": found[::-1]})
