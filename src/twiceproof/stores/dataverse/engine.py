"""DataverseEngine: claims as rows of a Dataverse table, by its Web API. Checked against our simulator.

The table has an alternate key. A row is created by PATCH with `If-None-Match: *`, which never updates, and changed with
`If-Match` and its ETag. The ETag is the row's version number, which the database draws from one counter for all rows:
it is used as version and as fence. Times are the service's `createdon` and `modifiedon`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import quote, urlsplit

from ...clock import Clock, system_clock
from ...errors import Misuse
from ..base import Finding, StorePromises
from ..rest import RestAnswer, RestClient, ServiceUrl, quoted_text, refusal
from ..rest_engine import RestEngine
from ..service_rows import COLUMNS, GONE, STALE, RowPage, RowRefused, ServiceRow, as_text
from .doctor import examine, refuse_unsafe

__all__ = ["DataverseEngine", "DataverseTable"]

EXAMPLE = "dataverse://APPLICATION@shop.crm4.dynamics.com/new_claims?tenant=TENANT"
OPTIONS = ("tenant", "prefix", "login")
API = "/api/data/v9.2"
HEADERS = {"OData-Version": "4.0", "OData-MaxVersion": "4.0"}
STAMPS = ("createdon", "modifiedon")
EXISTS = ("0x80060892", "0x80040237")  # a row with this key exists
MISSING, PRECONDITION = 404, 412
MOST_ROWS = 1_000  # in one answer
ETAG = re.compile(r'W/"(\d{1,19})"')
TABLE = re.compile(r"([a-z][a-z0-9]*_)[A-Za-z0-9_]+")


class DataverseTable:
    """The rows of one table: `RowService` by the Web API."""

    def __init__(self, client: RestClient, table: str, prefix: str) -> None:
        self.client = client
        self.table = table
        self.prefix = prefix
        self._select = ",".join([*(f"{prefix}{name}" for name in COLUMNS), *STAMPS])

    def create(self, values: Mapping[str, Any]) -> ServiceRow | None:
        key = str(values["key"])
        answer = self._patch(key, {"If-None-Match": "*"}, {n: v for n, v in values.items() if n != "key"})
        if answer.status == PRECONDITION and answer.code in EXISTS:
            return None
        return self._written(key, answer, values)

    def find(self, key: str) -> tuple[ServiceRow | None, float]:
        answer = self.client.call("GET", self._path(key), params={"$select": self._select}, headers=HEADERS)
        if answer.status == MISSING:
            return None, answer.now
        if not answer.ok:
            raise refusal(answer, f"reading a row of {self.table}")
        return self._row(answer.body, answer.now), answer.now

    def change(self, key: str, handle: tuple[str, str], values: Mapping[str, Any]) -> ServiceRow | RowRefused:
        answer = self._patch(key, {"If-Match": handle[1]}, values)
        return _refused(answer) or self._written(key, answer, values)

    def remove(self, key: str, handle: tuple[str, str]) -> float | RowRefused:
        answer = self.client.call("DELETE", self._path(key), headers={**HEADERS, "If-Match": handle[1]})
        refused = _refused(answer)
        if refused is None and not answer.ok:
            raise refusal(answer, f"removing a row of {self.table}")
        return refused or answer.now

    def page(self, kind: str, space: str | None, state: str | None, after: str | None, limit: int) -> RowPage:
        column = self.prefix
        wanted = [f"{column}kind eq {quoted_text(kind)}"]
        if space is not None:
            wanted.append(f"{column}space eq {quoted_text(space)}")
        if state is not None:
            text = as_text(state)
            wanted.append(f"{column}state eq {'null' if text is None else quoted_text(text)}")
        if after is not None:
            wanted.append(f"{column}key gt {quoted_text(after)}")
        most = min(limit, MOST_ROWS)
        rows, now = self._list(wanted, f"{column}key", most)
        return RowPage(rows, str(rows[-1].values["key"]) if len(rows) == most else None, now)

    def waiting(self, kind: str, after: str | None, limit: int) -> RowPage:
        """Sorted by `due` and then by key; a cursor is both."""
        column = self.prefix
        wanted = [f"{column}kind eq {quoted_text(kind)}", f"{column}due ne null"]
        if after is not None:
            due, _, key = after.partition(" ")
            same = f"{column}due eq {due} and {column}key gt {quoted_text(key)}"
            wanted.append(f"({column}due gt {due} or ({same}))")
        rows, now = self._list(wanted, f"{column}due,{column}key", limit)
        last = rows[-1].values if len(rows) == limit else None
        return RowPage(rows, None if last is None else f"{last['due']!r} {last['key']}", now)

    def _list(self, wanted: Sequence[str], order: str, most: int) -> tuple[list[ServiceRow], float]:
        params = {"$select": self._select, "$filter": " and ".join(wanted), "$orderby": order, "$top": str(most)}
        answer = self.client.require("GET", f"{API}/{self.table}", params=params, headers=HEADERS)
        return [self._row(row, answer.now) for row in answer.body["value"]], answer.now

    def _patch(self, key: str, condition: Mapping[str, str], values: Mapping[str, Any]) -> RestAnswer:
        """Write a row without the key's column: on creation a value in the body would override the one in the
        address.
        """
        headers = {**HEADERS, "Prefer": "return=representation", **condition}
        body = {f"{self.prefix}{name}": value for name, value in values.items()}
        params = {"$select": ",".join(STAMPS)}
        return self.client.call("PATCH", self._path(key), params=params, json=body, headers=headers)

    def _path(self, key: str) -> str:
        return f"{API}/{self.table}({self.prefix}key={quote(quoted_text(key), safe='')})"

    def _written(self, key: str, answer: RestAnswer, values: Mapping[str, Any]) -> ServiceRow:
        if not answer.ok:
            raise refusal(answer, f"writing a row of {self.table}")
        given = {f"{self.prefix}{name}": value for name, value in values.items()}
        return self._row({**given, **answer.body, f"{self.prefix}key": key}, answer.now)

    def _row(self, body: Mapping[str, Any], now: float) -> ServiceRow:
        etag = str(body["@odata.etag"])
        number = ETAG.fullmatch(etag)
        if number is None:
            raise Misuse(
                f"{self.table} has ETags without a version number, as elastic tables do; use a standard table."
            )
        values = {name: body.get(f"{self.prefix}{name}") for name in COLUMNS}
        created, modified = (datetime.fromisoformat(body[name]).timestamp() for name in STAMPS)
        return ServiceRow(values, ("", etag), number[1], int(number[1]), created, modified, now)

    def close(self) -> None:
        self.client.close()

    def abandon(self) -> None:
        self.client.abandon()


def _refused(answer: RestAnswer) -> RowRefused | None:
    """412 has two meanings, which the error's code distinguishes. Other OData servers have no such codes."""
    if answer.status == MISSING:
        return GONE
    return STALE if answer.status == PRECONDITION and answer.code not in EXISTS else None


class DataverseEngine(RestEngine):
    """A ledger of claims in a table of Dataverse."""

    promises = StorePromises(
        "left to the service", "left to the service", "the service's", "2", "2", "our simulator only"
    )
    body_limit = 1_000_000  # a column of several lines has 1,048,576 characters

    def __init__(self, url: str, *, clock: Clock = system_clock) -> None:
        target = ServiceUrl.of(urlsplit(url), legal=OPTIONS, example=EXAMPLE)
        named = TABLE.fullmatch(target.path[0])
        if named is None or len(target.path) > 1:
            raise Misuse(
                f"The store's URL names a table by its entity set, such as new_claims; write it like {EXAMPLE}"
            )
        client = RestClient(target.base, target.sign_in(f"{target.base}/.default"), clock=clock)
        self.rows = DataverseTable(client, target.path[0], target.options.get("prefix", named[1]))
        super().__init__(self.rows, clock=clock)
        try:
            refuse_unsafe(self.rows)
            self.ask_time()
        except BaseException:
            self.close()
            raise

    def examine(self) -> Sequence[Finding]:
        return examine(self.rows)
