"""What a DynamoDB table can promise here: regions, expiry, backups, capacity, clock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct

from ...errors import StoreError
from ..base import Finding, refuse_unsafe_findings
from ..rows.engine import clock_finding, lanes_finding
from .connection import DynamoTable

__all__ = ["DynamoFacts", "examine", "examine_service", "findings", "refuse_unsafe", "survey"]

OURS = ("pk", "sk", "n", "v")  # attributes of an item


class DynamoFacts(Struct, frozen=True):
    """What the service says about the table. `expiry` and `backups` are None where the role lacks the permission."""

    table: dict[str, Any]
    expiry: dict[str, Any] | None
    backups: dict[str, Any] | None
    endpoint: str | None = None


def survey(table: DynamoTable, description: Any) -> DynamoFacts:
    return DynamoFacts(
        description or {},
        _asked(table, "describe_time_to_live", "TimeToLiveDescription"),
        _asked(table, "describe_continuous_backups", "ContinuousBackupsDescription"),
        table.target.endpoint,
    )


def _asked(table: DynamoTable, verb: str, name: str) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = table.ask(verb, TableName=table.name)[name]
    except StoreError:
        return None
    return found


def refuse_unsafe(facts: DynamoFacts) -> None:
    refuse_unsafe_findings("DynamoDB", (_keys(facts), _regions(facts), _expiry(facts)))


def examine(table: DynamoTable, lanes: int, description: Any) -> Sequence[Finding]:
    return [*findings(survey(table, description)), clock_finding(table.clock), lanes_finding(table.target.lanes, lanes)]


def examine_service(table: DynamoTable) -> Sequence[Finding]:
    """What can be seen before there is a table."""
    return [_service(DynamoFacts({}, None, None, table.target.endpoint)), clock_finding(table.clock)]


def findings(facts: DynamoFacts) -> list[Finding]:
    return [
        _keys(facts),
        _regions(facts),
        _expiry(facts),
        _backups(facts),
        _deletion(facts),
        _capacity(facts),
        _table_class(facts),
        _service(facts),
    ]


def _keys(facts: DynamoFacts) -> Finding:
    keys = {key["AttributeName"]: key["KeyType"] for key in facts.table.get("KeySchema", ())}
    if keys == {"pk": "HASH", "sk": "RANGE"}:
        return Finding("ok", "keys", "pk and sk")
    return Finding(
        "refuse",
        "keys",
        "the table has other keys than pk and sk: it is not a ledger",
        "Name another table in the store's URL; it is created when the store is opened.",
    )


def _regions(facts: DynamoFacts) -> Finding:
    count = len(facts.table.get("Replicas", ()))
    if not count:
        return Finding("ok", "regions", "one")
    return Finding(
        "refuse",
        "regions",
        f"a global table with {count} replicas: each region writes by itself, so that one key has two winners",
        "Remove the replicas, or use a table of one region; for several regions use postgresql:// in one of them.",
    )


def _expiry(facts: DynamoFacts) -> Finding:
    if facts.expiry is None:
        return Finding("warn", "expiry", "cannot be seen", "Give the role the right dynamodb:DescribeTimeToLive.")
    name = facts.expiry.get("AttributeName", "")
    if facts.expiry.get("TimeToLiveStatus") in ("ENABLED", "ENABLING") and name in OURS:
        return Finding(
            "refuse",
            "expiry",
            f"the table's time to live is set on {name}, which the ledger writes: the service would delete claims",
            "Switch the table's time to live off; twiceproof forgets by its own retention.",
        )
    return Finding("ok", "expiry", "by twiceproof's own retention alone")


def _backups(facts: DynamoFacts) -> Finding:
    status = (facts.backups or {}).get("PointInTimeRecoveryDescription", {}).get("PointInTimeRecoveryStatus")
    if status == "ENABLED":
        return Finding("ok", "backups", "point-in-time recovery")
    return Finding(
        "warn",
        "backups",
        "no point-in-time recovery: a deleted table is gone, and its work would be repeated",
        "Switch on point-in-time recovery for the table.",
    )


def _deletion(facts: DynamoFacts) -> Finding:
    if facts.table.get("DeletionProtectionEnabled"):
        return Finding("ok", "deletion protection", "on")
    return Finding("warn", "deletion protection", "off", "Switch on deletion protection for the table.")


def _capacity(facts: DynamoFacts) -> Finding:
    mode = facts.table.get("BillingModeSummary", {}).get("BillingMode", "PROVISIONED")
    most = facts.table.get("OnDemandThroughput", {}).get("MaxWriteRequestUnits", -1)
    if mode == "PAY_PER_REQUEST" and most > 0:
        return Finding(
            "warn",
            "capacity",
            f"on demand, up to {most} write units a second; a claim takes about ten, and what is throttled waits",
            "Raise the limit of the table, or remove it.",
        )
    if mode == "PAY_PER_REQUEST":
        return Finding("ok", "capacity", "on demand")
    units = facts.table.get("ProvisionedThroughput", {}).get("WriteCapacityUnits", 0)
    return Finding(
        "warn",
        "capacity",
        f"{units} write units a second; a claim takes about ten, and what is throttled waits",
        "Use on-demand capacity, or auto scaling.",
    )


def _table_class(facts: DynamoFacts) -> Finding:
    found = facts.table.get("TableClassSummary", {}).get("TableClass", "STANDARD")
    if found == "STANDARD":
        return Finding("ok", "table class", "standard")
    return Finding("warn", "table class", f"{found}: writes cost more", "Use the class STANDARD for a ledger.")


def _service(facts: DynamoFacts) -> Finding:
    if facts.endpoint is None:
        return Finding(
            "warn", "service", "checked against emulators, not against Amazon's service", "Try it out first."
        )
    host = urlsplit(facts.endpoint).hostname
    if facts.endpoint.startswith("http://") and host not in ("localhost", "127.0.0.1", "::1"):
        return Finding(
            "warn", "service", "another endpoint, without TLS: results travel in the clear", "Use https:// for it."
        )
    return Finding(
        "warn",
        "service",
        "another endpoint: an emulator may keep nothing and be less strict than the service",
        "Leave endpoint= out of the store's URL in production.",
    )
