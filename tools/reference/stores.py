"""The stores: how each is named, what its URL takes, and what is checked of it at opening and by the doctor."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from twiceproof.stores.azure_table.engine import AzureTableEngine
from twiceproof.stores.azure_table.url import CONNECTION_STRING
from twiceproof.stores.azure_table.url import LANES as AZURE_LANES
from twiceproof.stores.dataverse.engine import OPTIONS as DATAVERSE_OPTIONS
from twiceproof.stores.dataverse.engine import DataverseEngine
from twiceproof.stores.dynamodb.engine import DynamoDbEngine
from twiceproof.stores.dynamodb.url import LANES as ROW_LANES
from twiceproof.stores.dynamodb.url import MOST_LANES as MOST_ROW_LANES
from twiceproof.stores.etcd.engine import EtcdEngine
from twiceproof.stores.mariadb.engine import MariadbEngine
from twiceproof.stores.mariadb.schema import OPTIONS as MARIADB_OPTIONS
from twiceproof.stores.memory import MemoryEngine
from twiceproof.stores.open import OPENERS, SQLITE_OPTIONS
from twiceproof.stores.postgres.engine import DEFAULTS, PostgresEngine
from twiceproof.stores.redis.engine import RedisEngine
from twiceproof.stores.redis.url import LANES, MOST_LANES, TLS_OPTIONS
from twiceproof.stores.sharepoint.engine import OPTIONS as SHAREPOINT_OPTIONS
from twiceproof.stores.sharepoint.engine import SharePointEngine
from twiceproof.stores.sqlite.engine import SqliteEngine
from twiceproof.stores.validate import MOST_BODY

from .source import SOURCE, Env, bound, calls, functions, parsed, texts
from .table import code, prose, table

__all__ = ["checks", "promises", "urls"]

FINDING = ["level", "name", "found", "advice"]
BACKENDS = (
    ("SQLite", "sqlite", SqliteEngine, ""),
    ("PostgreSQL", "postgres", PostgresEngine, "postgres"),
    ("MariaDB", "mariadb", MariadbEngine, "mariadb"),
    ("Redis, Valkey", "redis", RedisEngine, "redis"),
    ("Dataverse", "dataverse", DataverseEngine, "dataverse"),
    ("SharePoint list", "sharepoint", SharePointEngine, "sharepoint"),
    ("DynamoDB", "dynamodb", DynamoDbEngine, "dynamodb"),
    ("Azure Table Storage", "azure_table", AzureTableEngine, "azure-table"),
    ("etcd", "etcd", EtcdEngine, ""),
    ("memory", "memory", MemoryEngine, ""),
)
OPTIONS = {
    "sqlite": [f"`{name}=` {' or '.join(code(value) for value in legal)}" for name, legal in SQLITE_OPTIONS.items()],
    "postgres": [
        "`schema=` (twiceproof)",
        "libpq's own",
        *(f"`{name}=` ({value})" for name, value in DEFAULTS.items()),
    ],
    "mariadb": [
        "`durability=` `power` or `process`",
        *(f"`{name}=`" for name in MARIADB_OPTIONS),
    ],
    "redis": [
        f"`lanes=` 1 to {MOST_LANES:,} ({LANES})",
        "`durability=cache`: it may forget",
        f"with TLS {', '.join(f'`{name}=`' for name in sorted(TLS_OPTIONS))}",
    ],
    "dataverse": [f"`{name}=`" for name in DATAVERSE_OPTIONS],
    "sharepoint": [f"`{name}=`" for name in SHAREPOINT_OPTIONS],
    "dynamodb": [f"`lanes=` 1 to {MOST_ROW_LANES:,} ({ROW_LANES})", "`endpoint=` of an emulator"],
    "azure_table": [f"`lanes=` 1 to {MOST_ROW_LANES:,} ({AZURE_LANES})", f"without an account: `{CONNECTION_STRING}`"],
    "etcd": ["with TLS `ca=`"],
    "memory": [],
}

# Where what is found is a number or a word of the store's own: when it counts.
WHEN = {
    "SQLite version": "older than 3.35",
    "integrity": "`integrity_check` found damage",
    "free space": "less than 1 GiB",
    "max_connections": "below 20",
    "memory": "over 90 % of `maxmemory` is used",
    "mariadb version": "older than 10.6, or not MariaDB",
    "postgres version": "older than 14",
    "redis version": "Redis older than 6.2",
    "etcd version": "etcd older than 3.4",
}


def urls(_: str) -> list[str]:
    rows = [
        (name, _schemes(opener), f"`[{extra}]`" if extra else "none", "; ".join(OPTIONS[opener]), str(kind.batch_limit))
        for name, opener, kind, extra in BACKENDS
    ]
    return table(("store", "URL", "extra", "options in the URL (default)", "writes that land together"), rows)


def promises(_: str) -> list[str]:
    """What each engine declares: a new store joins with its own declaration."""
    rows = [
        (
            name,
            "claims" if kind.batch_limit == 1 else "everything",
            str(kind.batch_limit),
            f"{getattr(kind, 'body_limit', MOST_BODY):,} bytes",
            kind.promises.power_cut,
            kind.promises.failover,
            kind.promises.clock,
            f"{kind.promises.claim} / {kind.promises.duplicate}",
            "by age" if kind.newest_first else "by key",
            kind.promises.checked,
        )
        for name, _, kind, _ in BACKENDS
    ]
    heads = ("store", "carries", "writes together", "largest record", "acknowledged writes survive a power cut")
    return table((*heads, "a failover", "clock", "round trips: claim / duplicate", "lists", "checked against"), rows)


def _schemes(opener: str) -> str:
    found = [scheme for scheme, opens in OPENERS.items() if opens.__name__ == f"_{opener}"]
    return " ".join(
        f"`{scheme}://{'/file.db' if scheme == 'sqlite' else '' if scheme == 'memory' else '…'}`" for scheme in found
    )


def checks(store: str) -> list[str]:
    """What can be found of a store that is not simply well, as its doctor is written."""
    rows = list(dict.fromkeys(_findings(parsed(SOURCE / f"stores/{store}/doctor.py"))))
    return table(("what", "verdict", "when", "what to do"), [_filled(store, *row) for row in rows])


def _filled(store: str, name: str, verdict: str, found: str, advice: str) -> tuple[str, ...]:
    if not found.strip("…. ") or name in ("free space", "memory", "version"):
        found = WHEN.get(name) or WHEN.get(f"{store} {name}", "")
    return name, verdict, found, advice


def _findings(tree: ast.Module) -> Iterator[tuple[str, ...]]:
    for function in functions(tree).values():
        for env in _environments(tree, function):
            for call in calls(function, "Finding"):
                yield from _row(bound(call, FINDING), env)


def _environments(tree: ast.Module, function: ast.FunctionDef) -> Iterator[Env]:
    """What its names stand for: what it assigns, and what each caller gives it that is a text."""
    assigned = {
        node.targets[0].id: node.value
        for node in [*tree.body, *ast.walk(function)]
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    parameters = [argument.arg for argument in function.args.args]
    for call in calls(tree, function.name):
        given = {name: node for name, node in bound(call, parameters).items() if isinstance(node, ast.Constant)}
        yield {**assigned, **given}


def _row(given: Env, env: Env) -> Iterator[tuple[str, ...]]:
    levels = [level for level in texts(given["level"], env) if level != "ok"]
    if levels:
        name, found, advice = (max(texts(given.get(part), env), key=len, default="") for part in FINDING[1:])
        yield prose(name), " or ".join(f"`{level}`" for level in levels), prose(found), prose(advice)
