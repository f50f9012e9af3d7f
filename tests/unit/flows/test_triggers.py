"""Schedules and polls: one run per tick, one run per item, whatever crashes and however many look."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest

from tests.unit.flows.stage import Died, Stage
from twiceproof import App, KeyRefused, Misuse, Polled, StoreUnavailable
from twiceproof.claims.claim import LostHold
from twiceproof.operations import await_, block
from twiceproof.prove.checklist import source as reading
from twiceproof.prove.target import target_of

NOON = datetime(2026, 3, 2, 12, 0, tzinfo=UTC).timestamp()


@pytest.fixture
def noon(stage: Stage) -> Stage:
    stage.clock.wall = NOON + 30
    return stage


def look(app: App, limit: int = 500) -> int:
    """One round of a worker: everything that is due, once. How many there were."""
    count = 0
    for duty in sorted(app.due_work, key=lambda duty: duty.rank):
        if queues := duty.queues():
            for record in app.store.due(duty.kind, queues=queues, limit=limit).block().records:
                count += 1
                operation = duty.carry_out(record)
                asyncio.run(await_(operation)) if duty.is_async(record) else block(operation)
    return count


def prepare(app: App) -> None:
    for duty in app.due_work:
        block(duty.prepare())


def clockwork(stage: Stage, app: App, when: Any = "1m", **options: Any) -> Any:
    @app.every(when, **options)
    def tidy(tick: datetime) -> None:
        stage.do(f"{tick:%H:%M}")

    prepare(app)
    return tidy


# -- schedules --------------------------------------------------------------------------------------


def test_each_tick_has_its_run(noon: Stage) -> None:
    app = noon.process()
    clockwork(noon, app)
    assert look(app) == 0
    for _ in range(3):
        noon.clock.advance(60)
        look(app)
    assert noon.effects == {"12:01": 1, "12:02": 1, "12:03": 1}


@dataclass
class Summary:
    total: Decimal


def test_a_scheduled_function_gets_its_tick_and_gives_its_result_with_their_types(noon: Stage) -> None:
    """Annotations that are text are read in the module of the function, not in ours."""
    app, ticks = noon.process(), []

    @app.every("1m")
    def sum_up(when: datetime) -> Summary:
        ticks.append(when)
        return Summary(Decimal("1.50"))

    prepare(app)
    noon.clock.advance(60)
    look(app)
    assert ticks == [datetime(2026, 3, 2, 12, 1, tzinfo=UTC)]
    assert app.attach(app.runs(flow="sum_up")[0].run).result() == Summary(Decimal("1.50"))


@pytest.mark.parametrize(
    "by_hand",
    [datetime(2026, 3, 2, 13, 1, tzinfo=timezone(timedelta(hours=1))), "2026-03-02T12:01:00Z"],
    ids=["in another zone", "as text"],
)
def test_a_tick_that_is_started_by_hand_is_the_schedules_own(noon: Stage, by_hand: Any) -> None:
    app = noon.process()
    tidy = clockwork(noon, app)
    tidy.start(by_hand)
    noon.clock.advance(60)
    look(app)
    look(app)
    assert noon.effects.total() == 1


@pytest.mark.parametrize("tick", ["tomorrow", 5, None])
def test_what_is_no_tick_is_refused(noon: Stage, tick: Any) -> None:
    with pytest.raises(KeyRefused, match="is no tick"):
        clockwork(noon, noon.process()).start(tick)


def test_a_scheduled_function_is_proved_and_checked_as_it_was_written(noon: Stage) -> None:
    app = noon.process()

    @app.every("1m")
    def tidy() -> App:
        return app

    assert target_of(tidy, datetime(2026, 3, 2, tzinfo=UTC)).app is app
    assert reading.SourceTree(tidy.flow.function).file == __file__


def test_a_tick_whose_key_is_taken_holds_up_none_after_it(noon: Stage, caplog: pytest.LogCaptureFixture) -> None:
    """One run a day, tried every six hours."""
    app = noon.process()

    @app.every("6h", catch_up="all", overlap="queue")
    @app.flow(key=lambda tick: f"{tick:%A}")
    def daily(tick: datetime) -> None:
        noon.do(f"{tick:%A}")

    prepare(app)
    for _ in range(6):
        noon.clock.advance(6 * 3_600)
        look(app)
    assert noon.effects == {"Monday": 1, "Tuesday": 1, "Wednesday": 1}
    assert "its key is taken" in caplog.text


def test_ten_schedulers_start_one_run_per_tick(noon: Stage) -> None:
    apps = [noon.process() for _ in range(10)]
    for app in apps:
        clockwork(noon, app)
    noon.clock.advance(60)
    records = [app.store.due("schedule", queues=app.schedules.queues(), hide=0.0).block().records for app in apps]
    for app, found in zip(apps, records, strict=True):  # all of them saw it due, and all act
        for record in found:
            block(app.schedules.carry_out(record))
    for app in apps:
        look(app)
    assert noon.effects == {"12:01": 1}


def test_a_scheduler_that_dies_between_starting_and_moving_on_is_followed(noon: Stage) -> None:
    clockwork(noon, noon.process())
    noon.clock.advance(60)
    dying = noon.process(2)  # the run is started, and then it is gone
    clockwork(noon, dying)
    (record,) = dying.store.due("schedule", queues=dying.schedules.queues(), hide=0.0).block().records
    dying.engine.commits = 0  # type: ignore[attr-defined]
    with pytest.raises(Died):
        block(dying.schedules.carry_out(record))
    app = noon.process()
    clockwork(noon, app)
    while look(app):
        pass
    assert noon.effects == {"12:01": 1}


@pytest.mark.parametrize(
    ("catch_up", "seen"),
    [("latest", ["12:05"]), ("all", ["12:01", "12:02", "12:03", "12:04", "12:05"]), ("none", ["12:05"])],
)
def test_after_downtime_missed_ticks_are_caught_up_as_declared(noon: Stage, catch_up: Any, seen: list[str]) -> None:
    app = noon.process()
    clockwork(noon, app, catch_up=catch_up, overlap="allow")
    noon.clock.advance(5 * 60)
    while look(app):
        pass
    assert sorted(noon.effects) == seen


def test_every_missed_tick_is_started_however_many_there_are_a_part_at_each_look(noon: Stage) -> None:
    app = noon.process()

    @app.every("* * * * *", catch_up="all", overlap="allow")
    def count(tick: datetime) -> None:
        noon.do(f"{tick:%d %H:%M}")

    prepare(app)
    noon.clock.advance(1_500 * 60)
    looks = 0
    while queued := app.store.due("schedule", queues=app.schedules.queues()).block().records:
        block(app.schedules.carry_out(queued[0]))
        looks += 1
    while look(app):
        pass
    assert len(noon.effects) == noon.effects.total() == 1_500
    assert looks == 15


@pytest.mark.parametrize("catch_up", ["latest", "none", "all"])
@pytest.mark.parametrize("when", ["1m", "* * * * *"])
def test_a_year_of_missed_minutes_is_not_gone_through_at_one_look(noon: Stage, catch_up: Any, when: str) -> None:
    app, asked = noon.process(), []

    @app.every(when, catch_up=catch_up, overlap="allow")
    def count(tick: datetime) -> None:
        noon.do(f"{tick:%d %H:%M}")

    prepare(app)
    (schedule,) = app.schedules.schedules.values()
    after = schedule.ticks.after
    schedule.ticks.after = lambda moment: asked.append(moment) or after(moment)  # type: ignore[func-returns-value,method-assign]
    noon.clock.advance(365 * 86_400)
    look(app)
    assert 0 < len(asked) < 250
    assert noon.effects.total() == (100 if catch_up == "all" else 1)


def test_without_catching_up_a_tick_that_is_long_past_is_missed(noon: Stage) -> None:
    app = noon.process()
    clockwork(noon, app, "1h", catch_up="none")
    noon.clock.advance(90 * 60)
    look(app)
    assert not noon.effects
    noon.clock.advance(30 * 60)
    while look(app):
        pass
    assert sorted(noon.effects) == ["14:00"]


def test_a_tick_is_skipped_while_the_run_before_is_under_way(noon: Stage) -> None:
    app = noon.process()

    @app.every("1m", overlap="skip")
    def long(tick: datetime) -> None:
        noon.do(f"{tick:%H:%M}")
        app.sleep("100s")

    prepare(app)
    for _ in range(6):
        noon.clock.advance(60)
        while look(app):
            pass
    assert sorted(noon.effects) == ["12:01", "12:04"]


def test_overlapping_runs_are_allowed_if_declared(noon: Stage) -> None:
    app = noon.process()

    @app.every("1m", overlap="allow")
    def long(tick: datetime) -> None:
        noon.do(f"{tick:%H:%M}")
        app.sleep("100s")

    prepare(app)
    for _ in range(3):
        noon.clock.advance(60)
        while look(app):
            pass
    assert len(noon.effects) == 3


def test_a_queued_tick_begins_when_the_run_before_has_ended_however_long_it_waits(noon: Stage) -> None:
    app = noon.process()
    seen: list[str] = []

    @app.step(repeat="safe", id="{text}")
    def write(text: str) -> None:
        seen.append(text)

    @app.every("1m", overlap="queue")
    def long(tick: datetime) -> None:
        write(f"{tick:%H:%M} begins")
        app.sleep("100s")
        write(f"{tick:%H:%M} ends")

    prepare(app)
    for _ in range(36):
        noon.clock.advance(10)
        while look(app):
            pass
    assert seen[:4] == ["12:01 begins", "12:01 ends", "12:02 begins", "12:02 ends"]


def test_a_queued_tick_does_not_wait_for_a_person(noon: Stage) -> None:
    app = noon.process()

    @app.every("1m", overlap="queue")
    def doubtful(tick: datetime) -> None:
        noon.do(f"{tick:%H:%M}")
        charge()

    @app.step
    def charge() -> None:
        raise TimeoutError

    prepare(app)
    for _ in range(2):
        noon.clock.advance(60)
        while look(app):
            pass
    assert sorted(noon.effects) == ["12:01", "12:02"]


def test_missed_ticks_that_queue_are_caught_up_one_after_the_other(noon: Stage) -> None:
    app = noon.process()
    clockwork(noon, app, catch_up="all", overlap="queue")
    noon.clock.advance(3 * 60)
    for _ in range(10):
        while look(app):
            pass
        noon.clock.advance(2)
    assert list(noon.effects) == ["12:01", "12:02", "12:03"]


def test_catching_up_with_what_would_be_skipped_is_refused(noon: Stage) -> None:
    with pytest.raises(Misuse, match='overlap="queue"'):
        clockwork(noon, noon.process(), catch_up="all")


def test_a_generator_is_no_work_for_a_schedule(noon: Stage) -> None:
    with pytest.raises(Misuse, match="is a generator"):

        @noon.process().every("1m")
        def pages(tick: datetime) -> Any:
            yield tick


@pytest.mark.parametrize("options", [{"name": "other"}, {"keep": "1d"}, {"name": "other", "limit": 1}])
def test_settings_of_a_flow_are_refused_where_the_flow_is_there_already(noon: Stage, options: dict[str, Any]) -> None:
    app = noon.process()

    @app.flow(key="{tick}", stable=("tick",))
    def tidy(tick: datetime) -> None: ...

    with pytest.raises(Misuse, match=f"give {', '.join(f'{name}=' for name in options)} to @app.flow"):
        app.every("1m", **options)(tidy)
    app.every("1m")(tidy)


def test_a_flow_that_has_no_place_for_the_tick_is_refused_when_it_is_scheduled(noon: Stage) -> None:
    app = noon.process()

    @app.flow(key="nightly")
    def nightly() -> None: ...

    @app.flow(key="{day}:{shop}")
    def count(day: datetime, shop: str) -> None: ...

    @app.flow(key="{day}", stable=("day",))
    def late(day: datetime, shop: str = "main") -> None: ...

    for flow in (nightly, count):
        with pytest.raises(Misuse, match=f"{flow.flow.name} cannot be called with a tick.*one parameter"):  # type: ignore[attr-defined]
            app.every("1m")(flow)
    app.every("1m")(late)
    assert app.schedules.queues() == ["default/late@schedule"]


def test_a_second_schedule_of_one_flow_is_refused(noon: Stage) -> None:
    app = noon.process()
    tidy = clockwork(noon, app)
    with pytest.raises(Misuse, match="scheduled twice"):
        app.every("1h")(tidy)


def test_a_second_poll_of_one_name_is_refused_and_the_same_one_again_is_not(noon: Stage) -> None:
    app = noon.process()
    for _ in range(2):
        polling(noon, app, Source(noon))
    with pytest.raises(Misuse, match="another name="):

        @app.poll(every="1m", start=clockwork(noon, app), name="new_orders")
        def others(since: datetime | None) -> list[Any]:
            return []


def test_a_function_without_a_tick_and_an_awaited_one_are_scheduled_too(noon: Stage) -> None:
    app = noon.process()

    @app.every("1m")
    def plain() -> None:
        noon.do("plain")

    @app.every("1m")
    async def awaited(tick: datetime) -> None:
        noon.do("awaited")

    prepare(app)
    noon.clock.advance(60)
    while look(app):
        pass
    assert noon.effects == {"plain": 1, "awaited": 1}


def test_a_schedule_that_is_declared_anew_is_corrected(noon: Stage) -> None:
    clockwork(noon, noon.process(), "1h")
    app = noon.process()
    clockwork(noon, app, "1m")
    noon.clock.advance(60)
    while look(app):
        pass
    assert noon.effects == {"12:01": 1}


# -- polls ------------------------------------------------------------------------------------------


class Source:
    """An outside with orders, each with the time it appeared."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.orders: list[tuple[float, int]] = []
        self.asked: list[Any] = []
        self.down = False

    def add(self, *ids: int) -> None:
        self.orders += [(self.stage.clock.wall, number) for number in ids]

    def since(self, since: datetime | None) -> list[dict[str, int]]:
        self.asked.append(since)
        if self.down:
            raise OSError("down")
        return [{"id": number} for at, number in self.orders if since is None or at >= since.timestamp()]


