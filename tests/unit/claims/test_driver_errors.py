"""What database drivers raise when the connection fails, and what that says about the work."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Iterator
from typing import Any

import asyncpg
import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from twiceproof import App, NeedsReview
from twiceproof.claims.error_classification import classify

Kill = Callable[[int], None]


@pytest.fixture
def kill(postgres_dsn: str) -> Iterator[Kill]:
    """Ends a connection of another, and returns when it is gone."""
    with psycopg.connect(postgres_dsn, autocommit=True) as admin:
        admin.execute("CREATE TABLE t (k int)")
        yield lambda pid: admin.execute("SELECT pg_terminate_backend(%s, 5000)", (pid,)) and None


@pytest.fixture
def nobody() -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # and nobody listens
        yield f"127.0.0.1:{free.getsockname()[1]}"


def by_psycopg(dsn: str, kill: Kill) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute("INSERT INTO t VALUES (1)")
        kill(connection.info.backend_pid)


def by_psycopg_cut(dsn: str, kill: Kill) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute("INSERT INTO t VALUES (1)")
        with socket.socket(fileno=os.dup(connection.fileno())) as wire:
            wire.shutdown(socket.SHUT_RDWR)


def by_psycopg_once_more(dsn: str, kill: Kill) -> None:
    with psycopg.connect(dsn) as connection:
        kill(connection.info.backend_pid)
        with pytest.raises(psycopg.OperationalError):
            connection.execute("INSERT INTO t VALUES (1)")
        connection.execute("INSERT INTO t VALUES (1)")


def by_sqlalchemy(dsn: str, kill: Kill) -> None:
    engine = sa.create_engine(dsn.replace("postgresql://", "postgresql+psycopg://"))
    with engine.begin() as connection:
        connection.execute(sa.text("INSERT INTO t VALUES (1)"))
        kill(connection.scalar(sa.text("SELECT pg_backend_pid()")))


def by_asyncpg(dsn: str, kill: Kill) -> None:
    async def insert() -> None:
        connection = await asyncpg.connect(dsn)
        async with connection.transaction():
            await connection.execute("INSERT INTO t VALUES (1)")
            kill(connection.get_server_pid())

    asyncio.run(insert())


def by_asyncpg_closed(dsn: str, kill: Kill) -> None:
    async def insert() -> None:
        connection = await asyncpg.connect(dsn)
        connection.terminate()
        await connection.execute("INSERT INTO t VALUES (1)")

    asyncio.run(insert())


def by_sqlalchemy_awaited(dsn: str, kill: Kill) -> None:
    async def insert() -> None:
        engine = create_async_engine(dsn.replace("postgresql://", "postgresql+asyncpg://"))
        async with engine.begin() as connection:
            await connection.execute(sa.text("INSERT INTO t VALUES (1)"))
            kill(await connection.scalar(sa.text("SELECT pg_backend_pid()")))

    asyncio.run(insert())


BROKEN = [
    by_psycopg,
    by_psycopg_cut,
    by_psycopg_once_more,
    by_sqlalchemy,
    by_asyncpg,
    by_asyncpg_closed,
    by_sqlalchemy_awaited,
]


def error_of(work: Callable[[], object]) -> Exception:
    with pytest.raises(Exception) as told:
        work()
    return told.value


@pytest.mark.server
@pytest.mark.parametrize("broken", BROKEN)
def test_a_connection_that_broke_before_the_commit_was_answered_leaves_a_doubt(
    broken: Callable[[str, Kill], None], postgres_dsn: str, kill: Kill
) -> None:
    assert classify(error_of(lambda: broken(postgres_dsn, kill))) == "ambiguous"


@pytest.mark.server
@pytest.mark.parametrize("broken", [by_psycopg, by_sqlalchemy])
def test_a_never_step_whose_connection_broke_is_for_a_person(
    app: App, broken: Callable[[str, Kill], None], postgres_dsn: str, kill: Kill
) -> None:
    @app.step(repeat="never")
    def insert(number: int) -> None:
        broken(postgres_dsn, kill)

    @app.flow(key="k:{number}")
    def order(number: int) -> None:
        insert(number)

    with pytest.raises(NeedsReview):
        order(1)


async def asked(url: str) -> Any:
    return await asyncpg.connect(url)


CONNECTS: dict[str, Callable[[str], object]] = {
    "psycopg": lambda host: psycopg.connect(f"postgresql://u@{host}/x"),
    "asyncpg": lambda host: asyncio.run(asked(f"postgresql://u@{host}/x")),
    "sqlalchemy": lambda host: sa.create_engine(f"postgresql+psycopg://u@{host}/x").connect(),
}


@pytest.mark.parametrize("driver", CONNECTS)
def test_a_database_that_refuses_the_connection_is_clean(driver: str, nobody: str) -> None:
    assert classify(error_of(lambda: CONNECTS[driver](nobody))) == "clean"


@pytest.mark.server
@pytest.mark.parametrize("sql", ["SELEC", "INSERT INTO t VALUES ('x')", "SELECT 1/0"])
def test_what_the_database_answers_is_no_lost_connection(sql: str, postgres_dsn: str, kill: Kill) -> None:
    def ask() -> None:
        with psycopg.connect(postgres_dsn) as connection:
            connection.execute(sql)

    assert classify(error_of(ask)) == "other"


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (psycopg.errors.ConnectionTimeout("connection timeout expired"), "clean"),
        (psycopg.errors.CannotConnectNow("the database system is starting up"), "clean"),
        (psycopg.errors.TooManyConnections("too many clients already"), "clean"),
        (asyncpg.CannotConnectNowError("the database system is starting up"), "clean"),
        (sa.exc.TimeoutError("QueuePool limit reached"), "clean"),
        (psycopg.InterfaceError("the connection is lost"), "ambiguous"),
        (psycopg.errors.CrashShutdown("terminating connection"), "ambiguous"),
        (psycopg.errors.StatementCompletionUnknown("?"), "ambiguous"),
        (asyncpg.exceptions.DataError("expected str, got int"), "other"),
        (psycopg.errors.UniqueViolation("duplicate key"), "other"),
        (sa.exc.OperationalError("INSERT", {}, Exception("gone"), connection_invalidated=True), "ambiguous"),
        (sa.exc.OperationalError("INSERT", {}, Exception("no such table")), "other"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_a_driver_says_whether_the_server_answered(error: Exception, verdict: str) -> None:
    assert classify(error) == verdict
