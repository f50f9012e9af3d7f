"""The ledger's schema in PostgreSQL: its name, creating it, and bringing it up to date."""

from __future__ import annotations

import re
from urllib.parse import unquote

import psycopg

from ...errors import Misuse, SchemaMismatch, StoreUnsafe
from ..base import Finding, Migration, migrations, refuse_locked

__all__ = [
    "APPLIED",
    "EQ",
    "SCHEMA",
    "TEXT",
    "in_schema",
    "is_current",
    "migrate",
    "migration_sql",
    "split_schema",
]


SCHEMA = "twiceproof"  # where the URL names no other
NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}")
EQ = "OPERATOR(pg_catalog.=)"
TEXT = "pg_catalog.text"

APPLIED = "SELECT coalesce(pg_catalog.max(number), 0) FROM {schema}.twiceproof_migrations"
LEDGER = "CREATE TABLE IF NOT EXISTS {schema}.twiceproof_migrations (number int PRIMARY KEY, name text NOT NULL)"
NOT_OURS = """
SELECT tableowner FROM pg_tables WHERE schemaname = %s AND tablename = 'twiceproof_migrations'
    AND NOT pg_has_role(current_user, tableowner, 'USAGE')"""
MIGRATING = 0x7477696365  # "twice"
PATIENCE = 60.0  # seconds to wait for a migration that hangs in another process, or a transaction that uses a table


def split_schema(url: str) -> tuple[str, str | None]:
    """The URL for libpq, which does not accept `schema=`, and the schema that it names."""
    front, _, query = url.partition("?")
    options = query.split("&") if query else []
    named = [option for option in options if option.partition("=")[0] == "schema"]
    rest = "&".join(option for option in options if option not in named)
    return f"{front}?{rest}" if rest else front, _checked(unquote(named[-1].partition("=")[2])) if named else None


def _checked(name: str) -> str:
    if not NAME.fullmatch(name) or name.startswith("pg_") or name == "information_schema":
        raise Misuse(
            f"schema={name!r} cannot be the ledger's; use small letters, digits and underscores, as in {SCHEMA}."
        )
    return name


def in_schema(sql: str, schema: str) -> bytes:
    """The statement with the ledger's schema in every `{schema}`."""
    return sql.replace("{schema}", f'"{schema}"').encode()


def migration_sql(migration: Migration, schema: str = SCHEMA) -> bytes:
    return in_schema(migration.sql, schema)


def is_current(applied: int) -> bool:
    """Whether no migration is missing. A newer release's schema is refused."""
    refuse_locked(applied)
    known = len(migrations("postgres"))
    if applied > known:
        raise SchemaMismatch(
            f"The database was written by a newer release (schema {applied}, this one knows {known}); "
            "upgrade twiceproof."
        )
    return applied == known


def migrate(db: psycopg.Connection, schema: str) -> None:
    """Apply the missing migrations, all or none. The lock makes other processes queue, and they find it done."""
    with db.transaction():
        db.execute("SELECT pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true)")
        db.execute("SELECT set_config('lock_timeout', %s, true)", (f"{PATIENCE * 1000:.0f}",))
        db.execute("SELECT pg_advisory_xact_lock(%s)", (MIGRATING,))
        if db.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", (schema,)).fetchone() is None:
            db.execute(in_schema("CREATE SCHEMA {schema}", schema))
        _refuse_foreign_table(db, schema)
        db.execute(in_schema(LEDGER, schema))
        done = _applied(db, schema)
        is_current(done)
        for migration in migrations("postgres")[done:]:
            db.execute(migration_sql(migration, schema))
            record = in_schema("INSERT INTO {schema}.twiceproof_migrations VALUES (%s, %s)", schema)
            db.execute(record, (migration.number, migration.name))


def _refuse_foreign_table(db: psycopg.Connection, schema: str) -> None:
    """A table that another role created may have a trigger of theirs, which would run with our rights."""
    row = db.execute(NOT_OURS, (schema,)).fetchone()
    if row is not None:
        finding = Finding(
            "refuse",
            "owner",
            f"{schema}.twiceproof_migrations belongs to {row[0]}",
            f"Open the store with the role {row[0]}, or drop the table if it is not the ledger's.",
        )
        raise StoreUnsafe(
            f"{finding.found}, so that it cannot be brought up to date. {finding.advice}", findings=[finding]
        )


def _applied(db: psycopg.Connection, schema: str) -> int:
    row = db.execute(in_schema(APPLIED, schema)).fetchone()
    return int(row[0]) if row else 0
