"""What a MariaDB server can promise here: durability, replication, locks, limits, the clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from msgspec import Struct

from ...clock import Clock
from ...errors import StoreUnsafe
from ..base import Finding, refuse_unsafe_findings
from .rows import NOW, LedgerSql, Row

__all__ = ["Durability", "MariadbSettings", "examine", "refuse_unsafe", "refuse_unsafe_tables", "restored", "tables"]

Ask = Callable[..., Sequence[Sequence[Row]]]
Durability = Literal["power", "process"]

OLDEST = (10, 6)
MOST_SKEW = 1.0
FEW_CONNECTIONS = 20
PAGE = 16_384
BODIES = 64 * 1024 * 1024
LEASE = 30.0  # a claim's default
LESS = "or, if a power cut may lose the last writes, add ?durability=process to the URL"

ASKED = (
    *("version", "innodb_flush_log_at_trx_commit", "innodb_doublewrite", "innodb_flush_method", "log_bin"),
    *("sync_binlog", "binlog_format", "read_only", "innodb_page_size", "max_allowed_packet", "max_connections"),
    *("innodb_rollback_on_timeout", "idle_transaction_timeout", "wsrep_on", "wsrep_cluster_name"),
    *("wsrep_osu_method", "innodb_force_recovery", "rpl_semi_sync_master_enabled"),
)
STATUS = (
    "slaves_connected",
    "slave_running",
    "wsrep_cluster_status",
    "wsrep_local_state_comment",
    "wsrep_cluster_size",
)


class MariadbSettings(Struct, frozen=True):
    """The server's variables and states, with names in lower case. Some builds lack some of them."""

    variables: dict[str, str]
    states: dict[str, str]

    @classmethod
    def read(cls, ask: Ask) -> MariadbSettings:
        variables, states = ask(_named("global_variables", ASKED), _named("global_status", STATUS))
        return cls(_as_dict(variables), _as_dict(states))

    def get(self, name: str) -> str:
        return self.variables.get(name, "")

    @property
    def galera(self) -> bool:
        return self.get("wsrep_on") == "ON"


def _named(table: str, names: Sequence[str]) -> tuple[str, Sequence[str]]:
    marks = ",".join(["%s"] * len(names))
    return (
        f"SELECT LOWER(variable_name), variable_value FROM information_schema.{table}"  # noqa: S608
        f" WHERE variable_name IN ({marks})",
        [name.upper() for name in names],
    )


# A restored dump, a conversion of the whole database: what is there may no longer be what was created.
ENGINES = (
    "SELECT table_name, engine FROM information_schema.tables WHERE table_schema = %s"
    " AND table_name IN ('twiceproof_records', 'twiceproof_facts', 'twiceproof_number') AND engine <> 'InnoDB'"
)
COLLATIONS = (
    "SELECT column_name, collation_name FROM information_schema.columns WHERE table_schema = %s"
    " AND table_name = 'twiceproof_records' AND column_name IN ('space', 'kind', 'key') AND collation_name IS NOT NULL"
)


def _as_dict(rows: Sequence[Row]) -> dict[str, str]:
    return {str(name): str(value) for name, value in rows}


def refuse_unsafe(settings: MariadbSettings, durability: Durability) -> None:
    for found in promises(settings, durability):
        if found.level == "refuse":
            raise StoreUnsafe(f"{found.name}: {found.found}. {found.advice}", findings=[found])


def promises(settings: MariadbSettings, durability: Durability) -> Iterator[Finding]:
    """Return the findings about durability, for opening as well as for the doctor."""
    yield _version(settings.get("version"))
    yield _role(settings)
    yield _flush(settings.get("innodb_flush_log_at_trx_commit"), durability)
    yield _doublewrite(settings, durability)
    yield _binlog(settings, durability)
    yield _page_size(int(settings.get("innodb_page_size") or PAGE))
    if settings.galera:
        yield _cluster(settings)


def tables(ask: Ask, database: str) -> list[Finding]:
    """The ledger's own tables: without transactions, or with keys that compare loosely, two callers would win."""
    engines, collations = ask((ENGINES, [database]), (COLLATIONS, [database]))
    return [_engine(engines), _comparison(collations)]


def refuse_unsafe_tables(ask: Ask, database: str) -> None:
    refuse_unsafe_findings("MariaDB", tables(ask, database))


