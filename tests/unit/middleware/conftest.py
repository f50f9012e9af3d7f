"""A ledger in memory with a clock that only the test moves, and a shop behind each kind of middleware."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.unit.middleware.harness import Client, Shop
from twiceproof import App
from twiceproof.prove.clocks import ManualClock
from twiceproof.prove.faulty_engine import FaultyEngine
from twiceproof.stores.grouped import GroupedStore
from twiceproof.stores.memory import MemoryEngine


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def engine(clock: ManualClock) -> FaultyEngine:
    return FaultyEngine(MemoryEngine(clock))


@pytest.fixture
def app(engine: FaultyEngine, clock: ManualClock) -> Iterator[App]:
    with App(GroupedStore(engine, clock=clock), clock=clock) as made:
        yield made


@pytest.fixture
def shop() -> Shop:
    return Shop()


@pytest.fixture(params=["asgi", "wsgi"])
def make_client(request: pytest.FixtureRequest, shop: Shop, app: App) -> Callable[..., Client]:
    """A client of the shop, through a middleware with these options."""

    def make(**options: Any) -> Client:
        return Client(request.param, shop, **{"app": app, **options})

    return make


@pytest.fixture
def client(make_client: Callable[..., Client]) -> Client:
    return make_client()
