"""A shop behind a server, with a clock that only the test moves."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.server.routes.client import Client
from twiceproof import App
from twiceproof.prove.clocks import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def app(clock: ManualClock) -> Iterator[App]:
    with App("memory://", clock=clock, url="https://hooks.example.com") as made:
        yield made


@pytest.fixture
def client(app: App) -> Client:
    return Client(app)
