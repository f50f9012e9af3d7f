"""What a PostgreSQL server can promise here: durability, replication, the pooler in between, the clock, the schema."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Sequence

import msgspec
import psycopg

from ...clock import Clock
from ...errors import StoreUnsafe
from ..base import Finding
from .primary import LOOK, Ask, Server
from .schema import APPLIED, EQ, TEXT, in_schema

__all__ = [
    "FACTS",
    "SETTINGS",
    "SETTINGS_OF_AN_EMPTY_DATABASE",
    "PostgresSettings",
    "examine",
    "examine_server",
    "refuse_unsafe",
]


OLDEST = 140_000
MOST_SKEW = 1.0
FEW_DEAD = 100_000  # rows that are no matter, however few are alive
LONG_OPEN = 600.0  # seconds
FEW_CONNECTIONS = 20
LEASE = 30.0  # what a claim has where nothing else is said: a space that is held for longer costs its holder the claim

_SETTINGS = """
SELECT pg_catalog.json_build_object(
    'fsync', pg_catalog.current_setting('fsync'),
    'full_page_writes', pg_catalog.current_setting('full_page_writes'),
    'synchronous_commit', pg_catalog.current_setting('synchronous_commit'),
    'standbys', pg_catalog.current_setting('synchronous_standby_names'),
    'isolation', pg_catalog.current_setting('default_transaction_isolation'),
    'read_only', pg_catalog.current_setting('default_transaction_read_only'),
    'version', pg_catalog.current_setting('server_version_num')::int,
    'standby', pg_catalog.pg_is_in_recovery(),
    'applied', ({applied}),
    'elsewhere', ({elsewhere})
)"""
# A ledger that an earlier build made where the search path led it: to go on beside it would repeat what it has done.
_ELSEWHERE = """
SELECT n.nspname FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n
ON n.oid OPERATOR(pg_catalog.=) c.relnamespace
WHERE c.oid OPERATOR(pg_catalog.=) pg_catalog.to_regclass('twiceproof_migrations')::pg_catalog.oid"""
SETTINGS = _SETTINGS.replace("{applied}", APPLIED).replace("{elsewhere}", "NULL")
SETTINGS_OF_AN_EMPTY_DATABASE = _SETTINGS.replace("{applied}", "0").replace("{elsewhere}", _ELSEWHERE)


class PostgresSettings(msgspec.Struct, frozen=True):
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
    elsewhere: str | None = None  # the schema of another ledger, where this one's is empty


FACTS = """
SELECT pg_catalog.json_build_object(
    'replicas', (SELECT pg_catalog.count(*) FROM pg_catalog.pg_stat_replication),
    'idle_in_transaction', (SELECT setting::bigint FROM pg_catalog.pg_settings
        WHERE name OPERATOR(pg_catalog.=) 'idle_in_transaction_session_timeout'),
    'lock_timeout', (SELECT setting::bigint FROM pg_catalog.pg_settings
        WHERE name OPERATOR(pg_catalog.=) 'lock_timeout'),
    'connections', pg_catalog.current_setting('max_connections')::int,
    'pid', pg_catalog.pg_backend_pid(),
    'now', extract(epoch FROM pg_catalog.clock_timestamp())
)"""


class PostgresFacts(msgspec.Struct, frozen=True):
    replicas: int
    idle_in_transaction: int  # milliseconds; 0: no limit
    lock_timeout: int
    connections: int
    pid: int
    now: float


def refuse_unsafe(settings: PostgresSettings) -> None:
    for found in promises(settings):
        if found.level == "refuse":
            raise StoreUnsafe(f"{found.name}: {found.found}. {found.advice}", findings=[found])


def promises(settings: PostgresSettings) -> Iterator[Finding]:
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


def _primary(settings: PostgresSettings) -> Finding:
    if settings.standby:
        return Finding("refuse", "role", "a standby, which takes no writes", "Point the URL at the primary.")
    if settings.read_only == "on":
        return Finding("refuse", "role", "read-only by setting", "Set default_transaction_read_only off for this role.")
    return Finding("ok", "role", "primary")


def _must_be_on(name: str, value: str, otherwise: str) -> Finding:
    if value == "on":
        return Finding("ok", name, "on")
    return Finding("refuse", name, f"{value}: {otherwise}", f"Set {name}=on and restart the server.")


def _synchronous_commit(settings: PostgresSettings) -> Finding:
    value = settings.synchronous_commit
    if value == "off":
        return Finding(
            "refuse",
            "synchronous_commit",
            "off: a crash loses the last acknowledged writes",
            "Set synchronous_commit=on, at least for this role.",
        )
    if value == "local" and settings.standbys:
        return Finding(
            "refuse",
            "synchronous_commit",
            "local: a failover loses acknowledged writes",
            "Set synchronous_commit=on, at least for this role.",
        )
    return Finding("ok", "synchronous_commit", value)


def _isolation(level: str) -> Finding:
    if level == "read committed":
        return Finding("ok", "isolation", level)
    return Finding(
        "refuse",
        "isolation",
        f"{level}: conditions would be checked against an old snapshot",
        "Set default_transaction_isolation to 'read committed' for this role.",
    )


# -- for the doctor alone ------------------------------------------------------------------------


def examine(db: psycopg.Connection, ask: Ask, settings: PostgresSettings, clock: Clock, schema: str) -> list[Finding]:
    server = examine_server(db, ask, settings, clock)
    return [*server, _server(ask, schema), *_examine_schema(ask, schema), *_examine_upkeep(ask, schema)]


def examine_server(db: psycopg.Connection, ask: Ask, settings: PostgresSettings, clock: Clock) -> list[Finding]:
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


def _facts(ask: Ask) -> PostgresFacts:
    return msgspec.json.decode(ask(FACTS.encode(), ())[0][0] or b"", type=PostgresFacts)


def _replicas(facts: PostgresFacts, settings: PostgresSettings) -> Finding:
    if facts.replicas and not settings.standbys:
        return Finding(
            "warn",
            "replication",
            f"{facts.replicas} asynchronous: a failover can lose acknowledged writes",
            "Set synchronous_standby_names, or do not promote automatically.",
        )
    return Finding("ok", "replication", f"{facts.replicas} replicas, synchronous: {settings.standbys or 'none'}")


def _pooler(facts: PostgresFacts, db: psycopg.Connection, later: int) -> Finding:
    if not facts.pid == later == db.info.backend_pid:
        return Finding(
            "warn",
            "pooler",
            "the connection goes through a pooler: waiters are not woken, they poll",
            "Harmless; point the URL at the server itself to have waiters woken.",
        )
    return Finding("ok", "pooler", "none seen")


def _timeout(name: str, milliseconds: int) -> Finding:
    seconds = milliseconds / 1000
    if not seconds:
        return Finding(
            "warn",
            name,
            "unset: a forgotten transaction can hold its spaces for ever",
            f"Set {name} for the roles that join twiceproof's transactions.",
        )
    if seconds > LEASE:
        return Finding(
            "warn",
            name,
            f"{seconds:g} s: a forgotten transaction can hold its spaces for longer than a lease lasts",
            f"Set {name} to {LEASE:g} s or less for the roles that join twiceproof's transactions.",
        )
    return Finding("ok", name, f"{seconds:g} s")


def _skew(seconds: float) -> Finding:
    if abs(seconds) > MOST_SKEW:
        return Finding(
            "warn",
            "clock",
            f"the server's differs from ours by {seconds:+.1f} s",
            "Leases use the server's; run NTP on both.",
        )
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


def _server(ask: Ask, schema: str) -> Finding:
    """After a promotion or a restore, numbers drawn before may be drawn again."""
    ((name, _, noted, _, _, restored),) = ask(in_schema(LOOK, schema), ())
    now = (name or b"").decode()
    seen = now if noted is None else Server.read(noted.decode()).name
    if seen != now:
        return Finding(
            "warn",
            "server",
            f"another server or timeline than before ({seen}, now {now})",
            "So that no number is drawn twice: twiceproof doctor --accept-server",
        )
    if restored:
        return Finding(
            "warn",
            "server",
            f"the ledger was restored or copied, noticed {restored.decode()}",
            "What was done since the backup may be done again: settle it, then run twiceproof doctor --accept-server",
        )
    return Finding("ok", "server", now)


# -- who else has, or may put, objects in the ledger's schema -------------------------------------

SHOWN = 3
NE = "OPERATOR(pg_catalog.<>)"

# In a schema that is shared with an application, other roles' objects are nothing odd unless they bear our names.
_OURS = f"(n.nspname {NE} 'public' OR pg_catalog.starts_with({{name}}::{TEXT}, 'twiceproof_'))"


def _foreign(catalogue: str, prefix: str, shown: str) -> str:
    name = f"o.{prefix}name"
    return f"""
    SELECT pg_catalog.concat({shown}, ' of ', pg_catalog.pg_get_userbyid(o.{prefix}owner)) AS it
    FROM pg_catalog.{catalogue} AS o, ledger AS l, pg_catalog.pg_namespace AS n
    WHERE o.{prefix}namespace {EQ} l.relnamespace AND n.oid {EQ} l.relnamespace AND o.{prefix}owner {NE} l.relowner
        AND {_OURS.replace("{name}", name)} AND NOT EXISTS (
            SELECT FROM pg_catalog.pg_depend AS d WHERE d.objid {EQ} o.oid AND d.deptype {EQ} 'e')"""  # noqa: S608 - constants


# An index or a sequence is reported with its table.
_RELATIONS = _foreign("pg_class", "rel", "'relation ', o.relname") + f" AND o.relkind {EQ} ANY ('{{r,p,v,m,f}}')"
STRANGERS = f"""
WITH ledger AS (
    SELECT relowner, relnamespace FROM pg_catalog.pg_class
    WHERE oid {EQ} pg_catalog.to_regclass('{{schema}}.twiceproof_records')::pg_catalog.oid
), foreigners AS (
    {_foreign("pg_proc", "pro", "'function ', o.oid::pg_catalog.regprocedure")}
    UNION ALL {_foreign("pg_operator", "opr", "'operator ', o.oid::pg_catalog.regoperator")}
    UNION ALL {_RELATIONS}
), creators AS (
    SELECT CASE WHEN a.grantee {EQ} 0 THEN 'PUBLIC' ELSE pg_catalog.pg_get_userbyid(a.grantee)::{TEXT} END AS who
    FROM ledger AS l, pg_catalog.pg_namespace AS n, LATERAL pg_catalog.aclexplode(n.nspacl) AS a
    WHERE n.oid {EQ} l.relnamespace AND a.privilege_type {EQ} 'CREATE'
        AND a.grantee {NE} n.nspowner AND a.grantee {NE} l.relowner
)
SELECT pg_catalog.json_build_array(
    (SELECT coalesce(pg_catalog.json_agg(it), '[]') FROM foreigners),
    (SELECT coalesce(pg_catalog.json_agg(who), '[]') FROM creators))"""  # noqa: S608 - constants


def _examine_schema(ask: Ask, schema: str) -> list[Finding]:
    ((text,),) = ask(in_schema(STRANGERS, schema), ())
    strangers, creators = msgspec.json.decode(text or b"", type=tuple[list[str], list[str]])
    return [_objects(strangers), _rights(creators, schema)]


def _objects(strangers: Sequence[str]) -> Finding:
    if strangers:
        more = f" and {len(strangers) - SHOWN} more" if len(strangers) > SHOWN else ""
        return Finding(
            "warn",
            "foreign objects",
            f"in the ledger's schema: {', '.join(strangers[:SHOWN])}{more}",
            "They are never called. Find out who put them there, and drop them.",
        )
    return Finding("ok", "foreign objects", "none in the ledger's schema")


def _rights(creators: Sequence[str], schema: str) -> Finding:
    if creators:
        who = ", ".join(creators)
        return Finding(
            "warn",
            "create rights",
            f"others may put objects into the ledger's schema: {who}",
            f"REVOKE CREATE ON SCHEMA {schema} FROM {who}; or keep the ledger in a schema of its own.",
        )
    return Finding("ok", "create rights", f"only the owner's, in {schema}")


# -- upkeep --------------------------------------------------------------------------------------

# Transactions of other users are only visible to members of pg_read_all_stats.
UPKEEP = f"""
SELECT pg_catalog.json_build_object(
    'live', coalesce(pg_catalog.max(n_live_tup), 0), 'dead', coalesce(pg_catalog.max(n_dead_tup), 0),
    'open', (SELECT coalesce(pg_catalog.max(extract(epoch FROM pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-)
        xact_start)), 0) FROM pg_catalog.pg_stat_activity WHERE datname {EQ} pg_catalog.current_database()))
