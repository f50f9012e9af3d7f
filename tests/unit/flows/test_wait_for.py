"""`app.wait_for`: a run parks until something arrives; the first arrival counts, and none is slept through."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.unit.flows.stage import Died, Stage, Style
from tests.unit.flows.waits import arrival, deliver, park, process, waiter, work
from twiceproof import (
    App,
    Delivered,
    Misuse,
    NeedsReview,
    NoSuchWait,
    NotDone,
    PriorFailure,
    ValueRefused,
    Waiting,
    WaitTimedOut,
)
from twiceproof.claims.claim import address_of, body_of
from twiceproof.flows.engine.session import Session
from twiceproof.flows.waits.records import ARRIVED, TIMEOUT, Arrival, encode_payload
from twiceproof.flows.waits.records import deliver as operation
from twiceproof.operations import Inline, await_, block
from twiceproof.records import Address, Insert, Lost

# -- before, between, after ------------------------------------------------------------------------


def test_a_run_parks_until_something_arrives_and_returns_it(stage: Stage, style: Style) -> None:
    app = process(stage)
    sync = waiter(app, style=style)
    handle = park(sync)
    assert stage.record("sync", "order:1").state == "waiting"
    assert stage.record("sync", "order:1").due_at is None
    assert deliver(app, {"amount": 7}) == Delivered(True, {"amount": 7})
    assert sync(1) == {"amount": 7}
    assert handle.id == sync.flow.handle("order:1").id


def test_nothing_arrived_nothing_goes_on(stage: Stage) -> None:
    app = process(stage)
    sync = waiter(app)
    park(sync)
    assert work(app) == 0
    assert park(sync).state == "waiting"


def test_what_arrives_before_the_wait_answers_it_at_once(stage: Stage, style: Style) -> None:
    app = process(stage)

    def steps(order: int) -> Any:
        yield app.sleep("1h")
        return (yield app.wait_for("paid", timeout="7d"))

    sync = style.flow(app, steps)
    park(sync)
    assert deliver(app, "early").first
    stage.clock.advance(3_601)
    assert sync(1) == "early"


def test_what_arrives_for_one_wait_does_not_end_another(stage: Stage) -> None:
    app = process(stage)
    sync = waiter(app, "paid")
    park(sync)
    assert deliver(app, "x", name="shipped").first
    park(sync)
    assert deliver(app, "y", name="paid").first
    assert sync(1) == "y"


@pytest.mark.parametrize("when", ["before the look", "between look and sleep"])
def test_what_arrives_while_the_run_lies_down_is_not_slept_through(stage: Stage, when: str) -> None:
    app, other = process(stage), process(stage)
    sync = waiter(app, timeout="7d")
    _meddle(app, when, lambda: deliver(other, "between"))
    if when == "before the look":
        assert sync(1) == "between"
        return
    park(sync)
    assert stage.record("sync", "order:1").state == "queued"
    assert work(app) == 1
    assert sync(1) == "between"


def _meddle(app: App, when: str, act: Any) -> None:
    """Something happens right before the run looks for an arrival, or right before it parks."""
    engine: Any = app.engine  # type: ignore[attr-defined]
    fetch, commit = engine.fetch, engine.commit

    def looking(addresses: Any) -> Any:
        if any(at.kind == "arrival" for at in addresses) and when == "before the look":
            engine.fetch = fetch
            act()
        return fetch(addresses)

    def writing(batches: Any) -> Any:
        parks = any(getattr(write, "state", "") == "waiting" for batch in batches for write in batch.writes)
        if parks and when != "before the look":
            engine.commit = commit
            act()
        return commit(batches)

    engine.fetch, engine.commit = looking, writing


def test_a_delivery_that_saw_the_run_at_work_wakes_it_if_it_lay_down_meanwhile(stage: Stage) -> None:
    """The deliverer looks while the run is held; the run parks; only then the arrival is written."""
    app, other = process(stage), process(stage)
    reached, parked = threading.Event(), threading.Event()
    engine: Any = other.engine  # type: ignore[attr-defined]
    commit = engine.commit

    def late(batches: Any) -> Any:
        engine.commit = commit
        reached.set()
        assert parked.wait(10)
        return commit(batches)

    engine.commit = late
    told: list[Delivered] = []
    thread = threading.Thread(target=lambda: told.append(deliver(other, "late")))

    @app.step(repeat="safe")
    def invite() -> None:
        thread.start()
        assert reached.wait(10)

    @app.flow(key="order:{order}", name="sync")
    def sync(order: int) -> Any:
        invite()
        return app.wait_for("paid")

    park(sync)
    parked.set()
    thread.join()
    assert told == [Delivered(True, "late")]
    assert work(app) == 1
    assert sync(1) == "late"


def test_a_waiting_run_holds_no_thread_and_no_memory(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    app = process(stage)
    sync = waiter(app, timeout="7d")
    park(sync, 0)
    sessions: list[weakref.ref[Session]] = []
    load = Session.__init__

    def remembered(self: Session, *args: Any, **kwargs: Any) -> None:
        sessions.append(weakref.ref(self))
        load(self, *args, **kwargs)

    monkeypatch.setattr(Session, "__init__", remembered)
    before = threading.active_count()
    for order in range(1, 101):
        park(sync, order)
    assert threading.active_count() <= before
    app.runtime.flusher.stop()
    gc.collect()
    assert len(sessions) == 100
    assert not [ref for ref in sessions if ref() is not None]


# -- duplicates ------------------------------------------------------------------------------------


def test_a_second_arrival_is_a_duplicate_and_gets_the_first_answer(stage: Stage) -> None:
    app = process(stage)
    sync = waiter(app)
    park(sync)
    assert deliver(app, "first") == Delivered(True, "first")
    assert deliver(app, "second") == Delivered(False, "first")
    assert sync(1) == "first"
    assert deliver(app, "third") == Delivered(False, "first")
    assert sync(1) == "first"


def test_of_many_arrivals_at_once_exactly_one_counts(stage: Stage) -> None:
    apps = [process(stage) for _ in range(4)]
    sync = waiter(apps[0])
    park(sync)
    barrier = threading.Barrier(8)

    def race(number: int) -> Delivered:
        barrier.wait()
        return deliver(apps[number % 4], number)

    with ThreadPoolExecutor(8) as pool:
        told = list(pool.map(race, range(8)))
    winners = [answer for answer in told if answer.first]
    assert len(winners) == 1
    assert {answer.answer for answer in told} == {winners[0].answer}
    assert sync(1) == winners[0].answer


@pytest.mark.parametrize("payload", [None, 0, "", [], {"deep": [{"x": 1.5}]}])
def test_any_json_value_arrives_as_it_is(stage: Stage, payload: Any) -> None:
    app = process(stage)
    sync = waiter(app)
    park(sync)
    assert deliver(app, payload) == Delivered(True, payload)
    assert sync(1) == payload


@pytest.mark.parametrize("payload", [float("nan"), object(), "x" * 300_000])
def test_what_cannot_be_kept_is_refused_and_ends_no_wait(stage: Stage, payload: Any) -> None:
    app = process(stage)
    sync = waiter(app)
    park(sync)
    with pytest.raises(ValueRefused):
        deliver(app, payload)
    park(sync)


def test_a_delivery_to_a_run_that_is_not_there_is_refused(stage: Stage) -> None:
    app = process(stage)
    waiter(app)
    with pytest.raises(NoSuchWait):
        deliver(app, "x")


def test_a_delivery_to_a_run_that_is_done_and_never_waited_is_told_so(stage: Stage) -> None:
    app = process(stage)

    @app.flow(key="order:{order}", name="sync")
    def sync(order: int) -> str:
        return "done"

    sync(1)
    assert deliver(app, "x") == Delivered(False, None, "ended")
    assert arrival(stage) is None


def test_what_arrives_while_a_run_has_failed_is_there_when_it_is_retried(stage: Stage) -> None:
    app = process(stage)
    broken = [True]

    @app.step
    def pack() -> None:
        if broken:
            raise NotDone("no box", final=True)

    @app.flow(key="order:{order}", name="sync")
    def sync(order: int) -> Any:
        pack()
        return app.wait_for("paid")

    with pytest.raises(NotDone, match="no box"):
        sync(1)
    assert deliver(app, "money").first
    broken.clear()
    assert sync.retry(1) == "money"


def test_what_arrived_for_a_forgotten_run_does_not_answer_the_next_one_of_its_key(stage: Stage) -> None:
    app = process(stage)

    def steps(order: int) -> Any:
        return app.wait_for("paid")
        yield

    sync = Style("def").flow(app, steps, keep="1h")
    park(sync)
    deliver(app, "old")
    assert sync(1) == "old"
    stage.clock.advance(3_601)
    park(sync)
    assert deliver(app, "new") == Delivered(True, "new")
    assert sync(1) == "new"


def leave_behind(stage: Stage, kind: str, key: str, state: str, body: object) -> None:
    """What a crash in the midst of forgetting an earlier run of the same key leaves."""
    at = Address(address_of("default", "sync", "order:1").space, kind, key)
    stage.process().store.write(Insert(at, body_of(body), state)).block()


@pytest.mark.parametrize("state", [ARRIVED, TIMEOUT])
def test_an_arrival_that_an_earlier_run_left_behind_counts_for_nothing(stage: Stage, state: str) -> None:
    app = process(stage)
    sync = waiter(app)
    leave_behind(stage, "arrival", "wait:paid", state, Arrival("earlier", encode_payload("old", "it")))
    park(sync)
    assert arrival(stage) is None
    leave_behind(stage, "arrival", "wait:paid", state, Arrival("earlier", encode_payload("old", "it")))
    assert deliver(app, "new") == Delivered(True, "new")
    assert sync(1) == "new"


def test_a_lost_acknowledgement_does_not_make_a_delivery_its_own_duplicate(stage: Stage) -> None:
    """It landed, nobody heard of it, and the run went on before the delivery was sent again."""
    app, other = process(stage), process(stage)
    sync = waiter(app)
    park(sync)
    other.engine.lose_reply(meanwhile=lambda: work(app))  # type: ignore[attr-defined]
    assert deliver(other, "x") == Delivered(True, "x")
    assert sync(1) == "x"


class Forgetful:
    """A store that has lost the trace of its next write: it landed, and nobody can say so."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._left = 1

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def write(self, *writes: Any, **more: Any) -> Any:
        request = self._inner.write(*writes, **more)
        if not self._left:
            return request
        self._left -= 1
        written = request.block()
        return Inline(lambda: Lost(writes[0].at, None, written.now))


