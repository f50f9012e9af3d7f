"""Brings a PostgreSQL database's schema up to date; safe when ten processes start at once."""

from __future__ import annotations

import psycopg

from ..errors import SchemaMismatch
from .migrations import migrations

__all__ = ["APPLIED", "is_current", "migrate"]

APPLIED = "SELECT coalesce(max(number), 0) FROM twiceproof_migrations"
LEDGER = "CREATE TABLE IF NOT EXISTS twiceproof_migrations (number int PRIMARY KEY, name text NOT NULL)"
MIGRATING = 0x7477696365  # "twice"
PATIENCE = 60.0  # with a process that has stopped in the middle of it, or a transaction that uses a table of ours


def is_current(applied: int) -> bool:
    """Whether nothing is left to apply. A newer release's schema is refused."""
    known = len(migrations("postgres"))
    if applied > known:
        raise SchemaMismatch(
            f"The database was written by a newer release (schema {applied}, this one knows {known}); "
            "upgrade twiceproof."
        )
    return applied == known


def migrate(db: psycopg.Connection) -> None:
    """Apply what is missing, all or nothing. The lock makes others queue, and they find it done."""
    with db.transaction():
        db.execute("SELECT set_config('lock_timeout', %s, true)", (f"{PATIENCE * 1000:.0f}",))
        db.execute("SELECT pg_advisory_xact_lock(%s)", (MIGRATING,))
        db.execute(LEDGER)
        done = _applied(db)
        is_current(done)
        for migration in migrations("postgres")[done:]:
            db.execute(migration.sql.encode())
            db.execute("INSERT INTO twiceproof_migrations VALUES (%s, %s)", (migration.number, migration.name))


def _applied(db: psycopg.Connection) -> int:
    row = db.execute(APPLIED).fetchone()
    return int(row[0]) if row else 0
