import pytest

from tests.unit.server.local_server import LocalServer, Shop
from twiceproof import App
from twiceproof.prove.clocks import ManualClock


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def app(clock):
    with App("memory://", clock=clock) as made:

        @made.flow(key="order:{order[id]}")
        def sync(order):
            return order["id"]

        made.webhook(Shop(), secret="s3cret", start=sync)
        yield made


@pytest.fixture
def server(app):
    return LocalServer(app)