def restored(ask: Ask, sql: LedgerSql) -> list[Finding]:
    """Whether the ledger was restored from a backup, as noted when it was opened."""
    return [_restored(noticed) for (noticed,) in ask((sql.fact("restored"), ()))[0] if noticed]


def _restored(noticed: object) -> Finding:
    return Finding(
        "warn",
        "restored",
        f"the ledger's tables were restored, copied or moved, noticed {noticed}",
        "What was done since the backup may be done again: settle it, then run twiceproof doctor --accept-server",
    )


def _engine(others: Sequence[Row]) -> Finding:
    if not others:
        return Finding("ok", "storage engine", "InnoDB")
    name, engine = others[0]
    return Finding(
        "refuse",
        "storage engine",
        f"{name} is kept by {engine}, which has no transactions",
        f"ALTER TABLE {name} ENGINE=InnoDB.",
    )


def _comparison(collated: Sequence[Row]) -> Finding:
    if not collated:
        return Finding("ok", "keys", "compared byte by byte")
    name, collation = collated[0]
    return Finding(
        "refuse",
        "keys",
        f"the column {name} is compared by {collation}, which takes keys that differ for the same",
        "Make space, kind and key VARBINARY again, or restore the tables as they were.",
    )


def _version(text: str) -> Finding:
    if "mariadb" not in text.lower():
        return Finding(
            "refuse",
            "version",
            f"{text}, which is not MariaDB",
            "MySQL lacks the sequences and statements that the ledger uses; use MariaDB 10.6 or later, or PostgreSQL.",
        )
    number = tuple(int(part) for part in text.partition("-")[0].split(".")[:2])
    level = "ok" if number >= OLDEST else "refuse"
    return Finding(level, "version", text, "" if level == "ok" else "Use 10.6 or later.")


def _role(settings: MariadbSettings) -> Finding:
    if settings.get("read_only") != "OFF":
        return Finding("refuse", "role", "read_only, as a replica is", "Point the URL at the primary.")
    if settings.states.get("slave_running") == "ON":
        return Finding(
            "refuse",
            "role",
            "a replica that accepts writes, which its primary never sees",
            "Point the URL at the primary.",
        )
    if settings.get("innodb_force_recovery") not in ("", "0"):
        return Finding("refuse", "role", "started with innodb_force_recovery", "Start the server without it.")
    return Finding("ok", "role", "primary")


def _flush(value: str, durability: Durability) -> Finding:
    name = "innodb_flush_log_at_trx_commit"
    if value in ("1", "3"):
        return Finding("ok", name, value)
    if value == "2" and durability == "process":
        return Finding("warn", name, "2: a power cut loses up to a second of acknowledged writes", f"Set {name}=1.")
    loses = "a crash of the server" if value == "0" else "a power cut"
    more = "" if value == "0" else f", {LESS}"
    return Finding("refuse", name, f"{value}: {loses} loses acknowledged writes", f"Set {name}=1{more}.")


def _doublewrite(settings: MariadbSettings, durability: Durability) -> Finding:
    method = settings.get("innodb_flush_method").lower()
    if method in ("nosync", "littlesync"):
        return Finding(
            "refuse", "innodb_flush_method", f"{method}: a power cut loses writes", "Set innodb_flush_method=O_DIRECT."
        )
    if settings.get("innodb_doublewrite") == "OFF":
        level = "warn" if durability == "process" else "refuse"
        return Finding(level, "innodb_doublewrite", "OFF: a power cut can tear pages", "Set innodb_doublewrite=ON.")
    return Finding("ok", "innodb_doublewrite", "ON")


def _binlog(settings: MariadbSettings, durability: Durability) -> Finding:
    if settings.get("log_bin") != "ON":
        return Finding("ok", "sync_binlog", "no binary log")
    if settings.get("binlog_format") == "STATEMENT":
        return Finding(
            "refuse", "binlog_format", "STATEMENT, which READ COMMITTED cannot be logged in", "Set binlog_format=ROW."
        )
    value = settings.get("sync_binlog")
    if value == "1":
        return Finding("ok", "sync_binlog", value)
    if durability == "process":
        return Finding("warn", "sync_binlog", f"{value}: a power cut loses acknowledged writes", "Set sync_binlog=1.")
    return Finding(
        "refuse",
        "sync_binlog",
        f"{value}: a power cut loses the log's end, and recovery rolls back what is not in it",
        f"Set sync_binlog=1, {LESS}.",
    )