def test_a_delivery_of_which_the_store_lost_the_trace_knows_itself_again(stage: Stage) -> None:
    app, other = process(stage), process(stage)
    sync = waiter(app)
    park(sync)
    other.runtime.store = Forgetful(other.store)
    assert deliver(other, "x") == Delivered(True, "x")
    assert deliver(other, "x") == Delivered(False, "x")
    assert sync(1) == "x"


# -- time-outs -------------------------------------------------------------------------------------


def test_after_its_time_a_wait_raises_in_the_body_and_the_callback_comes_too_late(stage: Stage, style: Style) -> None:
    app = process(stage)
    sync = waiter(app, timeout="7d", style=style)
    park(sync)
    assert stage.record("sync", "order:1").due_at == pytest.approx(stage.clock.wall + 7 * 86_400)
    stage.clock.advance(7 * 86_400 + 1)
    with pytest.raises(WaitTimedOut, match="nothing arrived for paid in time") as caught:
        sync(1)
    assert (caught.value.name, caught.value.run) == ("paid", sync.flow.handle("order:1").id)
    assert deliver(app, "late") == Delivered(False, None, "timeout")
    with pytest.raises(PriorFailure, match="WaitTimedOut"):
        sync(1)


def test_a_moment_before_its_time_is_over_a_callback_still_counts(stage: Stage) -> None:
    app = process(stage)
    sync = waiter(app, timeout="7d")
    park(sync)
    stage.clock.advance(7 * 86_400 - 1)
    assert deliver(app, "in time").first
    stage.clock.advance(10)
    assert sync(1) == "in time"


