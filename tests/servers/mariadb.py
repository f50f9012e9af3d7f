"""A MariaDB of our own, in a temporary directory and on a loopback port."""

import signal
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, ClassVar
from uuid import uuid4

import pymysql

from tests.servers.binaries import mariadb_programs, working
from tests.servers.keeper import keeper
from tests.servers.process import ServerProcess, Unavailable, run


@cache
def _template() -> tuple[Path, Path]:
    """The server, and a data directory: making one is the slow part of a start."""
    for server, install in mariadb_programs():
        if not working(server):
            raise Unavailable(f"MariaDB cannot be had: {server} does not run")
        directory = keeper.directory("mariadb-template")
        command = [str(install), "--no-defaults", f"--datadir={directory / 'data'}", "--skip-test-db"]
        run([*command, "--auth-root-authentication-method=normal"], directory)
        return server, directory / "data"
    raise Unavailable("MariaDB cannot be had: no mariadbd and mariadb-install-db (Debian package `mariadb-server`)")


class MariadbServer(ServerProcess):
    """`settings` are options of mariadbd, by their long names."""

    kind: ClassVar[str] = "mariadb"
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM

    def __init__(self, settings: Mapping[str, str] | None = None, *, disk: bool = False) -> None:
        super().__init__(disk=disk)
        self.settings: dict[str, str] = dict(settings or {})

    def prepare(self) -> None:
        subprocess.run(["cp", "-Rp", str(_template()[1]), str(self.directory / "data")], check=True)

    def command(self) -> list[str]:
        data = self.directory / "data"
        options = {
            "datadir": str(data),
            "tmpdir": str(data.parent),  # a server that starts removes what others have in a shared one
            "socket": str(data / "s.sock"),
            "pid-file": str(data / "mariadbd.pid"),
            "bind-address": self.host,
            "port": str(self.port),
            "max-connections": "200",
            "max-allowed-packet": "64M",
            "innodb-buffer-pool-size": "64M",
            "innodb-log-file-size": "32M",
            **self.settings,
        }
        return [str(_template()[0]), "--no-defaults", *(f"--{name}={value}" for name, value in options.items())]

    def ready(self) -> bool:
        """By its log: a connection might reach a stranger on a stolen port."""
        return "ready for connections" in self.log()

    def url(self, database: str = "") -> str:
        return f"mariadb://root@{self.host}:{self.port}/{database}"

    def connect(self, database: str | None = None) -> "pymysql.Connection[Any]":
        return pymysql.connect(
            host=self.host, port=self.port, user="root", database=database, autocommit=True, ssl_disabled=True
        )

    def create_database(self) -> str:
        """A fresh, empty database whose texts are compared to the letter; returns its URL."""
        name = f"tp_{uuid4().hex}"
        with self.connect() as admin, admin.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {name} CHARACTER SET utf8mb4 COLLATE utf8mb4_bin")
        return self.url(name)

    def drop_database(self, url: str) -> None:
        with self.connect() as admin, admin.cursor() as cursor:
            cursor.execute(f"DROP DATABASE IF EXISTS {url.rpartition('/')[2]}")
