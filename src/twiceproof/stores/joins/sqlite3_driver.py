"""sqlite3: the standard library's own connection."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from ...drive import Inline, Operation
from ...errors import Misuse
from .driver import cut

__all__ = ["Sqlite3Driver"]


class Sqlite3Driver:
    """`begin` only looks: the write lock is the dialect's to wait for."""

    dialect = "sqlite"

    def __init__(self, connection: Any) -> None:
        self.handle = connection

    def begin(self) -> Operation[None]:
        if self.handle.in_transaction and getattr(self.handle, "autocommit", None) is not False:
            raise Misuse("The connection is already in a transaction; let connect= make a fresh one.")
        yield from ()

    def adopt(self) -> Operation[None]:
        if not self.handle.in_transaction:
            raise Misuse("The connection is in no transaction; run BEGIN IMMEDIATE on it first.")
        yield from ()

    def rows(self, sql: str, values: Sequence[str | None]) -> Operation[Sequence[Sequence[Any]]]:
        raise NotImplementedError

    def raw(self) -> Any:
        return self.handle

    def flush(self) -> Operation[None]:
        yield from ()

    def commit(self) -> Operation[None]:
        yield from Inline(self.handle.commit)

    def rollback(self) -> Operation[None]:
        yield from Inline(self.handle.rollback)

    def cut(self) -> None:
        cut(self.handle)

    def drop(self) -> None:
        with contextlib.suppress(Exception):
            self.handle.close()
