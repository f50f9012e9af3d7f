"""The ledger's place, from its URL; creating its tables and bringing them up to date."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit
from uuid import uuid4

from ...clock import Clock
from ...errors import Misuse, SchemaMismatch, StoreError, StoreUnavailable
from ..base import Disconnected, migrations, refuse_locked
from .doctor import Durability
from .rows import STEP, LedgerSql, Row, Statement

__all__ = ["OPTIONS", "applied", "connection_parameters", "is_current", "migrate", "split_durability"]

Ask = Callable[..., Sequence[Sequence[Row]]]

LEDGER = (
    "CREATE TABLE IF NOT EXISTS {ledger}.twiceproof_migrations (number INT NOT NULL PRIMARY KEY,"
    " name VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL) ENGINE=InnoDB"
)
THERE = (
    "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = %s AND table_name = 'twiceproof_migrations'"
)
LONGEST_TURN = 60  # seconds; a process that changes the schema says before each statement that it lives
PATIENCE = 30.0
PAUSE = 0.1
# Options of the URL that are PyMySQL's.
OPTIONS = ("unix_socket", "ssl_ca")


def applied(ask: Ask, sql: LedgerSql, database: str) -> int:
    """The largest number among the migrations; 0 where there is no ledger."""
    (((there,),),) = ask((THERE, [database]))
    if not there:
        return 0
    (((number,),),) = ask((f"SELECT COALESCE(MAX(number), 0) FROM {sql.ledger}.twiceproof_migrations", ()))  # noqa: S608
    return int(number)


def is_current(number: int) -> bool:
    """Whether no migration is missing. A newer release's schema is refused."""
    refuse_locked(number)
    known = len(migrations("mariadb"))
    if number > known:
        raise SchemaMismatch(
            f"The database was written by a newer release (schema {number}, this one knows {known}); "
            "upgrade twiceproof."
        )
    return number == known


def migrate(ask: Ask, sql: LedgerSql, database: str, clock: Clock) -> None:
    """Apply what is missing. Each statement can be repeated, also by several processes at once, and a migration is
    recorded when all of it has been applied. On Galera the processes take turns.
    """
    ask((LEDGER.replace("{ledger}", sql.ledger), ()))
    if sql.galera:
        _migrate_in_turn(ask, sql, database, clock)
        return
    for statement in _missing(sql, applied(ask, sql, database)):
        ask(statement)


def _missing(sql: LedgerSql, done: int) -> Iterator[Statement]:
    for migration in migrations("mariadb")[done:]:
        for statement in statements(migration.sql):
            yield _in_ledger(statement, sql)
        if migration.number == 1:
            yield f"INSERT IGNORE INTO {sql.ledger}.twiceproof_facts VALUES ('ledger', %s)", [uuid4().hex]  # noqa: S608
        record = f"INSERT IGNORE INTO {sql.ledger}.twiceproof_migrations VALUES (%s, %s)"  # noqa: S608
        yield record, [migration.number, migration.name]


def _migrate_in_turn(ask: Ask, sql: LedgerSql, database: str, clock: Clock) -> None:
    ask(("SET SESSION wsrep_sync_wait = 7", ()))
    turn = MigrationTurn(ask, sql)
    deadline = clock.monotonic() + LONGEST_TURN + PATIENCE
    while not is_current(applied(ask, sql, database)):
        if clock.monotonic() >= deadline:
            raise StoreUnavailable(
                "Another process has been creating or changing the ledger's tables for too long; nothing was written. "
                "Wait for it, then try again.",
                unsure=False,
            )
        if turn.is_anothers(database):
            clock.sleep(PAUSE)


