"""What a SharePoint list can promise here: columns, the unique one, indexes, conditions, limits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from ..base import POINT, Finding, NoLedger, refuse_unsafe_findings
from ..service_rows import RowRefused

if TYPE_CHECKING:
    from .engine import SharePointItems

__all__ = ["examine", "refuse_unsafe"]

FEW = 0.2  # of the service's quota
RECIPE = "docs/how-to/no-code/claims-without-a-server.md has the list's columns"
SEARCHED = ("space", "due")


def examine(items: SharePointItems) -> Sequence[Finding]:
    columns, headers = _columns_of(items)
    return [
        *_of_list(items, columns),
        *(_index(items, columns, name) for name in SEARCHED),
        _conditions(items),
        _limits(headers),
        *_always(),
    ]


def _always() -> Iterator[Finding]:
    yield Finding(
        "warn", "service", "checked against our simulator, not against Microsoft's service", "Try it out first"
    )
    yield Finding(
        "warn", "volume", "a list is for few claims: each takes a second or more", "Use dataverse:// for more"
    )


def refuse_unsafe(items: SharePointItems) -> None:
    """Refuse a list that would let two callers win. Called when the store is opened."""
    columns, _ = _columns_of(items)
    refuse_unsafe_findings("SharePoint", _of_list(items, columns))
    refuse_unsafe_findings("SharePoint", [_conditions(items)])


def _columns_of(items: SharePointItems) -> tuple[Mapping[str, Mapping[str, Any]], Mapping[str, str]]:
    answer = items.client.call("GET", f"{items.path}/columns")
    if answer.status == 404:
        raise NoLedger(f"The SharePoint site has no list {items.name}; create it ({RECIPE}), or {POINT}.")
    found = {one["name"]: one for one in answer.body["value"]}
    return found, answer.headers


def _of_list(items: SharePointItems, columns: Mapping[str, Mapping[str, Any]]) -> Iterator[Finding]:
    from .engine import LIST_COLUMNS

    missing = [f"{items.prefix}{name}" for name in LIST_COLUMNS if f"{items.prefix}{name}" not in columns]
    if missing:
        yield Finding("refuse", "columns", f"missing: {', '.join(missing)}", f"Add them: {RECIPE}")
    else:
        yield Finding("ok", "columns", f"all {len(LIST_COLUMNS)}")
    key = columns.get(f"{items.prefix}key", {})
    if key.get("enforceUniqueValues") and key.get("indexed"):
        yield Finding("ok", "key column", "indexed, with unique values")
    else:
        yield Finding(
            "refuse",
            "key column",
            "it does not enforce unique values: two equal items are accepted",
            f"Set enforceUniqueValues and indexed for {items.prefix}key",
        )


def _index(items: SharePointItems, columns: Mapping[str, Mapping[str, Any]], name: str) -> Finding:
    if columns.get(f"{items.prefix}{name}", {}).get("indexed"):
        return Finding("ok", "index", f"{items.prefix}{name} is indexed")
    return Finding(
        "warn",
        "index",
        f"{items.prefix}{name} is not indexed: a list of more than 5,000 items cannot be searched by it",
        "Index the column",
    )


def _conditions(items: SharePointItems) -> Finding:
    """Add an item twice, and change it by an old ETag: both second requests must be refused."""
    key = f"probe;{uuid4().hex};probe"
    values = {"key": key, "space": "probe", "kind": "probe", "state": "probe"}
    first = items.create(values)
    if first is None or items.create(values) is not None:
        return _ignored("the unique column")
    second = items.change(key, first.handle, {"state": "probed"})
    if isinstance(second, RowRefused) or not isinstance(
        items.change(key, first.handle, {"state": "probe"}), RowRefused
    ):
        return _ignored("If-Match")
    items.remove(key, second.handle)
    return Finding("ok", "conditions", "the unique column and If-Match are obeyed")


def _ignored(what: str) -> Finding:
    return Finding(
        "refuse",
        "conditions",
        f"{what} is ignored: two callers would both win",
        "Remove the proxy or policy in between; then remove the items with the space probe",
    )


def _limits(headers: Mapping[str, str]) -> Finding:
    left, most = headers.get("ratelimit-remaining", ""), headers.get("ratelimit-limit", "")
    if not (left.isdecimal() and most.isdecimal()):
        return Finding("ok", "request limit", "not near")
    if int(left) >= FEW * int(most):
        return Finding("ok", "request limit", f"{left} of {most} units left")
    return Finding("warn", "request limit", f"{left} of {most} units left", "Send fewer: use another store")
