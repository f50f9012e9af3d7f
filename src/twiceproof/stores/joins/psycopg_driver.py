"""psycopg 3, blocking and awaited. Its own transaction block refuses a `commit()` in the user's function."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from ...drive import Operation
from ...errors import Misuse
from .do import Do
from .driver import cut, in_percent

__all__ = ["PsycopgDriver"]

IDLE = 0


class _Back(Exception):
    """Tells psycopg's transaction block to roll back."""


class PsycopgDriver:
    dialect = "postgresql"

    def __init__(self, connection: Any) -> None:
        self.handle = connection
        self._transaction: Any = None
        self._awaited = hasattr(connection, "__aenter__")

    def begin(self) -> Operation[None]:
        if self.handle.info.transaction_status != IDLE:
            raise Misuse("The connection is already in a transaction; let connect= make a fresh one.")
        transaction = self.handle.transaction()
        yield from Do(transaction.__aenter__ if self._awaited else transaction.__enter__)
        self._transaction = transaction

    def adopt(self) -> Operation[None]:
        yield from ()

    def rows(self, sql: str, values: Sequence[str | None]) -> Operation[Sequence[Sequence[Any]]]:
        cursor = self.handle.cursor(row_factory=_plain)  # the connection's own may make anything of a row
        yield from Do(lambda: cursor.execute(in_percent(sql).encode(), values))
        found: Sequence[Sequence[Any]] = yield from Do(cursor.fetchall)
        return found

    def raw(self) -> Any:
        raise NotImplementedError

    def flush(self) -> Operation[None]:
        yield from ()

    def commit(self) -> Operation[None]:
        yield from self._end(None)

    def rollback(self) -> Operation[None]:
        if self._transaction is not None:
            yield from self._end(_Back())

    def _end(self, error: _Back | None) -> Operation[None]:
        transaction, self._transaction = self._transaction, None
        leave = transaction.__aexit__ if self._awaited else transaction.__exit__
        yield from Do(lambda: leave(type(error) if error else None, error, None))

    def cut(self) -> None:
        cut(self.handle)

    def drop(self) -> None:
        with contextlib.suppress(Exception):
            self.handle.pgconn.finish()


def _plain(cursor: Any) -> Any:
    return tuple
