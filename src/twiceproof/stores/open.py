"""Opens a store by URL; accepts a server that took over."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit, urlunsplit

from ..clock import Clock, system_clock
from ..errors import Misuse
from .base import POINT, Engine, NoLedger
from .encryption import Keyring, as_keyring
from .grouped import GroupedStore

__all__ = ["ACCEPT", "BEFORE_ACCEPTING", "accept_server", "open_store", "refuse_driver", "sqlite_file"]


BEFORE_ACCEPTING = (
    "After a planned switchover nothing is missing; else find out what was done last, whose claims may be gone."
)
ACCEPT = "Then accept this server as it is, for everybody: twiceproof doctor --accept-server"


def accept_server(url: str, *, clock: Clock = system_clock) -> None:
    """Accept this server for all processes; numbers skip ahead, so that none is drawn twice."""
    scheme = urlsplit(url).scheme
    if scheme in ("postgresql", "postgres"):
        from .postgres.engine import PostgresEngine

        PostgresEngine(url, clock=clock, create=False, accept=True).close()
    elif scheme in ("mariadb", "mysql"):
        from .mariadb.engine import MariadbEngine

        MariadbEngine(url, clock=clock, create=False, accept=True).close()
    elif scheme.startswith("redis"):
        from .redis.engine import RedisEngine

        RedisEngine(url, clock=clock, create=False, accept=True).close()
    elif path := sqlite_file(url) if scheme == "sqlite" else None:
        from .sqlite.restored import accept_restored

        accept_restored(path, clock)
    else:
        raise Misuse("This ledger has no server that another could take over from; there is nothing to accept.")


SQLITE_OPTIONS: dict[str, tuple[str, ...]] = {"durability": ("power", "process")}  # the first is what holds otherwise


def open_store(
    url: str, *, clock: Clock = system_clock, keys: str | Keyring | None = None, create: bool = True
) -> GroupedStore:
    """`sqlite:///file.db`, `postgresql://…`, `redis://…`, `memory://`, or another of `OPENERS`.

    With `keys` (`id:base64`, the one that seals first) what is stored is sealed. Without `create`, `NoLedger` where
    there is none.
    """
    parts = _split(url)
    opener = OPENERS.get(parts.scheme)
    if opener is None:
        refuse_driver(url)
        known = ", ".join(f"{name}://" for name in sorted(OPENERS))
        raise Misuse(f"{_scheme_of(url)}; use one of {known}. A file is written sqlite:///file.db")
    if parts.scheme == "sqlite" and sqlite_file(url) is None:
        raise Misuse("A SQLite URL has three slashes and a file, such as sqlite:///twiceproof.db; write it so.")
    if parts.scheme == "sqlite" and str(sqlite_file(url)) == ":memory:":
        raise Misuse("A ledger in memory is no SQLite file; write memory://, or sqlite:///file.db to keep it.")
    keyring = as_keyring(keys) if keys else None
    engine = opener(parts, clock, create)
    return GroupedStore(engine if keyring is None else _sealed(engine, keyring), clock=clock)


def refuse_driver(url: str) -> None:
    """As SQLAlchemy writes it. Never more than the scheme is said: the rest may hold a password."""
    scheme = url.partition("://")[0]
    store, plus, driver = scheme.partition("+")
    if plus and store in OPENERS and scheme not in OPENERS:
        raise Misuse(
            f"{scheme[:40]!r} names a driver, and twiceproof brings its own; drop +{driver[:40]}, and write {store}://…"
        )


def _split(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError:  # its text may quote the password, as may that of its context
        raise Misuse(
            "The store's URL cannot be read; write it like postgresql://user:password@host/database, "
            "with special characters percent-encoded."
        ) from None


def sqlite_file(url: str) -> Path | None:
    """The file that a SQLite URL names. None where slashes are missing: it would name another file."""
    path = urlsplit(url).path
    return Path(unquote(path[1:])) if url.partition(":")[2].startswith("///") and len(path) > 1 else None


def anchored(url: str, directory: Path) -> str:
    """A SQLite URL whose path is relative, with that path taken from this directory; any other URL as it is."""
    path = sqlite_file(url) if url.startswith("sqlite:///") else None
    if path is None or path.is_absolute() or str(path) == ":memory:":
        return url
    written = urlsplit(url).path
    rest = url[url.index(written, len("sqlite://")) + len(written) :]
    return f"sqlite:///{quote(str(directory.absolute() / path))}{rest}"


def _sealed(engine: Engine, keyring: Keyring) -> Engine:
    from .encryption import EncryptedEngine

    return EncryptedEngine(engine, keyring)


def _scheme_of(url: str) -> str:
    """Never more than the scheme: the rest may hold a password."""
    scheme, found, _ = url.partition("://")
    return f"{scheme[:40]!r} is not a store that twiceproof knows" if found else "A store is named by a URL"


def _memory(parts: SplitResult, clock: Clock, create: bool) -> Engine:
    if not create:
        raise NoLedger(f"A memory:// ledger lives and dies with its own process; {POINT}.")
    from .memory import MemoryEngine

    return MemoryEngine(clock)


def _sqlite(parts: SplitResult, clock: Clock, create: bool) -> Engine:
    from .sqlite.engine import SqliteEngine
    from .sqlite.schema import require_ledger

    options, path = _options(parts, SQLITE_OPTIONS), Path(unquote(parts.path[1:]))
    if not create:
        require_ledger(path)
    return SqliteEngine(path, clock=clock, durability=options.get("durability", "power"))


def _postgres(parts: SplitResult, clock: Clock, create: bool) -> Engine:
    try:
        from .postgres.engine import PostgresEngine
    except ImportError as error:
        raise _extra("postgres", error) from error
    return PostgresEngine(urlunsplit(parts), clock=clock, create=create)


def _mariadb(parts: SplitResult, clock: Clock, create: bool) -> Engine:
    try:
        from .mariadb.engine import MariadbEngine
    except ImportError as error:
        raise _extra("mariadb", error) from error
    return MariadbEngine(urlunsplit(parts), clock=clock, create=create)


def _redis(parts: SplitResult, clock: Clock, create: bool) -> Engine:
    try:
        from .redis.engine import RedisEngine
    except ImportError as error:
        raise _extra("redis", error) from error
    return RedisEngine(urlunsplit(parts), clock=clock, create=create)


def _dataverse(parts: SplitResult, clock: Clock, create: bool) -> Engine:
    from .dataverse.engine import DataverseEngine

    _require_client("dataverse")
    return DataverseEngine(urlunsplit(parts), clock=clock)


def _sharepoint(parts: SplitResult, clock: Clock, create: bool) -> Engine:
    from .sharepoint.engine import SharePointEngine

    _require_client("sharepoint")
    return SharePointEngine(urlunsplit(parts), clock=clock)


def _require_client(extra: str) -> None:
    try:
        import httpcore2  # noqa: F401
    except ImportError as error:
        raise _extra(extra, error) from error


def _dynamodb(parts: SplitResult, clock: Clock, create: bool) -> Engine:
    try:
        from .dynamodb.engine import DynamoDbEngine
    except ImportError as error:
        raise _extra("dynamodb", error) from error
    return DynamoDbEngine(urlunsplit(parts), clock=clock, create=create)


def _azure_table(parts: SplitResult, clock: Clock, create: bool) -> Engine:
    try:
        from .azure_table.engine import AzureTableEngine
    except ImportError as error:
        raise _extra("azure-table", error) from error
    return AzureTableEngine(urlunsplit(parts), clock=clock, create=create)


def _etcd(parts: SplitResult, clock: Clock, create: bool) -> Engine:
    from .etcd.engine import EtcdEngine

    return EtcdEngine(urlunsplit(parts), clock=clock, create=create)


def _extra(name: str, error: ImportError) -> Misuse:
    return Misuse(f"This store needs {error.name}, which is not installed; run: pip install 'twiceproof[{name}]'")


def _options(parts: SplitResult, legal: dict[str, tuple[str, ...]]) -> dict[str, str]:
    """The query part, checked: an option that is accepted but not enforced is worse than none."""
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    for name, value in options.items():
        if name not in legal:
            raise Misuse(f"In the store's URL, {name}= is not known; this store has: {', '.join(legal)}.")
        if value not in legal[name]:
            raise Misuse(f"In the store's URL, {name}={value!r} is not valid; use one of {', '.join(legal[name])}.")
    return options


OPENERS: dict[str, Callable[[SplitResult, Clock, bool], Engine]] = {
    "memory": _memory,
    "sqlite": _sqlite,
    "postgresql": _postgres,
    "postgres": _postgres,
    "mariadb": _mariadb,
    "mysql": _mariadb,
    "redis": _redis,
    "rediss": _redis,
    "redis+cluster": _redis,
    "rediss+cluster": _redis,
    "dataverse": _dataverse,
    "sharepoint": _sharepoint,
    "dynamodb": _dynamodb,
    "azure-table": _azure_table,
    "etcd": _etcd,
    "etcds": _etcd,
}
