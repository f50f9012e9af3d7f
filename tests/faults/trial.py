"""The conditions under which a fault is tried: dice, share of the full run, stores, and servers that may be killed."""

from __future__ import annotations

import contextlib
import hashlib
import random
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Self, cast

from tests.acceptance.places import Place, PostgresPlace, RedisPlace, SqlitePlace
from tests.faults.more_stores import MORE, MoreServers, place_of
from tests.servers.keeper import scratch

if TYPE_CHECKING:
    from tests.servers import MariadbServer, PostgresServer, ValkeyServer
    from tests.servers.etcd import EtcdCluster
    from tests.servers.galera import GaleraCluster

STORES = ("sqlite", "postgres", "valkey")
NAMES = {
    "sqlite": "SQLite",
    "postgres": "PostgreSQL",
    "valkey": "Valkey",
    "mariadb": "MariaDB",
    "galera": "Galera",
    "etcd": "etcd",
    "dynamodb": "DynamoDB (ministack)",
    "azure-table": "Azure Table (Azurite)",
    "dataverse": "Dataverse (our simulator)",
    "sharepoint": "SharePoint (our simulator)",
}


class Trial:
    """One fault's run. Servers are started at first use, and are not shared."""

    def __init__(
        self, seed: int, share: float = 1.0, stores: tuple[str, ...] = STORES, say: Callable[[str], None] = print
    ) -> None:
        self.seed = seed
        self.share = share
        self.stores = stores
        self.say = say
        self._stack = contextlib.ExitStack()
        self._postgres: PostgresServer | None = None
        self._valkey: ValkeyServer | None = None
        self.more = MoreServers(self._stack)

    def __enter__(self) -> Self:
        """A full run is on a disk, with fsync; a short one is in memory."""
        root = scratch(disk=self.share >= 1.0)
        self.directory = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="prove-", dir=root)))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def times(self, full: int, least: int = 1) -> int:
        """Return this run's share of a full run's number."""
        return max(least, round(full * self.share))

    def dice(self, *what: object) -> random.Random:
        """Return dice that are the same for the same seed, independent of other dice."""
        return random.Random(hashlib.sha256(repr((self.seed, *what)).encode()).digest())

    # -- stores ----------------------------------------------------------------------------------

    @property
    def postgres(self) -> PostgresServer:
        from tests.servers import PostgresServer

        if self._postgres is None:
            self._postgres = self._stack.enter_context(PostgresServer())
        return self._postgres

    @property
    def valkey(self) -> ValkeyServer:
        from tests.servers import ValkeyServer

        if self._valkey is None:
            self._valkey = self._stack.enter_context(ValkeyServer())
        return self._valkey

    @property
    def mariadb(self) -> MariadbServer:
        return cast("MariadbServer", self.more.mariadb)

    @property
    def galera(self) -> GaleraCluster:
        return cast("GaleraCluster", self.more.galera)

    @property
    def etcd(self) -> EtcdCluster:
        return cast("EtcdCluster", self.more.etcd)

    def stores_and(self, *more: str) -> tuple[str, ...]:
        """A run on the usual stores has the first of the others, too; a full one has all of them."""
        if self.stores != STORES:
            return self.stores
        return (*self.stores, *(more if self.share >= 1 else more[:1]))

    @contextlib.contextmanager
    def place(self, store: str) -> Iterator[Place]:
        """Return an empty store of that kind, with a clock that can be moved and counted effects."""
        with tempfile.TemporaryDirectory(dir=self.directory) as here, self._place(store, Path(here)) as place:
            place.app().close()  # creates the schema
            yield place

    @contextlib.contextmanager
    def _place(self, store: str, here: Path) -> Iterator[Place]:
        if store in MORE:
            with place_of(store, self.more, here) as place:
                yield place
        elif store == "sqlite":
            (here / "clock").write_text("0")
            yield SqlitePlace("", here)
        elif store == "postgres":
            yield PostgresPlace(self.postgres.create_database(), here)
        else:
            self.valkey.empty()
            yield RedisPlace(self.valkey.url, here)