def polling(stage: Stage, app: App, source: Source, every: str = "1m") -> None:
    @app.flow(key="order:{order[id]}")
    def sync(order: dict[str, int]) -> None:
        stage.do(f"order {order['id']}")

    @app.poll(every=every, start=sync, overlap="10m")
    def new_orders(since: datetime | None) -> list[dict[str, int]]:
        return source.since(since)

    prepare(app)


def test_everything_since_last_time_is_started_once(noon: Stage) -> None:
    source, app = Source(noon), noon.process()
    polling(noon, app, source)
    source.add(1, 2)
    look(app)
    noon.clock.advance(60)
    source.add(3)
    look(app)
    look(app)
    assert noon.effects == {"order 1": 1, "order 2": 1, "order 3": 1}
    assert source.asked[0] is None
    assert source.asked[1] == datetime.fromtimestamp(NOON + 30 - 600, UTC)


def test_a_source_that_is_down_loses_nothing(noon: Stage) -> None:
    source, app = Source(noon), noon.process()
    polling(noon, app, source)
    source.down = True
    source.add(1)
    look(app)
    source.down = False
    noon.clock.advance(60)
    while look(app):
        pass
    assert noon.effects == {"order 1": 1}


@pytest.mark.parametrize(("every", "followed_after"), [("1s", 5), ("1m", 180), ("6h", 300)])
def test_a_poller_that_dies_before_its_cursor_moves_is_soon_followed_by_another(
    noon: Stage, every: str, followed_after: float
) -> None:
    source = Source(noon)
    source.add(1, 2)
    polling(noon, noon.process(), source, every)
    dying = noon.process(3)  # taken, one item started
    polling(noon, dying, source, every)
    (record,) = dying.store.due("poll", queues=dying.polls.queues(), hide=0.0).block().records
    dying.engine.commits = 0  # type: ignore[attr-defined]
    with pytest.raises(Died):
        block(dying.polls.carry_out(record))
    app = noon.process()
    polling(noon, app, source, every)
    noon.clock.advance(followed_after - 1)
    while look(app):
        pass
    assert len(source.asked) == 1
    noon.clock.advance(1)
    while look(app):
        pass
    assert len(source.asked) == 2
    assert noon.effects == {"order 1": 1, "order 2": 1}


