"""The worker beside the server: one that breaks is followed by another, until the server leaves."""

import asyncio
import signal

import pytest

from twiceproof import App, StoreUnavailable
from twiceproof.prove.clocks import ManualClock
from twiceproof.server import serve
from twiceproof.server.app import make_application
from twiceproof.server.monitoring import ServerStatus
from twiceproof.server.routes import ROUTES
from twiceproof.server.serve import DrainingServer, Options, WorkerThread


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
    station = ServerStatus(app, ROUTES)
    crew = WorkerThread(app, Options(drain=5.0), station)
    crew.thread.start()
    assert ship.start(7).result(timeout=10) == 7
    assert station.worker is crew.worker and crew.worker.begun == 1
    assert crew.leave(5.0) == 0
    assert not crew.thread.is_alive()


def test_a_server_that_leaves_does_not_wait_for_another_worker(app, monkeypatch):
    monkeypatch.setattr(serve, "AGAIN", 3_600.0)
    left = broken(app, monkeypatch, 1)
    crew = WorkerThread(app, Options(drain=5.0), ServerStatus(app, ROUTES))
    crew.thread.start()
    assert crew.leave(5.0) == 0
    assert not crew.thread.is_alive() and len(left) <= 1


@pytest.fixture
def serving():
    with App("memory://", clock=ManualClock()) as made:
        yield DrainingServer(make_application(made), drain=5.0, lame_duck=7.0, announce=lambda: None)


def goes_on(serving):
    return not asyncio.run(serving.on_tick(1))


def test_told_to_leave_it_goes_on_for_the_lame_duck_time_and_is_ready_no_more(serving):
    clock = serving.server_status.app.clock
    assert goes_on(serving) and not serving.server_status.draining
    serving.handle_exit(signal.SIGTERM, None)
    assert serving.server_status.draining and goes_on(serving)
    clock.advance(6.9)
    assert goes_on(serving)
    clock.advance(0.2)
    assert not goes_on(serving) and not serving.force_exit


def test_at_a_terminal_nobody_waits_for_the_lame_duck_time(serving):
    serving.handle_exit(signal.SIGINT, None)
    assert serving.server_status.draining and not goes_on(serving) and not serving.force_exit


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_told_a_second_time_it_stops_at_once(serving, second):
    serving.handle_exit(signal.SIGTERM, None)
    serving.handle_exit(second, None)
    assert serving.force_exit and not goes_on(serving)
