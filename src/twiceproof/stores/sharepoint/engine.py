"""SharePointEngine: claims as items of a SharePoint list, by Microsoft Graph. Checked against our simulator.

One column is indexed and enforces unique values: a second item with the same key is refused. An item is changed with
`If-Match` and its ETag. Ids of items are never reused, and an item's version grows with each change, so both together
are used as version and fence. Times are the service's own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

from ...clock import Clock, jitter, system_clock
from ...errors import Misuse, StoreFull
from ..base import Finding, NoLedger, StorePromises
from ..rest import RestAnswer, RestClient, ServiceUrl, quoted_text, refusal
from ..rest_engine import RestEngine
from ..service_rows import COLUMNS, GONE, STALE, RowPage, RowRefused, ServiceRow
from .doctor import examine, refuse_unsafe

__all__ = ["LIST_COLUMNS", "SharePointEngine", "SharePointItems"]

EXAMPLE = "sharepoint://APPLICATION@contoso.sharepoint.com/sites/shop/Claims?tenant=TENANT"
OPTIONS = ("tenant", "prefix", "login", "graph")
GRAPH = "https://graph.microsoft.com"
PREFIX = "tp_"
BODIES = ("body", "body2", "body3", "body4")  # a column of several lines has 63,999 characters
IN_ONE = 30_000  # characters of which each may count twice
LIST_COLUMNS = (*COLUMNS, *BODIES[1:])
STAMPS = ("Created", "Modified")
MISSING, CONFLICT, PRECONDITION, BAD_REQUEST = 404, 409, 412, 400
MOST_ITEMS = 200  # in one answer
VERSIONS = 1 << 24  # changes of one item that its fences have room for
ETAG = re.compile(r'"?([0-9A-Fa-f-]+),(\d+)"?')
LAG = (0.05, 0.2, 0.5)  # seconds until the next search for an item that must exist


class SharePointItems:
    """The items of one list: `RowService` by Microsoft Graph."""

    def __init__(self, client: RestClient, site: str, name: str, prefix: str, clock: Clock) -> None:
        self.client = client
        self.prefix = prefix
        self.name = name
        self.path = f"/v1.0/sites/{quote(site, safe=',')}/lists/{quote(name, safe='')}"
        self._clock = clock

    def create(self, values: Mapping[str, Any]) -> ServiceRow | None:
        """Create an item. A refusal does not reliably tell its reason, so the key is looked for."""
        answer = self.client.call("POST", f"{self.path}/items", json={"fields": self._fields(values)})
        if answer.ok:
            return self._row(answer.body["fields"], answer.body["id"], answer.body["eTag"], answer.now)
        if answer.status in (BAD_REQUEST, CONFLICT) and self._is_there(str(values["key"])):
            return None
        raise refusal(answer, f"adding an item to {self.name}")

    def _is_there(self, key: str) -> bool:
        """Whether the item exists. A search may not yet see an item that was just added."""
        for pause in LAG:
            if self.find(key)[0] is not None:
                return True
            self._clock.sleep(jitter(pause))
        return self.find(key)[0] is not None

    def find(self, key: str) -> tuple[ServiceRow | None, float]:
        answer = self._items({"$filter": f"fields/{self.prefix}key eq {quoted_text(key)}", "$top": "2"})
        rows = list(self._rows(answer))
        if len(rows) > 1:
            raise Misuse(f"{self.name} has two items with the key {key!r}; its column is not unique. Run the doctor.")
        return (rows[0] if rows else None), answer.now

    def change(self, key: str, handle: tuple[str, str], values: Mapping[str, Any]) -> ServiceRow | RowRefused:
        path = f"{self.path}/items/{handle[0]}/fields"
        answer = self.client.call("PATCH", path, json=self._fields(values), headers={"If-Match": handle[1]})
        refused = _refused(answer)
        if refused is not None:
            return refused
        if not answer.ok:
            raise refusal(answer, f"changing an item of {self.name}")
        return self._row(answer.body, handle[0], answer.body["@odata.etag"], answer.now)

    def remove(self, key: str, handle: tuple[str, str]) -> float | RowRefused:
        answer = self.client.call("DELETE", f"{self.path}/items/{handle[0]}", headers={"If-Match": handle[1]})
        refused = _refused(answer)
        if refused is None and not answer.ok:
            raise refusal(answer, f"removing an item of {self.name}")
        return refused or answer.now

    def page(self, kind: str, space: str | None, state: str | None, after: str | None, limit: int) -> RowPage:
        """Return items in the order of their ids, those of one space by its index. Any other filter fails in long
        lists.
        """
        params = {"$top": str(min(limit, MOST_ITEMS))}
        if space is not None:
            params["$filter"] = f"fields/{self.prefix}space eq {quoted_text(space)}"
        return self._page(params, after)

    def waiting(self, kind: str, after: str | None, limit: int) -> RowPage:
        column = f"fields/{self.prefix}due"
        return self._page({"$top": str(min(limit, MOST_ITEMS)), "$filter": f"{column} gt 0", "$orderby": column}, after)

    def _page(self, params: Mapping[str, str], after: str | None) -> RowPage:
        answer = self._items({**params, **({} if after is None else {"$skiptoken": after})})
        link = answer.body.get("@odata.nextLink")
        token = None if link is None else parse_qs(urlsplit(link).query)["$skiptoken"][0]
        return RowPage(list(self._rows(answer)), token, answer.now)

    def _items(self, params: Mapping[str, str]) -> RestAnswer:
        return self.client.require("GET", f"{self.path}/items", params={"$expand": "fields", **params})

    def _rows(self, answer: RestAnswer) -> Iterator[ServiceRow]:
        for item in answer.body["value"]:
            yield self._row(item["fields"], item["id"], item["eTag"], answer.now)

    def _fields(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The columns of an item. Long bodies continue in further columns; shorter ones empty them."""
        found = {f"{self.prefix}{name}": value for name, value in values.items() if name != "body"}
        if "body" in values:
            text = values["body"] or ""
            parts = [text[at : at + IN_ONE] or None for at in range(0, IN_ONE * len(BODIES), IN_ONE)]
            found |= {f"{self.prefix}{name}": part and f"|{part}|" for name, part in zip(BODIES, parts, strict=True)}
        if "key" in values:
            found["Title"] = values["key"]
        return found

    def _row(self, fields: Mapping[str, Any], item: Any, etag: str, now: float) -> ServiceRow:
        found = ETAG.fullmatch(etag)
        if found is None or int(found[2]) >= VERSIONS:
            raise StoreFull(
                f"The item {item} of {self.name} has the ETag {etag[:80]!r}, which is none; run the doctor."
            )
        values = {name: fields.get(f"{self.prefix}{name}") for name in COLUMNS}
        values["body"] = "".join(_unfenced(fields.get(f"{self.prefix}{name}")) for name in BODIES)
        created, modified = (datetime.fromisoformat(fields[name]).timestamp() for name in STAMPS)
        number = int(item) * VERSIONS + int(found[2])
        return ServiceRow(values, (str(item), etag), str(number), number, created, modified, now)

    def close(self) -> None:
        self.client.close()

    def abandon(self) -> None:
        self.client.abandon()


