"""Messages in Django's atomic blocks: there if they are committed, and relays are notified when they are."""

from __future__ import annotations

from typing import Any

import pytest

from tests.acceptance.shops import Shop, make_shop
from tests.acceptance.ways import by_model, django_connection
from twiceproof import Misuse
from twiceproof.brokers.memory import MemoryBroker
from twiceproof.outbox.message import message_of

ENGINES = [
    pytest.param(("sqlite", "sqlite3"), id="sqlite"),
    pytest.param(("postgres", "postgresql"), marks=pytest.mark.server, id="postgres"),
    pytest.param(("mariadb", "mysql"), marks=pytest.mark.server, id="mariadb"),
]


@pytest.fixture(params=ENGINES)
def kind(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def shop(request: pytest.FixtureRequest, kind: Any, tmp_path: Any) -> Shop:
    return make_shop(request, kind[0], tmp_path)


@pytest.fixture
def app(shop: Shop) -> Any:
    with shop.place.app() as app:
        app.broker("main", MemoryBroker())
        app.route("orders.*", to="main")
        yield app


@pytest.fixture
def connection(kind: Any, shop: Shop) -> Any:
    with django_connection(kind[1], given="connection")(shop.place) as connection:
        yield connection


def keys(app: Any) -> list[str]:
    return sorted(message_of(record).key for record in app.store.scan("message", state="pending").block().records)


def buy(app: Any, connection: Any, key: str) -> None:
    by_model(connection, key)
    with app.outbox(connection) as outbox:
        outbox.send("orders.paid", {"order": key}, key=key)
        outbox.send("orders.paid", {"order": key}, key=f"{key}-ordered", order="o")


def test_messages_are_there_if_the_block_is_committed(app: Any, connection: Any, shop: Shop) -> None:
    from django.db import transaction

    with pytest.raises(ZeroDivisionError), transaction.atomic(using=connection.alias):
        buy(app, connection, "gone")
        raise ZeroDivisionError
    with transaction.atomic(using=connection.alias):
        buy(app, connection, "kept")
        with pytest.raises(ZeroDivisionError), transaction.atomic(using=connection.alias):
            buy(app, connection, "inner")
            raise ZeroDivisionError
    assert (shop.stock(), keys(app)) == (["kept"], ["kept", "kept-ordered"])
    assert app.relay().run(until_idle=True) == 2


def test_relays_are_notified_when_the_block_is_committed_and_not_before(app: Any, connection: Any) -> None:
    from django.db import transaction

    told: list[Any] = []
    app._of_root()["rings"] = told.append
    with transaction.atomic(using=connection.alias):
        buy(app, connection, "17")
        assert told == []
    assert told == [{"queue:default/~out/main"}]
    app._of_root().pop("rings")


def test_outside_of_an_atomic_block_it_is_refused(app: Any, connection: Any) -> None:
    with pytest.raises(Misuse, match="atomic"), app.outbox(connection) as outbox:
        outbox.send("orders.paid", {}, key="a")
    assert keys(app) == []
