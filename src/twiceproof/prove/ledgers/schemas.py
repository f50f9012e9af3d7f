"""Ledgers in schemas of their own in a PostgreSQL database. What else is in it is never touched."""

from __future__ import annotations

from secrets import token_hex
from typing import Any

from ...errors import Misuse, StoreUnavailable
from ...stores.base import Engine
from ...stores.open import open_store
from ..clocks import ManualClock
from .told_clock import ToldClock

__all__ = ["SchemaLedgers"]

PREFIX = "twiceproof_prove_"
CLOCK = """
CREATE TABLE {schema}.twiceproof_prove_clock (at double precision NOT NULL);
INSERT INTO {schema}.twiceproof_prove_clock VALUES (0);
CREATE OR REPLACE FUNCTION {schema}.twiceproof_now() RETURNS double precision LANGUAGE sql VOLATILE
RETURN (SELECT at FROM {schema}.twiceproof_prove_clock);
"""


class SchemaLedgers:
    """Needs the right to create schemas; a schema is made before a play and dropped after it."""

    def __init__(self, url: str) -> None:
        try:
            import psycopg
        except ImportError:
            raise Misuse(
                "This store needs psycopg, which is not installed; run: pip install 'twiceproof[postgres]'"
            ) from None
        from ...stores.postgres_schema import split_schema

        self._url, _ = split_schema(url)
        try:
            self._db = psycopg.connect(self._url, autocommit=True, connect_timeout=5)
        except psycopg.OperationalError:  # whose text may name more of the URL than is good
            raise StoreUnavailable(
                "PostgreSQL does not answer; check that it runs and that the URL is right.", unsure=False
            ) from None
        self._refuse_without_right()

    def _refuse_without_right(self) -> None:
        row = self._db.execute("SELECT has_database_privilege(current_database(), 'CREATE')").fetchone()
        if row is None or not row[0]:
            self._db.close()
            raise Misuse("This account may not create schemas here; GRANT CREATE ON DATABASE … to it, or use another.")

    def prepare(self) -> str:
        """Schema, tables and clock in one transaction: they are there, or nothing is."""
        from ...stores.postgres_schema import in_schema, migrate

        name = PREFIX + token_hex(8)
        with self._db.transaction():
            migrate(self._db, name)
            self._db.execute(in_schema(CLOCK, name))
        return name

    def open(self, name: str, at: float | None = None) -> tuple[Engine, ManualClock]:
        import psycopg

        db = psycopg.connect(self._url, autocommit=True, connect_timeout=5)
        clock = ToldClock(lambda now: _tell(db, name, now), at)
        return open_store(_with(self._within(name), schema=name), clock=clock).engine, clock

    def forget(self, name: str) -> None:
        self._db.execute(f"DROP SCHEMA IF EXISTS {name} CASCADE".encode())

    def close(self) -> None:
        self._db.close()

    def _within(self, schema: str) -> str:
        """The same URL, in this schema and no other: not even what is in `public` can be seen from there.

        Tables this young have no statistics, and the server would compile each query for a tenth of a second.
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
    from ...stores.postgres_schema import in_schema

    db.execute(in_schema("UPDATE {schema}.twiceproof_prove_clock SET at = %s", schema), (now,))
