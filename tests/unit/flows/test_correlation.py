"""One correlation id from the event through its runs, their log lines and the calls they make."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from tests.unit.flows.stage import Stage
from twiceproof import App, KeyRefused, Misuse, RunFilter


class Seen:
    """What the outside is told, and what is logged, with whose id."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.lines: list[str] = []


@pytest.fixture
def seen() -> Any:
    found = Seen()

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.lines.append(f"{record.correlation}: {record.getMessage()}")  # type: ignore[attr-defined]

    handler = Handler()
    handler.addFilter(RunFilter())
    logger = logging.getLogger("shop")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield found
    logger.removeHandler(handler)


def calling(app: App, seen: Seen) -> Any:
    """A flow that calls outside, and leaves another run to a worker."""

    @app.step(repeat="safe")
    def call() -> None:
        seen.sent.append(app.correlation())
        logging.getLogger("shop").info("called")

    @app.flow(key="parcel:{n}")
    def ship(n: int) -> None:
        call()

    @app.step(repeat="safe")
    def pass_on(n: int) -> None:
        ship.start(n)

    @app.flow(key="order:{n}")
    def sync(n: int) -> None:
        call()
        pass_on(n)

    return sync


def test_what_is_given_around_a_call_goes_all_the_way(stage: Stage, seen: Seen) -> None:
    app = stage.process()
    sync = calling(app, seen)
    with app.correlate("req-9"):
        logging.getLogger("shop").info("received")
        sync(1)
    assert app.correlation() == ""
    app.worker().run(until_idle=True)
    assert seen.sent == ["req-9", "req-9"]
    assert seen.lines == ["req-9: received", "req-9: called", "req-9: called"]
    assert {run.correlation for run in app.runs()} == {"req-9"}


def test_a_run_that_is_left_to_a_worker_keeps_it(stage: Stage, seen: Seen) -> None:
    app = stage.process()
    with app.correlate("req-9"):
        calling(app, seen).start(1)
    other = stage.process()
    calling(other, seen)
    other.worker().run(until_idle=True)
    assert seen.sent == ["req-9", "req-9"]


def test_where_none_is_given_the_id_of_the_first_run_goes_all_the_way(stage: Stage, seen: Seen) -> None:
    app = stage.process()
    calling(app, seen)(1)
    app.worker().run(until_idle=True)
    assert seen.sent == [app.attach(flow="sync", key="order:1").id] * 2


def test_a_run_goes_on_with_the_id_it_began_with_whoever_resumes_it(stage: Stage, seen: Seen) -> None:
    app = stage.process()
    sync = calling(app, seen)
    with app.correlate("first"):
        sync.start(1)
    with app.correlate("second"):
        sync(1)
    assert seen.sent == ["first"]


def test_a_run_cannot_be_given_another_from_inside(stage: Stage) -> None:
    app = stage.process()

    @app.flow(key="order:{n}")
    def sync(n: int) -> None:
        with app.correlate("mine"):
            pass

    with pytest.raises(Misuse, match="around the call"):
        sync(1)


@pytest.mark.parametrize("bad", ["", "req\n9", "x" * 2_000])
def test_what_could_write_lines_of_its_own_is_refused(stage: Stage, bad: str) -> None:
    with pytest.raises(KeyRefused), stage.process().correlate(bad):
        pass