def _unfenced(text: str | None) -> str:
    """Remove the bars around a part, which protect blanks at its ends. People may write a short part without bars."""
    if not text:
        return ""
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] == "|" else text


def _refused(answer: RestAnswer) -> RowRefused | None:
    if answer.status == MISSING:
        return GONE
    return STALE if answer.status in (CONFLICT, PRECONDITION) else None


class SharePointEngine(RestEngine):
    """A ledger of claims in a SharePoint list."""

    promises = StorePromises(
        "left to the service", "left to the service", "the service's", "2", "3", "our simulator only"
    )
    group_limit = 10
    body_limit = IN_ONE * len(BODIES)

    def __init__(self, url: str, *, clock: Clock = system_clock) -> None:
        target = ServiceUrl.of(urlsplit(url), legal=OPTIONS, example=EXAMPLE)
        graph = target.options.get("graph", GRAPH if target.base.startswith("https") else target.base)
        client = RestClient(graph.rstrip("/"), target.sign_in(f"{graph.rstrip('/')}/.default"), clock=clock)
        site = _site(client, target)
        self.rows = SharePointItems(client, site, target.path[-1], target.options.get("prefix", PREFIX), clock)
        super().__init__(self.rows, clock=clock)
        try:
            refuse_unsafe(self.rows)
            self.ask_time()
        except BaseException:
            self.close()
            raise

    def examine(self) -> Sequence[Finding]:
        return examine(self.rows)


def _site(client: RestClient, target: ServiceUrl) -> str:
    """Return the site's id in Graph, by its host and path."""
    path = "/".join(target.path[:-1])
    answer = client.call("GET", f"/v1.0/sites/{target.host.partition(':')[0]}" + (f":/{quote(path)}" if path else ""))
    if answer.status == MISSING:
        raise NoLedger(f"There is no SharePoint site /{path} on {target.host}; write the URL like {EXAMPLE}")
    if not answer.ok:
        raise refusal(answer, "looking for the SharePoint site")
    return str(answer.body["id"])
