"""asyncpg: a connection, or one lent by a pool."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from ...drive import Operation
from ...errors import Misuse
from .do import Do
from .driver import cut

__all__ = ["AsyncpgDriver"]


class AsyncpgDriver:
    dialect = "postgresql"

    def __init__(self, connection: Any) -> None:
        self.handle = connection
        self._transaction: Any = None

    def begin(self) -> Operation[None]:
        if self.handle.is_in_transaction():
            raise Misuse("The connection is already in a transaction; let connect= make a fresh one.")
        transaction = self.handle.transaction()
        yield from Do(transaction.start)
        self._transaction = transaction

    def adopt(self) -> Operation[None]:
        if not self.handle.is_in_transaction():
            raise Misuse("The connection is in no transaction; open one with `async with connection.transaction():`.")
        yield from ()

    def rows(self, sql: str, values: Sequence[str | None]) -> Operation[Sequence[Sequence[Any]]]:
        found: Sequence[Sequence[Any]] = yield from Do(lambda: self.handle.fetch(sql, *values))
        return found

    def raw(self) -> Any:
        raise NotImplementedError

    def flush(self) -> Operation[None]:
        yield from ()

    def commit(self) -> Operation[None]:
        transaction, self._transaction = self._transaction, None
        yield from Do(transaction.commit)

    def rollback(self) -> Operation[None]:
        transaction, self._transaction = self._transaction, None
        if transaction is not None:
            yield from Do(transaction.rollback)

    def cut(self) -> None:
        cut(self.handle)

    def drop(self) -> None:
        with contextlib.suppress(Exception):
            self.handle.terminate()