def _page_size(size: int) -> Finding:
    if size >= PAGE:
        return Finding("ok", "innodb_page_size", str(size))
    return Finding(
        "refuse", "innodb_page_size", f"{size}: long keys do not fit into an index", f"Use pages of {PAGE} bytes."
    )


def _cluster(settings: MariadbSettings) -> Finding:
    status = settings.states.get("wsrep_cluster_status", "")
    state = settings.states.get("wsrep_local_state_comment", "")
    if status != "Primary":
        return Finding(
            "refuse", "galera", f"this node is cut off ({status or 'no status'})", "Point the URL at another node."
        )
    level = "ok" if state in ("Synced", "Donor/Desynced") else "warn"
    size = settings.states.get("wsrep_cluster_size", "?")
    return Finding(
        level, "galera", f"{size} nodes, this one {state}", "" if level == "ok" else "Wait until it is Synced."
    )


# -- for the doctor alone ------------------------------------------------------------------------


def examine(ask: Ask, settings: MariadbSettings, durability: Durability, clock: Clock) -> list[Finding]:
    """Return the findings that need no ledger."""
    before = clock.now()
    (((now,),),) = ask((f"SELECT {NOW}", ()))
    skew = now - (before + clock.now()) / 2
    (((cipher,), *_), ((here,),)) = ask(
        ("SELECT variable_value FROM information_schema.session_status WHERE variable_name = 'SSL_CIPHER'", ()),
        ("SELECT USER() RLIKE '@(localhost|127[.].*|::1)$'", ()),
    )
    return [
        *promises(settings, durability),
        _replicas(settings),
        _locks(settings),
        _packet(int(settings.get("max_allowed_packet") or 0)),
        _skew(skew),
        _connections(int(settings.get("max_connections") or 0)),
        _encryption(tls=bool(cipher), here=bool(here)),
    ]


def _replicas(settings: MariadbSettings) -> Finding:
    replicas = int(settings.states.get("slaves_connected", "0") or 0)
    if replicas:
        how = "semi-synchronous" if settings.get("rpl_semi_sync_master_enabled") == "ON" else "asynchronous"
        return Finding(
            "warn",
            "replication",
            f"{replicas} {how}: a failover can lose acknowledged writes",
            "Do not promote automatically, or use Galera.",
        )
    return Finding("ok", "replication", "no replicas")


def _locks(settings: MariadbSettings) -> Finding:
    seconds = float(settings.get("idle_transaction_timeout") or 0)
    name = "idle_transaction_timeout"
    if not seconds:
        return Finding(
            "warn",
            name,
            "unset: a forgotten transaction can hold its records for ever",
            f"Set {name} for the users that join twiceproof's transactions.",
        )
    if seconds > LEASE:
        return Finding(
            "warn",
            name,
            f"{seconds:g} s: a forgotten transaction can hold its records for longer than a lease lasts",
            f"Set {name} to {LEASE:g} s or less.",
        )
    return Finding("ok", name, f"{seconds:g} s")


def _packet(size: int) -> Finding:
    if size >= BODIES:
        return Finding("ok", "max_allowed_packet", f"{size:,} bytes")
    return Finding(
        "warn",
        "max_allowed_packet",
        f"{size:,} bytes: a larger result or input is refused",
        f"Set max_allowed_packet to {BODIES:,} to keep all that twiceproof accepts.",
    )


def _skew(seconds: float) -> Finding:
    if abs(seconds) > MOST_SKEW:
        found = f"the server's differs from ours by {seconds:+.1f} s"
        return Finding("warn", "clock", found, "Leases use the server's; run NTP on both.")
    return Finding("ok", "clock", f"{seconds:+.3f} s from ours")


def _connections(most: int) -> Finding:
    level = "ok" if most >= FEW_CONNECTIONS else "warn"
    advice = "" if level == "ok" else "Each process uses up to three; raise max_connections."
    return Finding(level, "max_connections", str(most), advice)


def _encryption(*, tls: bool, here: bool) -> Finding:
    if tls or here:
        return Finding("ok", "encryption", "TLS" if tls else "none, on this machine only")
    return Finding("warn", "encryption", "none: results travel in the clear", "Add ssl_ca=… to the store's URL.")
