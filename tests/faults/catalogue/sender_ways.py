"""The ways in which a user's transaction sends messages: each driver and wrapper, and a process that dies in it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import asyncpg  # noqa: F401 - here and below: imported before forks, so that children need not import them
import psycopg  # noqa: F401
import sqlalchemy.ext.asyncio
import sqlalchemy.orm  # noqa: F401

from tests.acceptance.children import die
from tests.acceptance.places import Place, SqlitePlace
from tests.acceptance.ways import by_cursor, django_connection
from tests.unit.outbox.test_transaction_outbox import (
    by_async_psycopg,
    by_async_session,
    by_async_sqlalchemy,
    by_asyncpg,
    by_psycopg,
    by_session,
    by_sqlalchemy,
    by_sqlite3,
)
from twiceproof import App

__all__ = ["SenderLedger", "ways_of"]

Work = Callable[[Any, Any], None]


class SenderLedger:
    """What a way needs: the database and the app of one tenant."""

    def __init__(self, place: Place, app: App) -> None:
        self.place = place
        self.app = app
        self.url = f"sqlite:///{place.directory / 'claims.db'}" if isinstance(place, SqlitePlace) else place.url


class DiesBeforeCommit:
    """In place of `commit=True`: a way looks at it after the block, just before it commits."""

    def __bool__(self) -> bool:
        die()
        return True


def by_django(ledger: SenderLedger, commit: bool, messages: Work) -> None:
    from django.db import transaction

    engine = "sqlite3" if isinstance(ledger.place, SqlitePlace) else "postgresql"
    with (
        django_connection(engine, given="connection")(ledger.place) as connection,
        contextlib.suppress(ZeroDivisionError),
        transaction.atomic(using=connection.alias),
    ):
        by_cursor(connection, "a")
        with ledger.app.outbox(connection) as outbox:
            messages(connection, outbox)
        if not commit:
            raise ZeroDivisionError


SQLITE = (by_sqlite3, by_sqlalchemy, by_session, by_django)
POSTGRES = (
    by_psycopg,
    by_async_psycopg,
    by_asyncpg,
    by_sqlalchemy,
    by_session,
    by_async_sqlalchemy,
    by_django,
    by_async_session,
)


def ways_of(place: Place) -> tuple[Callable[..., None], ...]:
    return SQLITE if isinstance(place, SqlitePlace) else POSTGRES