class MigrationTurn:
    """A row that says who may change the schema of a cluster's ledger.

    Two nodes that define a view at the same time wait for each other for ever, and with them the whole cluster.
    """

    def __init__(self, ask: Ask, sql: LedgerSql) -> None:
        self._ask = ask
        self._sql = sql
        self._owner = uuid4().hex
        self._turns = f"{sql.ledger}.twiceproof_migrations"

    def is_anothers(self, database: str) -> bool:
        """Apply what is missing, unless another process has the turn, or has taken it meanwhile."""
        if not self._take():
            return True
        try:
            missing = _missing(self._sql, applied(self._ask, self._sql, database))
            return any(self._is_lost_before(statement) for statement in missing)
        finally:
            with contextlib.suppress(StoreError, Disconnected):  # it lapses
                self._ask((f"DELETE FROM {self._turns} WHERE number = 0 AND name LIKE %s", [f"{self._owner} %"]))  # noqa: S608

    def _is_lost_before(self, statement: Statement) -> bool:
        """Carry the statement out, unless the one before took so long that another process has taken the turn."""
        if not self._take():
            return True
        self._ask(statement)
        return False

    def _take(self) -> bool:
        """Take the turn if it is free or has lapsed; keep it if it is ours."""
        free = f"name LIKE %s OR SUBSTRING_INDEX(name, ' ', -1) < UNIX_TIMESTAMP() - {LONGEST_TURN}"
        take = (
            f"INSERT INTO {self._turns} VALUES (0, CONCAT(%s, UNIX_TIMESTAMP()))"  # noqa: S608
            f" ON DUPLICATE KEY UPDATE name = IF({free}, VALUES(name), name)"
        )
        ours = f"SELECT 1 FROM {self._turns} WHERE number = 0 AND name LIKE %s"  # noqa: S608
        like = f"{self._owner} %"
        return bool(self._ask((take, [f"{self._owner} ", like]), (ours, [like]))[0])


def _in_ledger(statement: str, sql: LedgerSql) -> Statement:
    """On Galera a sequence must have the step 0 (each node uses its own); no numbers are drawn from it there."""
    step = "0" if sql.galera else str(STEP)
    return statement.replace("%", "%%").replace("{ledger}", sql.ledger).replace("{step}", step), ()


def statements(script: str) -> list[str]:
    """Split a script at the semicolons that end a line."""
    lines = [line for line in script.splitlines() if not line.lstrip().startswith("--")]
    return [part.strip() for part in "\n".join(lines).split(";\n") if part.strip().rstrip(";")]


def split_durability(url: str) -> tuple[str, Durability]:
    """Return the URL for PyMySQL, and what writes must survive: a power cut, or with `durability=process` a crash of
    the server.
    """
    front, _, query = url.partition("?")
    options = query.split("&") if query else []
    given = [option.partition("=")[2] for option in options if option.partition("=")[0] == "durability"]
    if not set(given) <= {"power", "process"}:
        raise Misuse("In the store's URL, durability= is not valid; use one of power, process.")
    rest = "&".join(option for option in options if option.partition("=")[0] != "durability")
    return f"{front}?{rest}" if rest else front, "process" if given[-1:] == ["process"] else "power"


def connection_parameters(url: str) -> dict[str, Any]:
    """Return the URL's parts as PyMySQL expects them."""
    parts = _split(url)
    options: dict[str, Any] = dict(parse_qsl(parts.query, keep_blank_values=True))
    for name in options:
        if name not in OPTIONS:
            raise Misuse(f"In the database's URL, {name}= is not known; there are: {', '.join(OPTIONS)}.")
    if "ssl_ca" in options:
        options |= {"ssl_verify_cert": True, "ssl_verify_identity": True}
    database = unquote(parts.path[1:])
    if not database or "/" in database:
        raise Misuse("The MariaDB URL names no database; write it as mariadb://user:password@host:3306/database.")
    return {
        "host": parts.hostname or "localhost",
        "port": parts.port or 3306,
        "user": unquote(parts.username or ""),
        "password": unquote(parts.password or ""),
        "database": database,
        **options,
    }


def _split(url: str) -> SplitResult:
    with contextlib.suppress(ValueError):  # without the reason, which would quote the unreadable part
        parts = urlsplit(url)
        if parts.port != 0 and "@" not in parts.path and parts.netloc.count("@") <= 1:
            return parts
    raise Misuse(
        "The MariaDB URL cannot be read; write it as mariadb://user:password@host:3306/database, with special "
        "characters percent-encoded."
    )