@pytest.mark.parametrize("default", [None, {"paid": False}])
def test_a_default_is_returned_instead_of_raising_and_stays_the_same(stage: Stage, style: Style, default: Any) -> None:
    def flow(app: App, default: Any) -> Any:
        def steps(order: int) -> Any:
            found = yield app.wait_for("paid", timeout="1h", default=default)
            yield app.sleep("1h")
            return found

        return style.flow(app, steps)

    park(flow(process(stage), default))
    stage.clock.advance(3_601)
    park(flow(process(stage), default))
    stage.clock.advance(3_601)
    assert flow(process(stage), "a later release")(1) == default


def test_a_time_out_can_be_caught_and_the_flow_goes_another_way(stage: Stage) -> None:
    app = process(stage)

    @app.flow(key="order:{order}", name="sync")
    def sync(order: int) -> str:
        try:
            return str(app.wait_for("paid", timeout="1h"))
        except WaitTimedOut:
            return "cancelled"

    park(sync)
    stage.clock.advance(3_601)
    assert sync(1) == "cancelled"


@pytest.mark.parametrize("callback_first", [True, False])
def test_of_a_time_out_and_a_callback_at_the_same_moment_exactly_one_counts(stage: Stage, callback_first: bool) -> None:
    """The run has seen nothing and is about to write its time-out: the other one lands right before or after."""
    app, other = process(stage), process(stage)
    sync = waiter(app, timeout="1h", default="timed out")
    park(sync)
    stage.clock.advance(3_601)
    told: list[Delivered] = []
    engine: Any = app.engine  # type: ignore[attr-defined]
    commit = engine.commit

    def racing(batches: Any) -> Any:
        mine = any(write.at.kind == "arrival" for batch in batches for write in batch.writes)
        if not mine:
            return commit(batches)
        engine.commit = commit
        if callback_first:
            told.append(deliver(other, "called"))
            return commit(batches)
        answers = commit(batches)
        told.append(deliver(other, "called"))
        return answers

    engine.commit = racing
    assert sync(1) == ("called" if callback_first else "timed out")
    assert told == [Delivered(True, "called") if callback_first else Delivered(False, None, "timeout")]


