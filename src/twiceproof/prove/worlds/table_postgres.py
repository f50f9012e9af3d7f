"""A table in a PostgreSQL database."""

# ruff: noqa: S608 - names are quoted, values are parameters

from __future__ import annotations

from collections import Counter
from typing import Any

from ...errors import Misuse
from .table import Rows, refuse_many

__all__ = ["PostgresTable"]

COLUMNS = """
SELECT attname, pg_get_serial_sequence(quote_ident(nspname) || '.' || quote_ident(relname), attname)
FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid JOIN pg_namespace ON pg_namespace.oid = relnamespace
WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped AND attgenerated = '' ORDER BY attnum
"""
REACHING = """
SELECT conrelid::regclass::text FROM pg_constraint
WHERE confrelid = %s AND contype = 'f' AND confdeltype IN ('c', 'n', 'd')
"""


class PostgresTable:
    """Rows travel as COPY writes them, so that every type comes back as it was. Sequences are put back too."""

    def __init__(self, url: str, name: str) -> None:
        try:
            import psycopg
        except ImportError:
            raise Misuse(
                "--table postgresql://… needs psycopg, which is not installed; run: pip install 'twiceproof[postgres]'"
            ) from None
        try:
            db: Any = psycopg.connect(url, autocommit=True, connect_timeout=5)
        except psycopg.OperationalError:  # whose text may name more of the URL than is good
            raise Misuse("The table's database does not answer; check that it runs and the URL is right.") from None
        self._db: Any = db
        try:
            self._read(name)
        except BaseException:
            self.close()
            raise

    def _read(self, name: str) -> None:
        self._table = self._found(name)
        self._refuse_reaching(name)
        refuse_many(name, self._db.execute(f"SELECT count(*) FROM {self._table}").fetchone()[0])
        self._columns, self._sequences = self._declared()
        self._kept = Counter(self._lines().values())

    def _found(self, name: str) -> str:
        row = self._db.execute("SELECT to_regclass(%s)::oid, to_regclass(%s)::text", (name, name)).fetchone()
        if row[0] is None:
            raise Misuse(f"There is no table {name!r} in this database; name one after the #.")
        self._oid = row[0]
        return str(row[1])

    def _refuse_reaching(self, name: str) -> None:
        """Putting rows back must not change a table that nobody named."""
        row = self._db.execute(REACHING, (self._oid,)).fetchone()
        if row is not None:
            raise Misuse(f"{row[0]} refers to {name}, and would follow when rows are removed; name {row[0]} instead.")

    def _declared(self) -> tuple[str, dict[str, tuple[int, bool]]]:
        found = self._db.execute(COLUMNS, (self._oid,)).fetchall()
        sequences = {name: self._sequence(name) for _, name in found if name}
        return ", ".join('"' + name.replace('"', '""') + '"' for name, _ in found), sequences

    def _sequence(self, name: str) -> tuple[int, bool]:
        last, called = self._db.execute(f"SELECT last_value, is_called FROM {name}").fetchone()
        return int(last), bool(called)

    def rows(self) -> Rows:
        return {place: line.replace("\t", " | ").replace("\\N", "NULL") for place, line in self._lines().items()}

    def _lines(self) -> dict[str, str]:
        found: dict[str, str] = {}
        query = f"COPY (SELECT ctid, {self._columns} FROM {self._table}) TO STDOUT"
        with self._db.cursor() as cursor, cursor.copy(query) as copy:
            text = b"".join(bytes(block) for block in copy).decode()
        for line in text.split("\n")[:-1]:  # not splitlines(): a row may hold other separators
            place, _, row = line.partition("\t")
            found[place] = row
        return found

    def close(self) -> None:
        self._db.close()

    def put_back(self) -> None:
        with self._db.transaction():
            self._db.execute("SET CONSTRAINTS ALL DEFERRED")
            missing, other = Counter(self._kept), []
            for place, line in self._lines().items():
                if missing[line] > 0:
                    missing[line] -= 1
                else:
                    other.append(place)
            self._db.execute(f"DELETE FROM {self._table} WHERE ctid = ANY(%s::tid[])", (other,))
            with self._db.cursor() as cursor, cursor.copy(f"COPY {self._table} ({self._columns}) FROM STDIN") as copy:
                copy.write("".join(f"{line}\n" for line in missing.elements()))
            for name, (last, called) in self._sequences.items():
                self._db.execute("SELECT setval(%s::regclass, %s, %s)", (name, last, called))