FROM pg_catalog.pg_stat_user_tables
WHERE relid {EQ} pg_catalog.to_regclass('{{schema}}.twiceproof_records')::pg_catalog.oid"""  # noqa: S608 - constants


class Upkeep(msgspec.Struct, frozen=True):
    """Rows of the ledger's table, and for how many seconds the oldest transaction of its database is open."""

    live: int
    dead: int
    open: float


def _examine_upkeep(ask: Ask, schema: str) -> list[Finding]:
    ((text,),) = ask(in_schema(UPKEEP, schema), ())
    found = msgspec.json.decode(text or b"", type=Upkeep)
    return [_dead_rows(found.live, found.dead, schema), _oldest_transaction(found.open)]


def _dead_rows(live: int, dead: int, schema: str) -> Finding:
    if dead > max(live, FEW_DEAD):
        return Finding(
            "warn",
            "dead rows",
            f"{dead:,} beside {live:,}: autovacuum does not keep up",
            f"ALTER TABLE {schema}.twiceproof_records SET (autovacuum_vacuum_scale_factor = 0.02)",
        )
    return Finding("ok", "dead rows", f"{dead:,} beside {live:,}")


def _oldest_transaction(seconds: float) -> Finding:
    if seconds > LONG_OPEN:
        return Finding(
            "warn",
            "oldest transaction",
            f"open for {seconds / 60:.0f} minutes: rows that were deleted since then take up room",
            "Find it in pg_stat_activity by xact_start, and end it.",
        )
    return Finding("ok", "oldest transaction", f"open for {seconds:.0f} s")
