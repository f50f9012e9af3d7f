"""What a Dataverse table can promise here: columns, the alternate key, conditions, auditing, limits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from ..base import POINT, Finding, NoLedger, refuse_unsafe_findings
from ..service_rows import COLUMNS, RowRefused

if TYPE_CHECKING:
    from .engine import DataverseTable

__all__ = ["examine", "refuse_unsafe"]

SELECT = "LogicalName,IsAuditEnabled,IsOptimisticConcurrencyEnabled,TableType"
EXPAND = "Keys($select=KeyAttributes,EntityKeyIndexStatus),Attributes($select=LogicalName)"
BURST = "x-ms-ratelimit-burst-remaining-xrm-requests"
FEW = 500  # remaining requests, of 6,000 in five minutes
RECIPE = "docs/how-to/no-code/claims-without-a-server.md has the table's columns"


def examine(table: DataverseTable) -> Sequence[Finding]:
    entity, left = _definition(table)
    return [
        *(finding for finding in _of_table(table, entity)),
        _conditions(table),
        _auditing(entity),
        _limits(left),
        *_always(),
    ]


def _always() -> Iterator[Finding]:
    yield Finding(
        "warn", "service", "checked against our simulator, not against Microsoft's service", "Try it out first"
    )
    yield Finding("warn", "latency", "a request takes tenths of a second", "Use leases of a minute or more")


def refuse_unsafe(table: DataverseTable) -> None:
    """Refuse a table that would let two callers win. Called when the store is opened."""
    entity, _ = _definition(table)
    refuse_unsafe_findings("Dataverse", _of_table(table, entity))
    refuse_unsafe_findings("Dataverse", [_conditions(table)])


def _definition(table: DataverseTable) -> tuple[Mapping[str, Any], int | None]:
    params = {"$select": SELECT, "$filter": f"EntitySetName eq '{table.table}'", "$expand": EXPAND}
    answer = table.client.require("GET", "/api/data/v9.2/EntityDefinitions", params=params)
    found = answer.body["value"]
    if not found:
        raise NoLedger(f"Dataverse has no table with the entity set {table.table}; create it ({RECIPE}), or {POINT}.")
    left = answer.headers.get(BURST, "")
    entity: Mapping[str, Any] = found[0]
    return entity, int(left) if left.isdecimal() else None


def _of_table(table: DataverseTable, entity: Mapping[str, Any]) -> Iterator[Finding]:
    yield _columns(table, entity)
    yield _key(table, entity)
    if entity.get("TableType") == "Elastic":
        yield Finding("refuse", "table", "elastic: an upsert overwrites the row", "Use a standard table")
    if entity.get("IsOptimisticConcurrencyEnabled") is False:
        yield Finding(
            "refuse", "optimistic concurrency", "off: ETags are ignored", "Set IsOptimisticConcurrencyEnabled on it"
        )


def _columns(table: DataverseTable, entity: Mapping[str, Any]) -> Finding:
    there = {one["LogicalName"] for one in entity["Attributes"]}
    missing = [f"{table.prefix}{name}" for name in COLUMNS if f"{table.prefix}{name}" not in there]
    if not missing:
        return Finding("ok", "columns", f"all {len(COLUMNS)}")
    return Finding("refuse", "columns", f"missing: {', '.join(missing)}", f"Add them: {RECIPE}")


def _key(table: DataverseTable, entity: Mapping[str, Any]) -> Finding:
    wanted = [f"{table.prefix}key"]
    states = [str(one["EntityKeyIndexStatus"]) for one in entity["Keys"] if one["KeyAttributes"] == wanted]
    if states == ["Active"]:
        return Finding("ok", "alternate key", "Active")
    if states:
        return Finding(
            "refuse",
            "alternate key",
            f"its index is {states[0]}: two equal rows are accepted",
            "Wait until it is Active",
        )
    return Finding(
        "refuse", "alternate key", f"none on {wanted[0]} alone: two equal rows are accepted", "Define it on that column"
    )


def _conditions(table: DataverseTable) -> Finding:
    """Create a row twice, and change it by an old ETag: both second requests must be refused."""
    key = f"probe;{uuid4().hex};probe"
    values = {"key": key, "space": "probe", "kind": "probe", "state": "probe"}
    first = table.create(values)
    if first is None or table.create(values) is not None:
        return _ignored(table, key, "If-None-Match")
    second = table.change(key, first.handle, {"state": "probed"})
    if isinstance(second, RowRefused) or not isinstance(
        table.change(key, first.handle, {"state": "probe"}), RowRefused
    ):
        return _ignored(table, key, "If-Match")
    table.remove(key, second.handle)
    return Finding("ok", "conditions", "If-None-Match and If-Match are obeyed")


def _ignored(table: DataverseTable, key: str, header: str) -> Finding:
    row, _ = table.find(key)
    if row is not None:
        table.remove(key, row.handle)
    return Finding(
        "refuse",
        "conditions",
        f"{header} is ignored: two callers would both win",
        "Remove the proxy or policy that drops the header",
    )


def _auditing(entity: Mapping[str, Any]) -> Finding:
    if not (entity.get("IsAuditEnabled") or {}).get("Value"):
        return Finding("ok", "auditing", "off")
    return Finding(
        "warn",
        "auditing",
        "on: each change of a claim is kept in the log, results too",
        "Switch auditing off for this table",
    )


def _limits(left: int | None) -> Finding:
    if left is None or left >= FEW:
        return Finding("ok", "request limit", "not seen" if left is None else f"{left} requests left")
    return Finding(
        "warn",
        "request limit",
        f"{left} requests left of 6,000 in five minutes",
        "Send fewer requests: use another store for frequent operations",
    )
