"""Where the tests of stores of rows have their ledgers: a server, a URL, and how its requests look on the wire."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from secrets import token_hex
from typing import Any

import pytest

from twiceproof.stores.open import open_store


@dataclass
class RowPlace:
    name: str
    server: Any
    url_by: Callable[[str, int], str]  # host and port: the server's own, or a proxy's
    write: bytes  # what a request has in it that changes several rows

    @property
    def url(self) -> str:
        return self.url_by(self.server.host, self.server.port)

    def open(self, url: str | None = None):
        return open_store(url or self.url)


def _dynamodb(request: pytest.FixtureRequest, server: str) -> RowPlace:
    pytest.importorskip("boto3")
    request.getfixturevalue("aws_credentials")
    running, table = request.getfixturevalue(server), f"ledger-{token_hex(6)}"
    return RowPlace("dynamodb", running, lambda host, port: running.url(table, port=port), b"TransactWriteItems")


def _azure_table(request: pytest.FixtureRequest, server: str) -> RowPlace:
    pytest.importorskip("azure.data.tables")
    running, table = request.getfixturevalue(server), f"ledger{token_hex(6)}"
    patch = request.getfixturevalue("monkeypatch")

    def url_by(host: str, port: int) -> str:
        patch.setenv("AZURE_STORAGE_CONNECTION_STRING", running.connection_string(port))
        return f"azure-table:///{table}"

    return RowPlace("azure-table", running, url_by, b"$batch")


def _etcd(request: pytest.FixtureRequest, server: str) -> RowPlace:
    """Of the three members, all by default; a proxy leads to the first."""
    running, prefix = request.getfixturevalue(server), token_hex(6)

    def url_by(host: str, port: int) -> str:
        own = (host, port) == (running.host, running.port)
        return f"etcd://{running.hosts if own else f'{host}:{port}'}/{prefix}"

    return RowPlace("etcd", running, url_by, b"/v3/kv/txn")


def dynamodb_local(request: pytest.FixtureRequest) -> RowPlace:
    """Amazon's own emulator, where the tester has it: the judge."""
    return _dynamodb(request, "dynamodb_local")


PLACES = {
    "etcd": (_etcd, "etcd_cluster", "killable_etcd"),
    "dynamodb": (_dynamodb, "ministack", "killable_ministack"),
    "azure-table": (_azure_table, "azurite", "killable_azurite"),
}


@pytest.fixture(params=PLACES)
def place(request):
    """A new ledger on the session's server."""
    make, server, _ = PLACES[request.param]
    return make(request, server)


@pytest.fixture(params=PLACES)
def killable_place(request):
    """A new ledger on a server for one test alone."""
    make, _, server = PLACES[request.param]
    return make(request, server)
