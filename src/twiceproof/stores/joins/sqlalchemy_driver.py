"""SQLAlchemy: Connection and Session, AsyncConnection and AsyncSession, over any of the other drivers."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from ...drive import Operation
from ...errors import Misuse
from .do import Do
from .driver import cut, in_percent

__all__ = ["SqlalchemyDriver"]

SQLITE = "pysqlite"


class SqlalchemyDriver:
    """Talks past SQLAlchemy's own SQL, in the words of the driver underneath."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        self._session = hasattr(handle, "flush")
        self._connection: Any = None if self._session else handle
        self._ours = False
        dialect = self._bind().dialect
        self.dialect = dialect.name
        self._percent = dialect.paramstyle in ("format", "pyformat")
        if dialect.name == "sqlite" and dialect.driver != SQLITE:
            raise Misuse(
                f"SQLAlchemy's {dialect.driver} cannot be joined; use the driver pysqlite, with a plain `def`."
            )

    def _bind(self) -> Any:
        return self.handle.get_bind() if self._session else self.handle

    def begin(self) -> Operation[None]:
        if self.handle.in_transaction():
            raise Misuse("The connection is already in a transaction; let connect= make a fresh one.")
        if self._session:
            self._connection = yield from Do(self.handle.connection)
        else:
            yield from Do(self.handle.begin)
        self._refuse_commits()

    def adopt(self) -> Operation[None]:
        if not self.handle.in_transaction():
            raise Misuse("The connection is in no transaction; open one with connection.begin().")
        if self._session:
            self._connection = yield from Do(self.handle.connection)

    def _sync(self) -> Any:
        return getattr(self._connection, "sync_connection", self._connection)

    def _refuse_commits(self) -> None:
        """A commit in the user's function would tear its work from the ledger's entry."""
        from sqlalchemy import event

        def refuse(_: Any) -> None:
            if not self._ours:
                raise Misuse(
                    "The transaction of a function under @app.transaction is committed with its ledger entry, when "
                    "it returns; leave out commit()."
                )

        event.listen(self._sync(), "commit", refuse)

    def rows(self, sql: str, values: Sequence[str | None]) -> Operation[Sequence[Sequence[Any]]]:
        words = in_percent(sql) if self._percent else sql
        result = yield from Do(lambda: self._connection.exec_driver_sql(words, tuple(values)))
        found: Sequence[Sequence[Any]] = result.fetchall()
        return found

    def raw(self) -> Any:
        return self._sync().connection.driver_connection

    def flush(self) -> Operation[None]:
        if self._session:
            yield from Do(self.handle.flush)

    def commit(self) -> Operation[None]:
        self._ours = True
        yield from Do(self.handle.commit)

    def rollback(self) -> Operation[None]:
        yield from Do(self.handle.rollback)

    def cut(self) -> None:
        with contextlib.suppress(Exception):
            if not self._sync().invalidated:
                cut(self.raw())

    def drop(self) -> None:
        """Not back into the pool: its transaction may be open still."""
        with contextlib.suppress(Exception):
            if not self._sync().invalidated:  # or asking for its connection would open another
                self._sync().connection.invalidate()