def test_a_poll_longer_than_its_lease_is_left_alone_while_its_worker_lives(noon: Stage) -> None:
    slow, other = noon.process(), noon.process()
    asked = []

    def declare(app: App) -> None:
        @app.flow(key="order:{order}")
        def sync(order: int) -> None: ...

        @app.poll(every="1s", start=sync)
        def new_orders(since: Any) -> list[int]:
            asked.append(app)
            for _ in range(20):
                noon.clock.advance(2)
                app._heartbeat.beat()
                assert not other.store.due("poll", queues=other.polls.queues(), hide=0.0).block().records
            return []

        prepare(app)

    declare(slow)
    declare(other)
    look(slow)
    assert asked == [slow]
    assert len(other.store.due("poll", queues=other.polls.queues()).block().records) == 1  # its next tick has passed


def test_the_time_a_poll_takes_does_not_put_off_the_ticks_after_it(noon: Stage) -> None:
    app, asked = noon.process(), []

    @app.flow(key="order:{order}")
    def sync(order: int) -> None: ...

    @app.poll(every="1m", start=sync)
    def new_orders(since: Any) -> list[int]:
        asked.append(noon.clock.wall - NOON)
        noon.clock.advance(20)
        return []

    prepare(app)
    for _ in range(4):
        look(app)
        noon.clock.advance(10)
    assert asked == [30, 60]


