"""The store's clock is an hour ahead for a while, and set right again: nothing stands still until that hour."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import pytest

from tests.unit.flows.stage import Died, Stage
from tests.unit.flows.test_triggers import NOON, Source, polling
from twiceproof import App, InProgress, NeedsReview, NotDone, Retry, Waiting
from twiceproof.claims.claim import HELD
from twiceproof.flows.limits import admit, make_rate
from twiceproof.flows.workers.worker import Worker
from twiceproof.operations import block
from twiceproof.records import Record

HOUR = 3_600.0


@pytest.fixture
def noon(stage: Stage) -> Stage:
    stage.clock.wall = NOON + 30
    return stage


@contextmanager
def an_hour_ahead(stage: Stage) -> Iterator[None]:
    stage.clock.set_wall(HOUR)
    yield
    stage.clock.set_wall(-HOUR)


def work(app: App) -> None:
    """A worker that begins now, does what is due, and ends."""
    assert app.worker().run(until_idle=True) == 0


class Standing:
    """A worker that goes on: what it does at its next look."""

    def __init__(self, app: App) -> None:
        self.worker = Worker(app.runtime, app.due_work)
        self.worker._check()

    def look(self) -> None:
        for _ in range(3):
            self.worker._fetch_due(100)
            while self.worker._backlog:
                _, duty, record = self.worker._backlog.popleft()
                block(self.worker._carry_out(duty, record))


@pytest.fixture(params=["a worker that goes on", "a worker that begins"])
def look(request: pytest.FixtureRequest) -> Any:
    standing: dict[int, Standing] = {}

    def once(app: App) -> None:
        if request.param == "a worker that begins":
            work(app)
        else:
            standing.setdefault(id(app), Standing(app)).look()

    return once


def minutely(stage: Stage, app: App, **options: Any) -> None:
    @app.every("1m", **options)
    def tidy(tick: datetime) -> None:
        stage.do(f"{tick:%H:%M}")


@pytest.mark.parametrize("catch_up", ["latest", "none"])
def test_a_schedule_goes_on_at_its_next_tick(noon: Stage, look: Any, catch_up: Any) -> None:
    app = noon.process()
    minutely(noon, app, catch_up=catch_up)
    look(app)
    with an_hour_ahead(noon):
        look(app)
    look(app)
    for _ in range(3):
        noon.clock.advance(60)
        look(app)
    assert {tick: count for tick, count in noon.effects.items() if tick < "12:30"} == {
        "12:01": 1,
        "12:02": 1,
        "12:03": 1,
    }


def test_a_tick_that_was_started_early_is_not_started_again(noon: Stage, look: Any) -> None:
    app = noon.process()
    minutely(noon, app, overlap="allow", catch_up="all")
    look(app)
    with an_hour_ahead(noon):
        look(app)
    early = dict(noon.effects)
    assert len(early) == 60
    for _ in range(62):
        look(app)
        noon.clock.advance(60)
    assert noon.effects == {**early, "13:01": 1}


def test_a_schedule_that_was_hidden_ahead_comes_back(noon: Stage, look: Any) -> None:
    """Handed out while the clock was ahead, to a worker that died with it."""
    app = noon.process()
    minutely(noon, app)
    look(app)
    with an_hour_ahead(noon):
        assert app.store.due("schedule", queues=app.schedules.queues()).block().records
        look(app)
    look(app)
    noon.clock.advance(60)
    look(app)
    assert noon.effects == {"12:01": 1}


def test_a_schedule_whose_next_tick_is_far_away_is_left_as_it_is(noon: Stage, look: Any) -> None:
    app = noon.process()

    @app.every("0 2 1 1 *")
    def yearly(tick: datetime) -> None: ...

    look(app)
    before = next(iter(app.store.scan("schedule").block().records))
    noon.clock.advance(61)
    look(app)
    assert next(iter(app.store.scan("schedule").block().records)) == before


def test_a_poll_goes_on_and_misses_nothing(noon: Stage, look: Any) -> None:
    source, app = Source(noon), noon.process()
    polling(noon, app, source)
    look(app)
    with an_hour_ahead(noon):
        for _ in range(30):  # wrong for longer than the overlap, and each time it asks for what is to come
            noon.clock.advance(60)
            source.orders.append((noon.clock.wall - HOUR, len(source.orders)))
            look(app)
    look(app)
    noon.clock.advance(60)
    look(app)
    assert noon.effects == {f"order {number}": 1 for number in range(30)}


def test_a_poll_that_is_corrected_goes_back_no_further_than_its_items_are_remembered(noon: Stage) -> None:
    app = noon.process()

    @app.flow(key="order:{order}", keep="1h")
    def sync(order: int) -> None: ...

    asked: list[datetime | None] = []

    @app.poll(every="1m", start=sync, overlap="1m")
    def new_orders(since: datetime | None) -> list[int]:
        asked.append(since)
        return []

    work(app)
    noon.clock.advance(5 * HOUR)  # nobody was there
    work(app)
    with an_hour_ahead(noon):
        noon.clock.advance(60)
        work(app)
    work(app)
    noon.clock.advance(60)
    work(app)
    assert asked[-1] is not None
    assert noon.clock.wall - asked[-1].timestamp() <= HOUR / 2 + 180


def test_a_rate_lets_runs_through_again_and_no_more_than_declared(noon: Stage) -> None:
    app, rate = noon.process(), make_rate("3/m")
    with an_hour_ahead(noon):
        assert [block(admit(app.store, "default", "sync", rate)) for _ in range(3)] == [0, 0, 0]
    assert block(admit(app.store, "default", "sync", rate)) == pytest.approx(20)
    noon.clock.advance(20)
    assert block(admit(app.store, "default", "sync", rate)) == 0
    assert block(admit(app.store, "default", "sync", rate)) == pytest.approx(20)


def test_runs_that_were_started_or_put_off_ahead_are_carried_out(noon: Stage, look: Any) -> None:
    app = noon.process()

    @app.flow(key="order:{order}", rate="2/m")
    def sync(order: int) -> None:
        noon.do(f"order {order}")

    look(app)
    with an_hour_ahead(noon):
        for order in range(4):
            sync.start(order)
        look(app)
        sync.start(4)
    look(app)
    for _ in range(10):
        noon.clock.advance(30)
        look(app)
    assert noon.effects == {f"order {order}": 1 for order in range(5)}


def test_a_run_whose_worker_died_ahead_is_taken_over_after_its_lease(noon: Stage, look: Any) -> None:
    app, dying = noon.process(), noon.process(2)

    def declare(app: App, name: str) -> Any:
        @app.step(repeat="safe")
        def act(order: int) -> None:
            noon.do(name)

        @app.flow(key="order:{order}", lease=600)
        def sync(order: int) -> None:
            act(order)

        return sync

    declare(app, "alive")
    look(app)
    with an_hour_ahead(noon):
        with pytest.raises(Died):
            declare(dying, "dying")(1)
        look(app)
    look(app)
    assert noon.record("sync", "order:1").state == HELD
    noon.clock.advance(599)
    look(app)
    assert noon.effects == {"dying": 1}
    noon.clock.advance(2)
    look(app)
    assert noon.effects == {"dying": 1, "alive": 1}


def test_a_claim_whose_holder_died_ahead_is_unknown_after_its_lease_and_not_free(noon: Stage, look: Any) -> None:
    dying = noon.process(2)
    app = noon.process()

    def guarded(app: App) -> Any:
        @app.once(key="order:{order}", lease=600)
        def charge(order: int) -> None:
            noon.do("charged")

        return charge

    look(app)
    with an_hour_ahead(noon):
        with pytest.raises(Died):
            guarded(dying)(1)
        look(app)
    look(app)
    noon.clock.advance(599)
    with pytest.raises(InProgress):
        guarded(app)(1)
    noon.clock.advance(2)
    with pytest.raises(NeedsReview):
        guarded(app)(1)
    assert noon.effects == {"charged": 1}


def test_a_holder_that_lives_keeps_its_claim_and_its_fence(noon: Stage, look: Any) -> None:
    app, other = noon.process(), noon.process()
    seen: list[Record] = []

    @app.once(key="order:{order}", lease=30)
    def charge(order: int) -> str:
        seen.append(noon.record("charge", "order:1"))
        noon.clock.set_wall(-HOUR)
        look(other)
        seen.append(noon.record("charge", "order:1"))
        return "charged"

    look(other)
    noon.clock.set_wall(HOUR)
    look(other)
    assert charge(1) == "charged"
    assert seen[0].fence == seen[1].fence
    assert seen[1].lease_until == pytest.approx(noon.clock.wall + 30)


def test_a_sleep_and_a_retry_that_began_ahead_take_as_long_as_declared(noon: Stage, look: Any) -> None:
    app = noon.process()
    app.runtime.roll = lambda: 1.0
    tries: list[float] = []

    @app.step(repeat="safe", retry=Retry(attempts=3, first=60.0, most=60.0))
    def charge(order: int) -> None:
        tries.append(noon.clock.wall)
        if len(tries) == 1:
            raise NotDone("not now")

    @app.flow(key="order:{order}")
    def sync(order: int) -> None:
        charge(order)
        noon.do("charged")

    @app.flow(key="nap:{order}")
    def nap(order: int) -> None:
        app.sleep(120)
        noon.do("woke up")

    look(app)
    with an_hour_ahead(noon):
        for flow in (sync, nap):
            with pytest.raises(Waiting):
                flow(1)
        look(app)
    look(app)
    noon.clock.advance(58)
    look(app)
    assert not noon.effects
    noon.clock.advance(4)
    look(app)
    assert noon.effects == {"charged": 1}
    noon.clock.advance(61)
    look(app)
    assert noon.effects == {"charged": 1, "woke up": 1}


def test_what_is_told_in_the_log_names_both_times(noon: Stage, caplog: pytest.LogCaptureFixture) -> None:
    app = noon.process()
    minutely(noon, app)
    with an_hour_ahead(noon):
        work(app)
    work(app)
    assert "set back from 2026-03-02 13:00:30 UTC to 2026-03-02 12:00:30 UTC" in caplog.text
    caplog.clear()
    noon.clock.advance(61)
    work(app)
    assert "set back" not in caplog.text
