"""What a PostgreSQL server can promise here: durability, replication, the pooler in between, the clock."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

import msgspec
import psycopg

from ..clock import Clock
from ..errors import StoreUnsafe
from .base import Finding
from .postgres_primary import LOOK, Ask, Server
from .postgres_schema import APPLIED

__all__ = [
    "FACTS",
    "SETTINGS",
    "SETTINGS_OF_AN_EMPTY_DATABASE",
    "Settings",
    "examine",
    "examine_server",
    "refuse_unsafe",
]

OLDEST = 140_000
MOST_SKEW = 1.0
FEW_CONNECTIONS = 20
LEASE = 30.0  # what a claim has where nothing else is said: a space that is held for longer costs its holder the claim

_SETTINGS = """
SELECT json_build_object(
    'fsync', current_setting('fsync'),
    'full_page_writes', current_setting('full_page_writes'),
    'synchronous_commit', current_setting('synchronous_commit'),
    'standbys', current_setting('synchronous_standby_names'),
    'isolation', current_setting('default_transaction_isolation'),
    'read_only', current_setting('default_transaction_read_only'),
    'version', current_setting('server_version_num')::int,
    'standby', pg_is_in_recovery(),
    'applied', ({applied})
)"""
SETTINGS = _SETTINGS.format(applied=APPLIED).encode()
SETTINGS_OF_AN_EMPTY_DATABASE = _SETTINGS.format(applied="0").encode()


class Settings(msgspec.Struct, frozen=True):
    """What decides whether acknowledged writes are kept; asked once, at opening."""

    fsync: str
    full_page_writes: str
    synchronous_commit: str
    standbys: str
    isolation: str
    read_only: str
    version: int
    standby: bool
    applied: int


FACTS = """
SELECT json_build_object(
    'replicas', (SELECT count(*) FROM pg_stat_replication),
    'idle_in_transaction', (SELECT setting::bigint FROM pg_settings WHERE name = 'idle_in_transaction_session_timeout'),
    'lock_timeout', (SELECT setting::bigint FROM pg_settings WHERE name = 'lock_timeout'),
    'connections', current_setting('max_connections')::int,
    'pid', pg_backend_pid(),
    'now', extract(epoch FROM clock_timestamp())
)"""


class Facts(msgspec.Struct, frozen=True):
    replicas: int
    idle_in_transaction: int  # milliseconds; 0: no limit
    lock_timeout: int
    connections: int
    pid: int
    now: float


def refuse_unsafe(settings: Settings) -> None:
    for found in promises(settings):
        if found.level == "refuse":
            raise StoreUnsafe(f"{found.name}: {found.found}. {found.advice}", findings=[found])


def promises(settings: Settings) -> Iterator[Finding]:
    """Judged at opening and by the doctor alike."""
    yield _version(settings.version)
    yield _primary(settings)
    yield _must_be_on("fsync", settings.fsync, "a crash of the machine loses or mangles acknowledged writes")
    yield _must_be_on("full_page_writes", settings.full_page_writes, "a crash can tear pages")
    yield _synchronous_commit(settings)
    yield _isolation(settings.isolation)


def _version(number: int) -> Finding:
    level = "ok" if number >= OLDEST else "refuse"
    return Finding(
        level, "version", f"{number // 10_000}.{number % 10_000}", "" if level == "ok" else "Use 14 or later."
    )


def _primary(settings: Settings) -> Finding:
    if settings.standby:
        return Finding("refuse", "role", "a standby, which takes no writes", "Point the URL at the primary.")
    if settings.read_only == "on":
        return Finding("refuse", "role", "read-only by setting", "Set default_transaction_read_only off for this role.")
    return Finding("ok", "role", "primary")


def _must_be_on(name: str, value: str, otherwise: str) -> Finding:
    if value == "on":
        return Finding("ok", name, "on")
    return Finding("refuse", name, f"{value}: {otherwise}", f"Set {name}=on and restart the server.")


def _synchronous_commit(settings: Settings) -> Finding:
    value = settings.synchronous_commit
    if value == "off":
        return Finding(
            "refuse", "synchronous_commit", "off: a crash loses the last acknowledged writes",
            "Set synchronous_commit=on, at least for this role.",
        )  # fmt: skip
    if value == "local" and settings.standbys:
        return Finding(
            "refuse", "synchronous_commit", "local: a failover loses acknowledged writes",
            "Set synchronous_commit=on, at least for this role.",
        )  # fmt: skip
    return Finding("ok", "synchronous_commit", value)


def _isolation(level: str) -> Finding:
    if level == "read committed":
        return Finding("ok", "isolation", level)
    return Finding(
        "refuse", "isolation", f"{level}: conditions would be checked against an old snapshot",
        "Set default_transaction_isolation to 'read committed' for this role.",
    )  # fmt: skip


# -- for the doctor alone ------------------------------------------------------------------------


def examine(db: psycopg.Connection, ask: Ask, settings: Settings, clock: Clock) -> list[Finding]:
    return [*examine_server(db, ask, settings, clock), _server(ask)]


def examine_server(db: psycopg.Connection, ask: Ask, settings: Settings, clock: Clock) -> list[Finding]:
    """What can be seen without a ledger."""
    before = clock.now()
    facts = _facts(ask)
    skew = facts.now - (before + clock.now()) / 2
    return [
        *promises(settings),
        _replicas(facts, settings),
        _pooler(facts, db, _facts(ask).pid),
        _timeout("idle_in_transaction_session_timeout", facts.idle_in_transaction),
        _timeout("lock_timeout", facts.lock_timeout),
        _skew(skew),
        _connections(facts.connections),
        _encryption(tls=db.pgconn.ssl_in_use, address=db.info.hostaddr or db.info.host),
    ]


def _facts(ask: Ask) -> Facts:
    return msgspec.json.decode(ask(FACTS.encode(), ())[0][0] or b"", type=Facts)


def _replicas(facts: Facts, settings: Settings) -> Finding:
    if facts.replicas and not settings.standbys:
        return Finding(
            "warn", "replication", f"{facts.replicas} asynchronous: a failover can lose acknowledged writes",
            "Set synchronous_standby_names, or do not promote automatically.",
        )  # fmt: skip
    return Finding("ok", "replication", f"{facts.replicas} replicas, synchronous: {settings.standbys or 'none'}")


def _pooler(facts: Facts, db: psycopg.Connection, later: int) -> Finding:
    if not facts.pid == later == db.info.backend_pid:
        return Finding(
            "warn", "pooler", "the connection goes through a pooler: waiters are not woken, they poll",
            "Harmless; point the URL at the server itself to have waiters woken.",
        )  # fmt: skip
    return Finding("ok", "pooler", "none seen")


def _timeout(name: str, milliseconds: int) -> Finding:
    seconds = milliseconds / 1000
    if not seconds:
        return Finding(
            "warn", name, "unset: a forgotten transaction can hold its spaces for ever",
            f"Set {name} for the roles that join twiceproof's transactions.",
        )  # fmt: skip
    if seconds > LEASE:
        return Finding(
            "warn", name, f"{seconds:g} s: a forgotten transaction can hold its spaces for longer than a lease lasts",
            f"Set {name} to {LEASE:g} s or less for the roles that join twiceproof's transactions.",
        )  # fmt: skip
    return Finding("ok", name, f"{seconds:g} s")


def _skew(seconds: float) -> Finding:
    if abs(seconds) > MOST_SKEW:
        return Finding(
            "warn", "clock", f"the server's differs from ours by {seconds:+.1f} s",
            "Leases use the server's; run NTP on both.",
        )  # fmt: skip
    return Finding("ok", "clock", f"{seconds:+.3f} s from ours")


def _connections(most: int) -> Finding:
    level = "ok" if most >= FEW_CONNECTIONS else "warn"
    advice = "" if level == "ok" else "Each process uses up to four; raise max_connections."
    return Finding(level, "max_connections", str(most), advice)


def _encryption(*, tls: bool, address: str) -> Finding:
    if tls or _is_here(address):
        return Finding("ok", "encryption", "TLS" if tls else "none, on this machine only")
    return Finding(
        "warn", "encryption", "none: results travel in the clear", "Add sslmode=verify-full to the store's URL."
    )


def _is_here(address: str) -> bool:
    """A local socket's address is a path, or none at all."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return not address or address.startswith(("/", "@"))


def _server(ask: Ask) -> Finding:
    """After a promotion or a restore, numbers drawn before may be drawn again."""
    ((name, _, noted),) = ask(LOOK, ())
    now = (name or b"").decode()
    seen = now if noted is None else Server.read(noted.decode()).name
    if seen != now:
        return Finding(
            "warn", "server", f"another server or timeline than before ({seen}, now {now})",
            "So that no number is drawn twice: twiceproof doctor --accept-server",
        )  # fmt: skip
    return Finding("ok", "server", now)