def test_raced_by_threads_the_run_and_the_caller_agree_who_was_first(stage: Stage) -> None:
    for order in range(20):
        app, other = process(stage), process(stage)
        sync = waiter(app, timeout="1h", default="timed out")
        park(sync, order)
        stage.clock.advance(3_601)
        with ThreadPoolExecutor(2) as pool:
            ran = pool.submit(_settled, sync, order)
            told = pool.submit(deliver, other, "called", "paid", order)
        result = ran.result()
        assert (result == "called") is told.result().first
        assert told.result().state == ("arrived" if told.result().first else "timeout")


def _settled(sync: Any, order: int) -> Any:
    while True:
        try:
            return sync(order)
        except Waiting:
            continue


# -- crashes and replays ---------------------------------------------------------------------------


@pytest.mark.parametrize("landed", [False, True])
@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_crash_at_any_commit_of_a_wait_loses_neither_the_wait_nor_the_arrival(
    stage: Stage, at: int, landed: bool
) -> None:
    def flow(app: App) -> Any:
        @app.step(repeat="safe")
        def confirm(paid: str) -> str:
            stage.do("confirm")
            return f"confirmed {paid}"

        @app.flow(key="order:{order}", name="sync")
        def sync(order: int) -> str:
            return confirm(app.wait_for("paid", timeout="7d"))

        return sync

    try:
        flow(process(stage, at, landed=landed))(1)
    except (Died, Waiting):
        stage.lapse()
    second = process(stage)
    with contextlib.suppress(Waiting):
        flow(second)(1)
    deliver(second, "7 EUR")
    try:
        flow(process(stage, at, landed=landed))(1)
    except Died:
        stage.lapse()
    assert flow(process(stage))(1) == "confirmed 7 EUR"
    assert deliver(second, "again") == Delivered(False, "7 EUR")


def test_a_cancelled_run_waits_no_longer_and_is_undone(stage: Stage) -> None:
    app = process(stage)

    def release(item: str) -> None:
        stage.do("release")

    @app.step(repeat="safe", undo=release)
    def reserve(item: str) -> str:
        return item

    @app.flow(key="order:{order}", name="sync")
    def sync(order: int) -> Any:
        reserve("shoe")
        return app.wait_for("paid")

    handle = park(sync)
    handle.cancel("ann")
    work(app)
    assert handle.state == "failed"
    assert stage.effects == {"release": 1}


# -- misuse ----------------------------------------------------------------------------------------


def test_waiting_twice_under_one_name_is_refused(stage: Stage) -> None:
    app = process(stage)

    @app.flow(key="order:{order}", name="sync")
    def sync(order: int) -> Any:
        return app.wait_for("paid"), app.wait_for("paid")

    park(sync)
    deliver(app, "x")
    with pytest.raises(Misuse, match="waits twice for 'paid'"):
        sync(1)


def test_waiting_twice_under_two_names_is_welcome(stage: Stage) -> None:
    app = process(stage)

    @app.flow(key="order:{order}", name="sync")
    def sync(order: int) -> Any:
        return [app.wait_for(f"paid:{line}") for line in (1, 2)]

    park(sync)
    deliver(app, "b", "paid:2")
    park(sync)
    deliver(app, "a", "paid:1")
    assert sync(1) == ["a", "b"]


@pytest.mark.parametrize("wait", ["wait_for", "approve"])
def test_a_default_without_a_time_out_is_refused(stage: Stage, wait: str) -> None:
    app = process(stage)

    @app.flow(key="order:{order}", name="sync")
    def sync(order: int) -> Any:
        return getattr(app, wait)("paid", default="reject")

    with pytest.raises(Misuse, match="give a timeout= too"):
        sync(1)


def test_a_wait_belongs_into_the_body_of_a_flow(stage: Stage) -> None:
    app = process(stage)
    with pytest.raises(Misuse, match=r"app\.wait_for was called from no flow"):
        app.wait_for("paid")

    @app.step
    def step() -> Any:
        return app.wait_for("paid")

    @app.flow(key="order:{order}", name="sync")
    def sync(order: int) -> Any:
        return step()

    with pytest.raises(NeedsReview, match="from a step"):
        sync(1)


def test_the_operations_can_be_awaited_too(stage: Stage) -> None:
    app = process(stage)
    sync = waiter(app)
    park(sync)
    at = Address(address_of("default", "sync", "order:1").space, "arrival", "wait:paid")

    async def call() -> Delivered:
        return await await_(operation(app.store, at, encode_payload("x", "it"), mark="m"))

    assert asyncio.run(call()).first
    assert not block(operation(app.store, at, encode_payload("y", "it"), mark="n")).first
