"""PgBouncer in front of a PostgreSQL, in transaction pooling mode."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import ClassVar

from psycopg.conninfo import conninfo_to_dict

from tests.servers.address import via
from tests.servers.binaries import pgbouncer_programs, working
from tests.servers.process import ServerProcess, Unavailable

DEFAULTS: Mapping[str, str] = {
    "listen_addr": "127.0.0.1",
    "unix_socket_dir": "",
    "pool_mode": "transaction",
    "auth_type": "any",
    "max_client_conn": "500",
    "default_pool_size": "20",
    "ignore_startup_parameters": "extra_float_digits,options",
}


@cache
def _program() -> Path:
    for program in pgbouncer_programs():
        if working(program):
            return program
        raise Unavailable(f"PgBouncer cannot be had: {program} does not run")
    raise Unavailable("PgBouncer cannot be had: not on PATH nor in /usr/sbin (Debian package `pgbouncer`)")


class PgBouncer(ServerProcess):
    """Pools for every database of the server that `postgres_dsn` names, logging in as its user."""

    kind: ClassVar[str] = "pgbouncer"

    def __init__(self, postgres_dsn: str, settings: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self.settings: dict[str, str] = dict(settings or {})
        self._target = postgres_dsn

    def dsn(self, postgres_dsn: str | None = None) -> str:
        """The same database, by way of the pooler."""
        return via(postgres_dsn or self._target, self.host, self.port)

    def command(self) -> list[str]:
        path = self.directory / "pgbouncer.ini"
        path.write_text(self._configuration())
        path.chmod(0o644)  # the directory is private
        return [str(_program()), str(path)]

    def ready(self) -> bool:
        return "process up" in self.log()

    def _configuration(self) -> str:
        target = conninfo_to_dict(self._target)
        wanted = {name: target[name] for name in ("host", "port", "user", "password") if name in target}
        database = " ".join(f"{name}={value}" for name, value in wanted.items())
        settings = {**DEFAULTS, **self.settings, "listen_port": str(self.port)}
        lines = "".join(f"{name} = {value}\n" for name, value in settings.items())
        return f"[databases]\n* = {database}\n\n[pgbouncer]\n{lines}"
