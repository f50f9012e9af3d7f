"""Private ledgers for scenarios: in memory, SQLite, PostgreSQL or Redis."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from secrets import token_hex
from typing import Any, Protocol
from urllib.parse import urlsplit

from ..errors import Misuse, StoreUnavailable
from ..stores.base import Engine
from ..stores.memory import MemoryEngine
from ..stores.open import open_store, refuse_driver
from ..stores.sqlite.engine import SqliteEngine
from .clocks import BEGINNING, ManualClock, clock_at

__all__ = ["DatabaseLedgers", "FileLedgers", "Ledgers", "MemoryLedgers", "PushedClock", "SchemaLedgers", "ledgers_at"]


class PushedClock(ManualClock):
    """A clock that is pushed to a server: `tell` is called with the wall time, at first and whenever it has moved."""

    def __init__(self, tell: Callable[[float], object], at: float | None = None) -> None:
        super().__init__(BEGINNING if at is None else at)
        self._tell = tell
        self._mutex = threading.Lock()
        tell(self.wall)

    def advance(self, seconds: float) -> None:
        with self._mutex:  # two threads that pause at once must not set the server's clock back
            super().advance(seconds)
            self._tell(self.wall)


CLOCK_KEY = "twiceproof:prove:clock"
OURS = "twiceproof:*"
NOW = f"local micros = tonumber(redis.call('GET', '{CLOCK_KEY}'))"


class DatabaseLedgers:
    """In an empty Redis database. Only our own keys are removed, should others have written into it meanwhile."""

    def __init__(self, url: str) -> None:
        if not urlsplit(url).path.strip("/").isdecimal():
            raise Misuse("Name an empty database for the scenarios by its number, such as redis://localhost:6379/15.")
        self._url = url
        self._link = _connected(url)

    def prepare(self) -> str:
        if self._call("DBSIZE"):
            raise Misuse(f"Database {urlsplit(self._url).path[1:]} is not empty; name one that is, such as …/15.")
        return self._url

    def open(self, name: str, at: float | None = None) -> tuple[Engine, ManualClock]:
        from ..stores.redis.engine import RedisEngine

        class ScenarioEngine(RedisEngine):
            now_lua = NOW

        link = _connected(name)
        clock = PushedClock(lambda now: _call(link, "SET", CLOCK_KEY, str(round(now * 1_000_000))), at)
        return ScenarioEngine(name, clock=clock), clock

    def url(self, name: str) -> str:
        return ""

    def forget(self, name: str) -> None:
        cursor: Any = b"0"
        while True:
            cursor, keys = self._call("SCAN", cursor, "MATCH", OURS, "COUNT", "1000")
            if keys:
                self._call("DEL", *keys)
            if int(cursor) == 0:
                return

    def close(self) -> None:
        self._link.disconnect()

    def _call(self, *words: Any) -> Any:
        return _call(self._link, *words)


def _connected(url: str) -> Any:
    try:
        from redis import SSLConnection
        from redis.connection import Connection

        from ..stores.redis.url import RedisUrl
    except ImportError:
        raise Misuse("This store needs redis, which is not installed; run: pip install 'twiceproof[redis]'") from None
    target = RedisUrl.of(url)
    return (SSLConnection if target.tls else Connection)(host=target.host, port=target.port, **target.settings)


def _call(link: Any, *words: Any) -> Any:
    from redis.exceptions import RedisError

    try:
        link.send_command(*words)
        return link.read_response()
    except (RedisError, OSError) as error:
        raise StoreUnavailable(
            f"Redis does not answer ({error}); check that it runs and that the URL is right."
        ) from None


class FileLedgers:
    """SQLite files. They need not survive a power cut: kills are simulated. `tables` of the file `source` are copied
    into each."""

    def __init__(self, tables: Sequence[str] = (), source: Path | None = None) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="twiceproof-prove-"))
        self._empty = self._directory / "empty.db"
        self._made = 0
        _open(self._empty, ManualClock()).close()  # the schema is created once, not for every scenario
        if tables:
            _copy_tables(self._empty, tables, source)

    def prepare(self) -> str:
        self._made += 1
        path = self._directory / f"scenario-{self._made}.db"
        shutil.copy(self._empty, path)  # with its permissions: only the owner may read it
        return str(path)

    def open(self, name: str, at: float | None = None) -> tuple[Engine, ManualClock]:
        clock = clock_at(at)
        return _open(Path(name), clock), clock

    def url(self, name: str) -> str:
        return f"sqlite:///{name}"

    def forget(self, name: str) -> None:
        for suffix in ("", "-wal", "-shm"):
            Path(name + suffix).unlink(missing_ok=True)

    def close(self) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)


def _open(path: Path, clock: ManualClock) -> Engine:
    return SqliteEngine(path, clock=clock, durability="process")


def _copy_tables(ledger: Path, tables: Sequence[str], source: Path | None) -> None:
    """Copy tables with their rows, indexes and triggers, so that a transaction can write both them and the ledger."""
    if source is None or not source.is_file():
        raise Misuse("--ledger-table names a table in the file of the app's own ledger, and there is no such file yet.")
    with closing(sqlite3.connect(ledger, isolation_level=None)) as db:
        db.execute("ATTACH DATABASE ? AS source", (str(source),))
        for name in tables:
            made = db.execute(
                "SELECT type, sql FROM source.sqlite_master WHERE tbl_name = ? AND sql IS NOT NULL ORDER BY type = ?",
                (name, "trigger"),
            ).fetchall()
            if not any(kind == "table" for kind, _ in made):
                raise Misuse(f"There is no table {name!r} in {source}; --ledger-table names one.")
            quoted = '"' + name.replace('"', '""') + '"'
            for kind, sql in sorted(made, key=lambda one: ("table", "index", "trigger").index(one[0])):
                db.execute(sql)
                if kind == "table":
                    db.execute(f"INSERT INTO main.{quoted} SELECT * FROM source.{quoted}")  # noqa: S608 - quoted


class Ledgers(Protocol):
    """`open` is called in the scenario's process, everything else in the process that outlives it."""

    def prepare(self) -> str:
        """Create an unused ledger and return its name."""

    def open(self, name: str, at: float | None = None) -> tuple[Engine, ManualClock]:
        """Open the ledger, with its clock; later processes of a scenario continue from its time."""

    def url(self, name: str) -> str:
        """Return where the ledger's database is, for a look at tables in it; "" where there is none."""

    def forget(self, name: str) -> None:
        """Remove the ledger of a finished scenario, however it ended."""

    def close(self) -> None: ...


