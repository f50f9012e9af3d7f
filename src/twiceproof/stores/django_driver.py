"""Django: the thread's own connection, in an `atomic` block that only this driver leaves."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from ..errors import Misuse
from ..operations import Inline, Operation
from .user_drivers import cut, in_percent

__all__ = ["DjangoDriver", "django_source"]


class _Back(Exception):
    """Tells Django's atomic block to roll back."""


def django_source(connection: Any) -> Callable[[], Any]:
    """`connect=django.db.connection`, or one of `connections`: each thread has its own under that name."""
    from django.db import connections

    alias = connection.alias
    return lambda: connections[alias]


class DjangoDriver:
    """Models and querysets that use the same database alias take part: they are on the same connection."""

    def __init__(self, connection: Any) -> None:
        self.handle = connection
        self.dialect = str(connection.vendor)
        self._atomic: Any = None

    def begin(self) -> Operation[None]:
        self._refuse_loop()
        yield from Inline(self._begin)

    def _begin(self) -> None:
        from django.db import transaction

        handle = self.handle
        if handle.in_atomic_block:
            raise Misuse(
                "The connection is already in a transaction: an atomic block is around this call, and whether its work "
                "stays is decided there. Call the flow outside of it, or start it when that has committed: "
                "transaction.on_commit(lambda: flow.start(…)); for a view, @transaction.non_atomic_requests; for a "
                "test, TransactionTestCase."
            )
        handle.close_if_unusable_or_obsolete()
        if not handle.get_autocommit():
            raise Misuse('The connection has autocommit off; take "AUTOCOMMIT": False out of DATABASES.')
        atomic = transaction.Atomic(using=handle.alias, savepoint=True, durable=True)
        atomic.__enter__()
        self._atomic = atomic

    def _refuse_loop(self) -> None:
        import asyncio

        with contextlib.suppress(RuntimeError):
            asyncio.get_running_loop()
            raise Misuse(
                "Django's connections are blocking; make the function under @app.transaction a `def`, and call it from "
                "a `def` flow."
            )

    def adopt(self) -> Operation[None]:
        if not self.handle.in_atomic_block:
            raise Misuse("The connection is in no transaction; open one with transaction.atomic().")
        yield from ()

    def rows(self, sql: str, values: Sequence[Any]) -> Operation[Sequence[Sequence[Any]]]:
        return (yield from Inline(lambda: self._rows(in_percent(sql), values)))

    def _rows(self, sql: str, values: Sequence[Any]) -> Sequence[Sequence[Any]]:
        with self.handle.cursor() as cursor:
            cursor.execute(sql, list(values))
            found: Sequence[Sequence[Any]] = cursor.fetchall()
            return found

    def raw(self) -> Any:
        return self.handle.connection

    def flush(self) -> Operation[None]:
        """Django would silently roll a broken block back: the entry must not count as written."""
        if self.handle.needs_rollback or self.handle.closed_in_transaction:
            from django.db.transaction import TransactionManagementError

            raise TransactionManagementError(
                "An error was caught inside the transaction, or its connection was closed, so Django rolls it back; "
                "catch database errors around a `with transaction.atomic():` of their own."
            )
        yield from ()

    def commit(self) -> Operation[None]:
        yield from Inline(lambda: self._leave(None))

    def rollback(self) -> Operation[None]:
        yield from Inline(lambda: self._leave(_Back()))

    def _leave(self, error: _Back | None) -> None:
        atomic, self._atomic = self._atomic, None
        if atomic is not None:
            atomic.__exit__(None if error is None else type(error), error, None)

    def cut(self) -> None:
        cut(self.handle.connection)

    def drop(self) -> None:
        """Django must not believe itself inside a transaction for ever: its thread goes on with a new connection."""
        with contextlib.suppress(Exception):
            self.handle.close()
        with contextlib.suppress(Exception):
            self._leave(_Back())
