"""Stores that are tried beside the usual three, and their servers; Dataverse and SharePoint are our simulators."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from secrets import token_hex
from typing import Any

from tests.acceptance.places import GaleraPlace, MariadbPlace, OfficePlace, Place, RowsPlace, read_shift
from tests.servers.process import Unavailable

__all__ = ["FLOWS", "MORE", "MoreServers", "place_of"]

# MariaDB first: a short run has no more than that one.
MORE = ("mariadb", "etcd", "dynamodb", "azure-table", "galera", "dataverse", "sharepoint")
FLOWS = MORE[:4]  # what carries flows; Galera's nodes are MariaDB's


class MoreServers:
    """Each is started when first asked for, and closed with the stack."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack = stack
        self._running: dict[str, Any] = {}

    def get(self, name: str, make: Callable[[], Any]) -> Any:
        if name not in self._running:
            server = make()
            self._stack.callback(server.close)
            self._running[name] = server.start()
        return self._running[name]

    @property
    def mariadb(self) -> Any:
        from tests.servers import MariadbServer

        return self.get("mariadb", MariadbServer)

    @property
    def galera(self) -> Any:
        from tests.servers.galera import GaleraCluster

        return self.get("galera", GaleraCluster)

    @property
    def etcd(self) -> Any:
        from tests.servers.etcd import EtcdCluster

        return self.get("etcd", EtcdCluster)

    @property
    def dynamodb(self) -> Any:
        from tests.servers.dynamodb import MinistackDynamoDb

        return self.get("dynamodb", MinistackDynamoDb)

    @property
    def azurite(self) -> Any:
        from tests.servers.azurite import Azurite

        return self.get("azurite", Azurite)


@contextlib.contextmanager
def place_of(store: str, servers: MoreServers, here: Path) -> Iterator[Place]:
    """An empty ledger, with a clock that can be moved."""
    (here / "clock").write_text("0")
    if store in ("dataverse", "sharepoint"):
        with _office(store, here) as url:
            yield OfficePlace(url, here)
    elif store == "mariadb":
        yield MariadbPlace(servers.mariadb.create_database(), here)
    elif store == "galera":
        name = servers.galera.create_database()
        yield GaleraPlace(" ".join(node.url(name) for node in servers.galera.nodes), here)
    else:
        yield RowsPlace(_rows_url(store, servers), here)


def _rows_url(store: str, servers: MoreServers) -> str:
    name = f"ledger{token_hex(6)}"
    if store == "etcd":
        return f"etcd://{servers.etcd.hosts}/{name}"
    if store == "dynamodb":
        _need("boto3")
        os.environ |= {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing"}
        return str(servers.dynamodb.url(name))
    _need("azure.data.tables")
    os.environ["AZURE_STORAGE_CONNECTION_STRING"] = servers.azurite.connection_string()
    return f"azure-table:///{name}"


def _need(module: str) -> None:
    try:
        __import__(module)
    except ImportError as error:
        raise Unavailable(f"{error}") from None


@contextlib.contextmanager
def _office(store: str, here: Path) -> Iterator[str]:
    from tests.contracts.stores.offices import PLACES
    from twiceproof.clock import Clock

    start, _, url = PLACES[store]
    with start(Clock(now=lambda: time.time() + read_shift(here / "clock"))) as simulator:
        yield url(simulator)
