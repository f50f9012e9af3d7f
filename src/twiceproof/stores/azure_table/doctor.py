"""What a table of a storage account can promise here: endpoint, replication, clock."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit

from ..base import Finding
from ..rows.engine import clock_finding, lanes_finding
from .connection import AzureTable

__all__ = ["examine", "findings"]

LOCAL = ("localhost", "127.0.0.1", "::1")
EMULATED = "devstoreaccount1"


def examine(table: AzureTable, lanes: int) -> Sequence[Finding]:
    return [*findings(table.client.url), clock_finding(table.clock), lanes_finding(table.target.lanes, lanes)]


def findings(url: str) -> list[Finding]:
    return [_service(url), _encryption(url), _replication(url)]


def _service(url: str) -> Finding:
    parts = urlsplit(url)
    if EMULATED in url or parts.hostname in LOCAL:
        return Finding(
            "warn",
            "service",
            "an emulator: it is less strict than the service, and may keep nothing",
            "Use a storage account in production.",
        )
    if "-secondary" in (parts.hostname or ""):
        return Finding(
            "refuse",
            "service",
            "the account's secondary: it lags behind, so claims could be taken twice",
            "Name the account itself in the store's URL.",
        )
    return Finding("warn", "service", "checked against an emulator, not against Azure's service", "Try it out first.")


def _encryption(url: str) -> Finding:
    parts = urlsplit(url)
    if parts.scheme == "https" or parts.hostname in LOCAL:
        return Finding("ok", "encryption", "TLS" if parts.scheme == "https" else "none, on this machine only")
    return Finding(
        "warn", "encryption", "none: results and signatures travel in the clear", "Use https in the connection string."
    )


def _replication(url: str) -> Finding:
    if EMULATED in url:
        return Finding("ok", "replication", "none")
    return Finding(
        "warn",
        "replication",
        "cannot be seen from here: in an account with geo-replication a failover loses the last writes",
        "Use zone redundancy (ZRS), or settle what was under way after a failover to another region.",
    )
