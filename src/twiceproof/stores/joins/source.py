"""Where connections come from: what a user may give as `connect=`, opened and closed again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from ...drive import Operation
from ...errors import Misuse
from .do import Do
from .driver import is_connection, is_django

__all__ = ["Opened", "open_from"]


class Opened(Struct, frozen=True):
    """A connection, and how it is given back."""

    connection: Any
    close: Callable[[], Any]


def open_from(source: Any) -> Operation[Opened]:
    """From a SQLAlchemy engine, a pool, Django, or a function: of a connection, a session, a block that lends one."""
    if is_django(source):
        from .django_driver import django_source

        return _of_django((yield from Do(django_source(source))))
    if is_connection(source):
        raise Misuse("connect= wants something that makes connections, not one; write it as connect=lambda: …")
    if hasattr(source, "acquire") and hasattr(source, "release"):  # asyncpg's pool
        connection = yield from Do(source.acquire)
        return Opened(connection, lambda: source.release(connection))
    made = yield from Do(_maker(source))
    if is_django(made):
        return _of_django(made)
    if is_connection(made):
        return Opened(made, made.close)
    return (yield from _lent(made))


def _of_django(connection: Any) -> Opened:
    """It stays its thread's: Django's own settings say for how long it is kept."""
    return Opened(connection, connection.close_if_unusable_or_obsolete)


def _maker(source: Any) -> Callable[[], Any]:
    for maker in (source, getattr(source, "connect", None), getattr(source, "connection", None)):
        if callable(maker):  # a function or a sessionmaker; SQLAlchemy's engines; psycopg's pools
            return maker  # type: ignore[no-any-return]
    raise Misuse(f"connect={source!r} makes no connections; give a function, a SQLAlchemy engine or a pool.")


def _lent(made: Any) -> Operation[Opened]:
    """A context manager: entered now, left when the step is over."""
    kind = type(made)
    if hasattr(kind, "__aenter__"):
        connection = yield from Do(lambda: kind.__aenter__(made))
        return Opened(connection, lambda: kind.__aexit__(made, None, None, None))
    if hasattr(kind, "__enter__"):
        connection = yield from Do(lambda: kind.__enter__(made))
        return Opened(connection, lambda: kind.__exit__(made, None, None, None))
    return Opened(made, lambda: None)  # whoever looks at it says what is wrong with it
