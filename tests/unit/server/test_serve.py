"""The worker beside the doors: one that breaks is followed by another, until the server leaves."""

import pytest

from twiceproof import App, StoreUnavailable
from twiceproof.server import serve
from twiceproof.server.routes.table import ROUTES
from twiceproof.server.serve import Crew, Options
from twiceproof.server.station import Station


@pytest.fixture
def app(monkeypatch):
    """Its worker breaks as often as `broken` says before it begins."""
    monkeypatch.setattr(serve, "AGAIN", 0.0)
    with App("memory://") as made:
        yield made


def broken(app, monkeypatch, times):
    left = [StoreUnavailable("away; try again.")] * times

    def prepare():
        if left:
            raise left.pop()
        yield from ()

    monkeypatch.setattr(app.schedules, "prepare", prepare)
    return left


def test_a_worker_that_broke_is_followed_by_one_that_works(app, monkeypatch):
    @app.flow(key="order:{n}")
    def ship(n):
        return n

    broken(app, monkeypatch, 2)
    station = Station(app, ROUTES)
    crew = Crew(app, Options(drain=5.0), station)
    crew.thread.start()
    assert ship.start(7).result(timeout=10) == 7
    assert station.worker is crew.worker and crew.worker.begun == 1
    assert crew.leave(5.0) == 0
    assert not crew.thread.is_alive()


def test_a_server_that_leaves_does_not_wait_for_another_worker(app, monkeypatch):
    monkeypatch.setattr(serve, "AGAIN", 3_600.0)
    left = broken(app, monkeypatch, 1)
    crew = Crew(app, Options(drain=5.0), Station(app, ROUTES))
    crew.thread.start()
    assert crew.leave(5.0) == 0
    assert not crew.thread.is_alive() and len(left) <= 1
