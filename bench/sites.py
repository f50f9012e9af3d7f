"""Where stores live for the length of a run: a directory on disk, and servers that fsync."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Protocol

from tests.servers import MariadbServer, PostgresServer, ValkeyServer

from .fill import Row, fill_mariadb, fill_postgres, fill_sqlite, fill_valkey, insert_postgres, insert_sqlite
from .orders import Keys
from .plan import Plan
from .rounds import Contender

__all__ = ["RawStore", "Site", "Sites"]


class RawStore(Protocol):
    """One backend without us."""

    def sequential(self) -> Contender:
        """One claim per commit, one caller."""

    def concurrent(self) -> list[Contender]:
        """One claim per commit, many callers: the usual ways. The best of them counts."""

    def limits(self) -> list[Contender]:
        """64 claims per commit. The best of them counts here, too."""

    def reading(self, count: int) -> Contender:
        """One row by its key, out of so many."""


class Site(Protocol):
    """One backend: fresh stores on it, the raw way to use it, and a quick way to fill a store."""

    name: str

    def fresh(self) -> str:
        """The URL of a new, empty store."""

    def raw(self, stack: ExitStack) -> RawStore: ...

    def fill(self, url: str, keys: Keys, count: int) -> None:
        """Put so many finished claims into a store, in bulk."""

    def insert(self, url: str, rows: Iterable[Row]) -> None:
        """Put these rows into a store, in bulk."""

    def many(self, plan: Plan) -> int:
        """How many finished claims make a large store here."""


class SqliteSite:
    name = "SQLite"

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._numbers = itertools.count()

    def fresh(self) -> str:
        return f"sqlite:///{self._file()}"

    def raw(self, stack: ExitStack) -> RawStore:
        from .contenders.sqlite import RawSqlite

        return RawSqlite(self._file(), stack)

    def fill(self, url: str, keys: Keys, count: int) -> None:
        fill_sqlite(url, keys, count)

    def insert(self, url: str, rows: Iterable[Row]) -> None:
        insert_sqlite(url, rows)

    def many(self, plan: Plan) -> int:
        return plan.many

    def _file(self) -> Path:
        return self._directory / f"{next(self._numbers)}.db"


class PostgresSite:
    name = "PostgreSQL"

    def __init__(self, server: PostgresServer) -> None:
        self._server = server

    def fresh(self) -> str:
        return self._server.create_database()

    def raw(self, stack: ExitStack) -> RawStore:
        from .contenders.postgres import RawPostgres

        return RawPostgres(self.fresh(), stack)

    def fill(self, url: str, keys: Keys, count: int) -> None:
        fill_postgres(url, keys, count)

    def insert(self, url: str, rows: Iterable[Row]) -> None:
        insert_postgres(url, rows)

    def many(self, plan: Plan) -> int:
        return plan.many


class MariadbSite:
    name = "MariaDB"

    def __init__(self, server: MariadbServer) -> None:
        self._server = server

    def fresh(self) -> str:
        return self._server.create_database()

    def raw(self, stack: ExitStack) -> RawStore:
        raise NotImplementedError("the usual way on MariaDB is measured with the stores of rows")

    def fill(self, url: str, keys: Keys, count: int) -> None:
        fill_mariadb(url, keys, count)

    def insert(self, url: str, rows: Iterable[Row]) -> None:
        raise NotImplementedError("waiting flows are not measured on MariaDB")

    def many(self, plan: Plan) -> int:
        return plan.many


class ValkeySite:
    name = "Valkey"

    def __init__(self, server: ValkeyServer) -> None:
        self._server = server
        self._numbers = itertools.count()

    def fresh(self) -> str:
        """Another database of the one server: each has its own lanes."""
        return f"{self._server.url.rpartition('/')[0]}/{next(self._numbers)}"

    def raw(self, stack: ExitStack) -> RawStore:
        from .contenders.valkey import RawValkey

        return RawValkey(self.fresh(), stack)

    def fill(self, url: str, keys: Keys, count: int) -> None:
        fill_valkey(url, keys, count)

    def insert(self, url: str, rows: Iterable[Row]) -> None:
        raise NotImplementedError("flows are not measured on Valkey")

    def many(self, plan: Plan) -> int:
        return plan.many_valkey


class Sites:
    """Starts what a section asks for, once, and ends it all."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack

    @cached_property
    def sqlite(self) -> Site:
        directory = Path(tempfile.mkdtemp(prefix="twiceproof-bench-"))
        self._stack.callback(shutil.rmtree, directory, ignore_errors=True)
        return SqliteSite(directory)

    @cached_property
    def postgres(self) -> Site:
        # Room for a run's log: a checkpoint would hit whoever is being measured then.
        server = PostgresServer({"max_wal_size": "8GB", "checkpoint_timeout": "30min"}, disk=True)
        return PostgresSite(self._stack.enter_context(server))

    @cached_property
    def mariadb(self) -> Site:
        """With room for a large ledger's pages, as a server has that keeps one."""
        server = MariadbServer({"innodb-buffer-pool-size": "2G", "innodb-log-file-size": "1G"}, disk=True)
        return MariadbSite(self._stack.enter_context(server))

    @cached_property
    def valkey(self) -> Site:
        return self._valkey("always")

    @cached_property
    def lax_valkey(self) -> Site:
        """Syncs once a second, as most servers do: a power cut loses up to that."""
        return self._valkey("everysec")

    def _valkey(self, appendfsync: str) -> Site:
        server = ValkeyServer({"databases": "64", "appendfsync": appendfsync}, disk=True)
        return ValkeySite(self._stack.enter_context(server))

    def by_name(self) -> dict[str, Callable[[], Site]]:
        return {"sqlite": lambda: self.sqlite, "postgres": lambda: self.postgres, "valkey": lambda: self.valkey}