def ledgers_at(store: str, tables: Sequence[str] = (), source: Path | None = None) -> Ledgers:
    """Ledgers by URL. `sqlite` and `memory` need nothing. On a server, only empty or own parts are touched.

    `tables` are copied into each: those of the SQLite file `source`, or of the PostgreSQL database itself.
    """
    scheme = urlsplit(store).scheme
    if store == "sqlite":
        return FileLedgers(tables, source)
    if scheme in ("postgresql", "postgres"):
        return SchemaLedgers(store, tables)
    if tables:
        raise Misuse("--ledger-table needs a ledger in a SQL database; name one with --store postgresql://….")
    if scheme == "memory" or store == "memory":
        return MemoryLedgers()
    if scheme in ("redis", "rediss"):
        return DatabaseLedgers(store)
    refuse_driver(store)
    raise Misuse(
        "prove keeps its ledgers in memory://, postgresql://… (a schema of its own for each scenario) or redis://…/15 "
        "(an empty database); leave --store out for private SQLite files."
    )


class MemoryLedgers:
    """In memory: gone with the scenario."""

    def prepare(self) -> str:
        return ""

    def open(self, name: str, at: float | None = None) -> tuple[Engine, ManualClock]:
        clock = clock_at(at)
        return MemoryEngine(clock), clock

    def url(self, name: str) -> str:
        return ""

    def forget(self, name: str) -> None: ...

    def close(self) -> None: ...


PREFIX = "twiceproof_prove_"
CLOCK_TABLE = """
CREATE TABLE {schema}.twiceproof_prove_clock (at double precision NOT NULL);
INSERT INTO {schema}.twiceproof_prove_clock VALUES (0);
CREATE OR REPLACE FUNCTION {schema}.twiceproof_now() RETURNS double precision LANGUAGE sql VOLATILE
RETURN (SELECT at FROM {schema}.twiceproof_prove_clock);
"""


