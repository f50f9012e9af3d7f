"""Django's connections in `@app.transaction`: what is special about them beside what every driver does."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.acceptance.shops import Shop, make_shop
from tests.acceptance.ways import by_cursor, by_model, django_connection
from twiceproof import Misuse, Retry

ENGINES = [
    pytest.param(("sqlite", "sqlite3"), id="sqlite"),
    pytest.param(("postgres", "postgresql"), marks=pytest.mark.server, id="postgres"),
    pytest.param(("mariadb", "mysql"), marks=pytest.mark.server, id="mariadb"),
]
NOTHING: tuple[list[str], list[Any]] = ([], [])


@pytest.fixture(params=ENGINES)
def kind(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def shop(request: pytest.FixtureRequest, kind: Any, tmp_path: Any) -> Shop:
    return make_shop(request, kind[0], tmp_path)


@pytest.fixture
def alias(kind: Any, shop: Shop) -> Any:
    with django_connection(kind[1], given="connection")(shop.place) as connection:
        yield connection


def buying(app: Any, connect: Any, work: Any, **options: Any) -> Any:
    @app.transaction(connect=connect, **{"retry": Retry(attempts=1), **options})
    def reserve(connection: Any, order: str) -> str:
        work(connection, order)
        return f"reserved {order}"

    @app.flow(key="order:{order}")
    def buy(order: str) -> str:
        return reserve(order)

    return buy


def test_inside_an_atomic_block_it_is_refused_and_nothing_is_done(shop: Shop, alias: Any) -> None:
    """What is around it may roll back what the ledger calls done."""
    from django.db import transaction

    with shop.place.app() as app:
        buy = buying(app, alias, by_model)
        with transaction.atomic(using=alias.alias), pytest.raises(Misuse, match=r"atomic block.*on_commit"):
            buy("17")
        assert shop.stock() == []
        assert buy("18") == "reserved 18"
    assert shop.stock() == ["18"]


def test_started_on_commit_it_is_done_once_by_a_worker(shop: Shop, alias: Any) -> None:
    from django.db import transaction

    with shop.place.app() as app:
        buy = buying(app, alias, by_model)
        with transaction.atomic(using=alias.alias):
            transaction.on_commit(lambda: buy.start("17"), using=alias.alias)
        app.worker().run(until_idle=True)
        assert buy("17") == "reserved 17"
    assert (shop.stock(), shop.steps()) == (["17"], [("reserve", "done")])


def test_an_error_that_the_function_swallowed_is_not_recorded_as_done(shop: Shop, alias: Any) -> None:
    """Django leaves such a block with a rollback and without a word."""
    from django.db import transaction

    def swallowing(connection: Any, order: str) -> None:
        by_cursor(connection, order)
        try:
            with transaction.atomic(using=connection.alias, savepoint=False):
                raise ValueError("no such address")
        except ValueError:
            pass

    with shop.place.app() as app:
        with pytest.raises(transaction.TransactionManagementError, match="rolls it back"):
            buying(app, alias, swallowing)("17")
        assert shop.stock() == []


def test_a_savepoint_that_is_rolled_back_takes_only_its_own_work_along(shop: Shop, alias: Any) -> None:
    from django.db import transaction

    def half(connection: Any, order: str) -> None:
        by_model(connection, order)
        try:
            with transaction.atomic(using=connection.alias):
                by_cursor(connection, "too much")
                raise ValueError
        except ValueError:
            pass

    with shop.place.app() as app:
        assert buying(app, alias, half)("17") == "reserved 17"
    assert shop.stock() == ["17"]


def test_a_commit_of_its_own_is_refused(shop: Shop, alias: Any) -> None:
    def commits(connection: Any, order: str) -> None:
        by_cursor(connection, order)
        connection.commit()

    with shop.place.app() as app, pytest.raises(Exception, match="atomic"):
        buying(app, alias, commits)("17")
    assert shop.stock() == []


def test_after_a_failure_the_threads_connection_goes_on(shop: Shop, alias: Any) -> None:
    def closes(connection: Any, order: str) -> None:
        by_cursor(connection, order)
        connection.close()

    with shop.place.app() as app:
        with pytest.raises(Exception):  # noqa: B017 - the driver's own
            buying(app, alias, closes)("17")
        assert not alias.in_atomic_block
        with alias.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM stock")
            assert cursor.fetchone()[0] == 0


def test_the_connection_by_its_alias_is_each_threads_own(shop: Shop, alias: Any) -> None:
    from django.db import connections
    from django.utils.connection import ConnectionProxy

    with shop.place.app() as app:
        buy = buying(app, ConnectionProxy(connections, alias.alias), by_model)
        buy.start_many([str(number) for number in range(8)])
        app.worker(concurrency=4).run(until_idle=True)
        assert sorted(shop.stock()) == [str(number) for number in range(8)]


def test_an_async_def_function_is_told_to_be_a_def(shop: Shop, alias: Any) -> None:
    with shop.place.app() as app:

        @app.transaction(connect=alias)
        async def reserve(connection: Any, order: str) -> None: ...

        @app.flow(key="order:{order}")
        async def buy(order: str) -> None:
            await reserve(order)

        with pytest.raises(Misuse, match=r"make the function under @app\.transaction a `def`"):
            asyncio.run(buy("17"))