def test_a_renewal_that_comes_after_the_end_of_a_poll_does_not_put_it_off(noon: Stage) -> None:
    source, app = Source(noon), noon.process()
    polling(noon, app, source)
    kept = []
    keep = app._heartbeat.keep
    app._heartbeat.keep = lambda hold: kept.append(hold) or keep(hold)  # type: ignore[func-returns-value,method-assign]
    look(app)
    assert isinstance(block(kept[0].renew(kept[0].held)), LostHold)
    noon.clock.advance(30)
    look(app)
    assert len(source.asked) == 2


def test_a_schedule_that_cannot_be_carried_out_is_tried_again_a_few_intervals_later(
    noon: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    app, asked = noon.process(), []

    @app.every("10s")
    @app.flow(key=lambda tick: asked.append(tick) or f"{1 / 0}")  # type: ignore[func-returns-value]
    def tidy(tick: datetime) -> None: ...

    prepare(app)
    noon.clock.advance(10)
    app.worker().run(until_idle=True)
    assert (len(asked), "could not carry out" in caplog.text) == (1, True)
    noon.clock.advance(30)
    app.worker().run(until_idle=True)
    assert len(asked) > 1


def test_a_source_may_have_a_cursor_of_its_own(noon: Stage) -> None:
    app = noon.process()
    asked: list[Any] = []

    @app.flow(key="order:{id}")
    def sync(id: int, total: int) -> None:  # noqa: A002 - as the source calls it
        noon.do(f"{id} {total}")

    @app.poll(every="1m", start=sync)
    async def pages(cursor: Any) -> Polled:
        asked.append(cursor)
        return Polled([{"id": len(asked), "total": 5}], cursor={"page": len(asked)})

    prepare(app)
    for _ in range(2):
        look(app)
        noon.clock.advance(60)
    look(app)
    assert asked[:2] == [None, {"page": 1}]
    assert noon.effects["1 5"] == 1


def test_an_item_that_comes_again_with_other_contents_is_left_alone(
    noon: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    app = noon.process()
    totals = [5, 6]

    @app.flow(key="order:{order[id]}")
    def sync(order: dict[str, int]) -> None:
        noon.do(f"order {order['total']}")

    @app.poll(every="1m", start=sync)
    def orders(since: Any) -> list[dict[str, int]]:
        return [{"id": 1, "total": totals.pop(0)}]

    prepare(app)
    look(app)
    noon.clock.advance(60)
    look(app)
    assert noon.effects == {"order 5": 1}
    assert "other contents" in caplog.text


@pytest.mark.parametrize(
    "key", ["order:{order[id]}", lambda order: f"order:{order['id']}"], ids=["template", "function"]
)
def test_an_item_that_cannot_be_started_holds_up_no_other_and_is_asked_for_again(
    noon: Stage, key: Any, caplog: pytest.LogCaptureFixture
) -> None:
    app = noon.process()
    items: list[dict[str, int]] = [{"id": 1}, {"number": 2}, {"id": 3}]
    asked: list[Any] = []

    @app.flow(key=key)
    def sync(order: dict[str, int]) -> None:
        noon.do(f"order {order['id']}")

    @app.poll(every="1m", start=sync)
    def orders(cursor: Any) -> Polled:
        asked.append(cursor)
        return Polled(items, cursor=len(asked))

    prepare(app)
    for mended in (False, True, True):
        items[1] = {"id": 2} if mended else {"number": 2}
        look(app)
        noon.clock.advance(60)
    assert noon.effects == {"order 1": 1, "order 2": 1, "order 3": 1}
    assert asked == [None, None, 2]
    assert caplog.text.count("cannot be started, the cursor stays") == 1


def broken_pages(since: Any) -> Any:
    yield {"id": 1}
    raise ConnectionResetError("a hiccup")


def broken_cursor(since: Any) -> Any:
    return Polled([{"id": 1}], cursor=object())


def no_items(since: Any) -> Any:
    return "id 1"


@pytest.mark.parametrize("function", [broken_pages, broken_cursor, no_items])
def test_a_source_that_breaks_while_it_is_read_is_asked_again_at_the_next_tick(
    noon: Stage, caplog: pytest.LogCaptureFixture, function: Any
) -> None:
    app = noon.process()
    asked: list[Any] = []

    @app.flow(key="order:{order[id]}")
    def sync(order: dict[str, int]) -> None:
        noon.do(f"order {order['id']}")

    @app.poll(every="1m", start=sync)
    def orders(since: Any) -> Any:
        asked.append(since)
        return function(since) if len(asked) == 1 else [{"id": 1}, {"id": 2}]

    prepare(app)
    for _ in range(3):
        while look(app):
            pass
        noon.clock.advance(60)
    assert noon.effects == {"order 1": 1, "order 2": 1}
    assert asked == [None, None, datetime.fromtimestamp(NOON + 90 - 600, UTC)]
    assert caplog.text.count("orders could not be polled, will try again") == 1


def test_an_item_whose_key_breaks_holds_up_no_other(noon: Stage, caplog: pytest.LogCaptureFixture) -> None:
    app = noon.process()

    def key(order: dict[str, int]) -> str:
        return f"order:{1 // order['id']}:{order['id']}"

    @app.flow(key=key)
    def sync(order: dict[str, int]) -> None:
        noon.do(f"order {order['id']}")

    @app.poll(every="1m", start=sync)
    def orders(since: Any) -> list[dict[str, int]]:
        return [{"id": 0}, {"id": 1}]

    prepare(app)
    while look(app):
        pass
    assert noon.effects == {"order 1": 1}
    assert "cannot be started, the cursor stays" in caplog.text


def test_a_store_that_is_away_while_items_are_started_is_not_taken_for_the_source(noon: Stage) -> None:
    source, app = Source(noon), noon.process()
    polling(noon, app, source)
    source.add(1)

    def away(*_: Any, **__: Any) -> Any:
        raise StoreUnavailable("away")
        yield

    app.flows["sync"].start = away  # type: ignore[method-assign]
    (record,) = app.store.due("poll", queues=app.polls.queues(), hide=0.0).block().records
    with pytest.raises(StoreUnavailable):
        block(app.polls.carry_out(record))


@pytest.mark.parametrize("back", [True, False])
def test_after_an_error_of_the_store_the_next_tick_polls_again_if_it_is_back(noon: Stage, back: bool) -> None:
    """Otherwise it is as if the poller had died: somebody else follows after a few intervals."""
    source, app = Source(noon), noon.process()
    polling(noon, app, source)
    source.add(1)
    start = app.flows["sync"].start

    def away(*_: Any, **__: Any) -> Any:
        app.engine.dead = not back  # type: ignore[attr-defined]
        raise StoreUnavailable("away")
        yield

    app.flows["sync"].start = away  # type: ignore[method-assign]
    (record,) = app.store.due("poll", queues=app.polls.queues(), hide=0.0).block().records
    with pytest.raises(StoreUnavailable, match="away"):
        block(app.polls.carry_out(record))
    app.flows["sync"].start = start  # type: ignore[method-assign]
    app.engine.dead = False  # type: ignore[attr-defined]
    noon.clock.advance(60)
    while look(app):
        pass
    assert noon.effects == ({"order 1": 1} if back else {})
    noon.clock.advance(120)
    while look(app):
        pass
    assert noon.effects == {"order 1": 1}


def test_an_async_generator_is_no_source(noon: Stage) -> None:
    app = noon.process()
    with pytest.raises(Misuse, match="async generator"):

        @app.poll(every="1m", start=clockwork(noon, app))
        async def pages(since: Any) -> Any:
            yield since