class SchemaLedgers:
    """Needs the right to create schemas; a schema is created before a scenario and dropped after it. `tables` are
    copied into each."""

    def __init__(self, url: str, tables: Sequence[str] = ()) -> None:
        try:
            import psycopg
        except ImportError:
            raise Misuse(
                "This store needs psycopg, which is not installed; run: pip install 'twiceproof[postgres]'"
            ) from None
        from ..stores.postgres.schema import split_schema

        self._url, _ = split_schema(url)
        try:
            self._db = psycopg.connect(self._url, autocommit=True, connect_timeout=5)
        except psycopg.OperationalError:  # its text may contain parts of the URL
            raise StoreUnavailable(
                "PostgreSQL does not answer; check that it runs and that the URL is right.", unsure=False
            ) from None
        self._tables = [self._found(name) for name in tables]
        self._refuse_without_right()

    def _found(self, name: str) -> tuple[str, str]:
        """Return the schema and the name of a table, as this account finds it."""
        row = self._db.execute(
            "SELECT nspname, relname FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace "
            "WHERE pg_class.oid = to_regclass(%s)",
            (name,),
        ).fetchone()
        if row is None:
            raise Misuse(f"There is no table {name!r} in this database; --ledger-table names one.")
        return str(row[0]), str(row[1])

    def _refuse_without_right(self) -> None:
        row = self._db.execute("SELECT has_database_privilege(current_database(), 'CREATE')").fetchone()
        if row is None or not row[0]:
            self._db.close()
            raise Misuse("This account may not create schemas here; GRANT CREATE ON DATABASE … to it, or use another.")

    def prepare(self) -> str:
        """Schema, tables and clock in one transaction."""
        from ..stores.postgres.schema import in_schema, migrate

        name = PREFIX + token_hex(8)
        with self._db.transaction():
            migrate(self._db, name)
            self._db.execute(in_schema(CLOCK_TABLE, name))
            for schema, table in self._tables:
                self._copy_table(name, schema, table)
        return name

    def _copy_table(self, to: str, schema: str, table: str) -> None:
        from psycopg import sql

        own, theirs = sql.Identifier(to, table), sql.Identifier(schema, table)
        self._db.execute(sql.SQL("CREATE TABLE {} (LIKE {} INCLUDING ALL)").format(own, theirs))
        self._db.execute(sql.SQL("INSERT INTO {} OVERRIDING SYSTEM VALUE SELECT * FROM {}").format(own, theirs))

    def open(self, name: str, at: float | None = None) -> tuple[Engine, ManualClock]:
        import psycopg

        db = psycopg.connect(self._url, autocommit=True, connect_timeout=5)
        clock = PushedClock(lambda now: _tell(db, name, now), at)
        return open_store(_with(self._within(name), schema=name), clock=clock).engine, clock

    def url(self, name: str) -> str:
        return self._within(name)

    def forget(self, name: str) -> None:
        self._db.execute(f"DROP SCHEMA IF EXISTS {name} CASCADE".encode())

    def close(self) -> None:
        self._db.close()

    def _within(self, schema: str) -> str:
        """The same URL, restricted to this schema: not even `public` is visible.

        JIT is off: new tables have no statistics, and the server would compile each query for a tenth of a second.
        """
        from psycopg.conninfo import conninfo_to_dict

        given = str(conninfo_to_dict(self._url).get("options") or "")
        return _with(self._url, options=f"{given} -cjit=off -csearch_path={schema}".strip())


def _with(url: str, **options: str) -> str:
    from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

    parts = urlsplit(url)
    query = {**dict(parse_qsl(parts.query, keep_blank_values=True)), **options}
    return urlunsplit(parts._replace(query=urlencode(query, quote_via=quote)))


def _tell(db: Any, schema: str, now: float) -> None:
    from ..stores.postgres.schema import in_schema

    db.execute(in_schema("UPDATE {schema}.twiceproof_prove_clock SET at = %s", schema), (now,))
