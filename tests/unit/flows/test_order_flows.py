"""Flows whose events come out of order: only newer versions are applied, wherever and however they are run."""

from __future__ import annotations

import asyncio
import contextlib
from contextvars import Context
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.flows.order_shop import Outside, declare, event
from tests.unit.flows.stage import Died, Stage, Style
from tests.unit.flows.test_triggers import look
from twiceproof import App, InProgress, Misuse, NeedsReview, PayloadMismatch, Stale, Waiting, by
from twiceproof.claims.claim import address_of
from twiceproof.flows.history.fork import plan_fork
from twiceproof.flows.ordering.high_water_mark import mark_at, mark_of
from twiceproof.operations import block


def drain(stage: Stage, app: App, rounds: int = 60) -> None:
    """A worker, until nothing is due; time goes by."""
    idle = 0
    for _ in range(rounds):
        idle = 0 if look(app) else idle + 1
        if idle > 12:  # longer than the patience of the flows here that have little
            return
        stage.clock.advance(1)


def newest(stage: Stage, thing: str = "a") -> str:
    mark = mark_of(stage.engine.fetch([mark_at("default", "sync", thing)])[0].record)
    assert mark is not None
    return mark.version


# -- newer, older, equal -------------------------------------------------------------------------


def test_a_newer_version_is_applied_and_an_older_one_dropped(stage: Stage, style: Style) -> None:
    outside = Outside()
    flow = declare(stage.process(), outside, style)
    assert flow(event(1)) == "a@1"
    assert flow(event(3)) == "a@3"
    with pytest.raises(Stale) as told:
        flow(event(2))
    assert (told.value.object, told.value.version, told.value.newest) == ("a", "2", "3")
    assert outside.applied == {"a": [1, 3]}
    assert stage.record("sync", "order:a:2").state == "done"


def test_objects_do_not_disturb_each_other(stage: Stage) -> None:
    outside = Outside()
    flow = declare(stage.process(), outside)
    flow(event(5, "a"))
    flow(event(1, "b"))
    assert outside.applied == {"a": [5], "b": [1]}


def test_an_equal_version_with_the_same_payload_is_a_duplicate(stage: Stage, style: Style) -> None:
    outside = Outside()
    flow = declare(stage.process(), outside, style)
    assert flow(event(1, total=5)) == flow(event(1, total=5)) == "a@1"
    assert outside.applied == {"a": [1]}


def test_an_equal_version_with_another_payload_is_a_mismatch(stage: Stage, style: Style) -> None:
    outside = Outside()
    flow = declare(stage.process(), outside, style)
    flow(event(1, total=5))
    with pytest.raises(PayloadMismatch):
        flow(event(1, total=6))
    assert outside.applied == {"a": [1]}


def by_delivery(app: App, outside: Outside) -> Any:
    """The key is the delivery's: the same version can come under two keys."""

    @app.flow(
        key="evt:{order[event]}",
        name="sync",
        ignore=("order.event",),
        order=by(object="{order[id]}", version="{order[v]}"),
    )
    def sync(order: dict[str, Any]) -> None:
        outside.set(order["id"], order["v"])

    return sync


def test_an_equal_version_under_another_key_is_told_apart_by_its_payload(stage: Stage) -> None:
    outside = Outside()
    flow = by_delivery(stage.process(), outside)
    flow(event(1, event="d1", total=5))
    with pytest.raises(Stale, match="same payload"):
        flow(event(1, event="d2", total=5))
    with pytest.raises(PayloadMismatch):
        flow(event(1, event="d3", total=6))
    assert outside.applied == {"a": [1]}


def test_a_duplicate_of_a_stale_one_is_stale_again(stage: Stage) -> None:
    flow = declare(stage.process(), Outside())
    flow(event(3))
    for _ in range(2):
        with pytest.raises(Stale):
            flow(event(2))


def test_kinds_of_versions_are_never_mixed(stage: Stage) -> None:
    outside = Outside()
    flow = declare(stage.process(), outside)
    flow(event(3))
    with pytest.raises(Misuse, match="no order between them"):
        flow(event("2026-05-01T12:00:00Z"))
    assert outside.applied == {"a": [3]}


@pytest.mark.parametrize("version", [None, "", "v7", 1.5])
def test_what_cannot_be_ordered_is_refused_before_anything_is_written(stage: Stage, version: Any) -> None:
    app = stage.process()
    flow = declare(app, Outside())
    for call in (flow, flow.start):
        with pytest.raises(Misuse):
            call(event(version))
    assert app.engine.commits == 0  # type: ignore[attr-defined]


def test_times_are_ordered_as_instants(stage: Stage) -> None:
    outside = Outside()
    flow = declare(stage.process(), outside)
    flow(event("2026-05-01T12:00:00Z"))
    with pytest.raises(Stale):
        flow(event("2026-05-01T13:30:00+02:00"))
    assert flow(event("2026-05-01T14:30:00+02:00")) == "a@2026-05-01T14:30:00+02:00"


# -- started, and left to workers ----------------------------------------------------------------


def test_a_stale_run_of_a_worker_ends_done_and_says_so(stage: Stage, style: Style, caplog: Any) -> None:
    app, outside = stage.process(), Outside()
    flow = declare(app, outside, style)
    start(flow, event(3))
    drain(stage, app)
    handle = start(flow, event(2))
    with caplog.at_level("INFO"):
        drain(stage, app)
    assert stage.record("sync", "order:a:2").state == "done"
    with pytest.raises(Stale, match="version 3 of a"):
        block(flow.flow.handle("order:a:2").result())
    assert handle.key == "order:a:2"
    assert "dropped: version 2 of a came after 3" in caplog.text
    assert outside.applied == {"a": [3]}


def start(flow: Any, what: Any) -> Any:
    return asyncio.run(flow._flow.start(what)) if hasattr(flow, "_flow") else flow.start(what)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    events=st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 6)), min_size=1, max_size=14),
    ways=st.lists(st.sampled_from(["call", "start"]), min_size=14, max_size=14),
    awaited=st.booleans(),
    gap=st.sampled_from([{}, {"gap": "park", "patience": "5s"}, {"gap": "park", "patience": "5s", "first": 1}]),
)
def test_whatever_the_order_and_the_repeats_the_newest_version_is_what_stays(
    events: list[tuple[str, int]], ways: list[str], awaited: bool, gap: dict[str, Any]
) -> None:
    stage, outside = Stage(), Outside()
    app = stage.process()
    flow = declare(app, outside, Style("async def" if awaited else "def"), **gap)
    try:
        for (thing, version), way in zip(events, ways, strict=False):
            if way == "start":
                start(flow, event(version, thing))
            else:
                call(flow, event(version, thing))
        drain(stage, app)
        for thing in {thing for thing, _ in events}:
            outside.check(thing, max(version for other, version in events if other == thing))
    finally:
        stage.close()


def call(flow: Any, what: Any) -> None:
    with contextlib.suppress(Stale, Waiting, InProgress):
        flow(what)


# -- crashes -------------------------------------------------------------------------------------

COMMITS = 6  # the slot, the run, the mark, the step's intent, its end with the run's, the slot given back


@pytest.mark.parametrize("landed", [False, True])
@pytest.mark.parametrize("at", range(1, COMMITS + 1))
def test_killed_anywhere_no_older_version_comes_in_afterwards(stage: Stage, at: int, landed: bool) -> None:
    outside = Outside()
    dying = declare(stage.process(at, landed=landed), outside)
    with pytest.raises(Died):
        dying(event(3))
        raise Died  # what is left to the slot's giving back is not the caller's
    stage.lapse()
    app = stage.process()
    flow = declare(app, outside)
    before = list(outside.applied.get("a", []))
    moved = stage.engine.fetch([mark_at("default", "sync", "a")])[0].record is not None
    call(flow, event(2))
    if moved:
        assert outside.applied.get("a", []) == before, "the mark was moved before the crash"
    drain(stage, app)
    try:
        flow(event(3))
        outside.check("a", 3)
    except NeedsReview:  # its step, never to be repeated blindly, was begun
        assert at in (4, 5)
    assert newest(stage) == "3"


def test_a_retry_of_the_same_version_is_not_stale(stage: Stage) -> None:
    outside, app = Outside(), stage.process()
    broken = [True]

    @app.flow(key="order:{order[id]}", order=by(object="{order[id]}", version="{order[v]}"))
    def sync(order: dict[str, Any]) -> str:
        if broken[0]:
            raise ValueError("a bug")
        outside.set(order["id"], order["v"])
        return "done"

    with pytest.raises(ValueError):
        sync(event(3))
    broken[0] = False
    with pytest.raises(Stale):
        sync(event(2))
    assert sync.retry(event(3)) == "done"
    assert outside.applied == {"a": [3]}


def test_a_run_that_waits_is_overtaken_by_a_newer_version(stage: Stage) -> None:
    outside, app = Outside(), stage.process()

    @app.flow(key="order:{order[id]}", name="sync", order=by(object="{order[id]}", version="{order[v]}"))
    def sync(order: dict[str, Any]) -> None:
        if order["v"] == 1:
            app.sleep("1h")
        outside.set(order["id"], order["v"])

    with pytest.raises(Waiting):
        sync(event(1))
    sync(event(2))
    stage.clock.advance(3_700)
    drain(stage, app)
    with pytest.raises(Stale):
        sync(event(1))
    assert outside.applied == {"a": [2]}


def test_a_process_that_was_away_past_its_lease_gives_way_to_a_newer_version(stage: Stage) -> None:
    """Between two of its steps another process takes the object's slot, and applies a newer version."""
    outside = Outside()
    away, other = stage.process(), stage.process()
    overtaking = declare(other, outside)

    @away.step(repeat="safe")
    def first(order: dict[str, Any]) -> None: ...

    @away.step(repeat="safe")
    def second(order: dict[str, Any]) -> None:
        outside.set(order["id"], order["v"])

    @away.flow(key="order:{order[id]}", name="sync", order=by(object="{order[id]}", version="{order[v]}"))
    def sync(order: dict[str, Any]) -> None:
        first(order)
        stage.lapse()
        Context().run(overtaking, event(2))  # no part of this run
        second(order)

    with pytest.raises(Waiting, match="lost its turn"):
        sync(event(1))
    drain(stage, away)
    assert outside.applied == {"a": [2]}


def test_two_versions_of_one_object_are_never_at_work_at_once(stage: Stage) -> None:
    app, outside = stage.process(), Outside()
    depth = [0]

    @app.flow(key="order:{order[id]}", name="sync", order=by(object="{order[id]}", version="{order[v]}"))
    def sync(order: dict[str, Any]) -> None:
        depth[0] += 1
        stage.effects["most at once"] = max(stage.effects["most at once"], depth[0])
        look(app, limit=1)
        outside.set(order["id"], order["v"])
        depth[0] -= 1

    for version in (1, 2, 3):
        sync.start(event(version))
    drain(stage, app)
    assert stage.effects["most at once"] == 1
    outside.check("a", 3)


# -- gaps ----------------------------------------------------------------------------------------


def test_a_gap_is_waited_for_and_closes(stage: Stage, style: Style) -> None:
    app, outside = stage.process(), Outside()
    flow = declare(app, outside, style, gap="park", patience="30s")
    flow(event(1))
    with pytest.raises(Waiting, match="waits for version 2 of a"):
        flow(event(3))
    flow(event(2))
    look(app)  # woken at once, not when its patience is over
    assert outside.applied == {"a": [1, 2, 3]}


def test_first_says_what_an_object_begins_with(stage: Stage) -> None:
    app, outside = stage.process(), Outside()
    flow = declare(app, outside, gap="park", first=1)
    for version in (3, 2):
        with pytest.raises(Waiting, match="waits for version 1"):
            flow(event(version))
    flow(event(1))
    drain(stage, app, 10)
    assert outside.applied == {"a": [1, 2, 3]}


def test_when_patience_is_over_it_goes_on_without(stage: Stage) -> None:
    app, outside = stage.process(), Outside()
    flow = declare(app, outside, gap="park", patience="30s")
    flow(event(1))
    with pytest.raises(Waiting):
        flow(event(3))
    stage.clock.advance(29)
    assert look(app) == 0
    stage.clock.advance(2)
    look(app)
    assert outside.applied == {"a": [1, 3]}
    with pytest.raises(Stale):
        flow(event(2))


def fetching(stage: Stage, app: App, outside: Outside, style: Style, **options: Any) -> Any:
    def fetch(order: dict[str, Any]) -> dict[str, Any]:
        stage.do("fetch")
        return dict(outside.source)

    step = style.step(app, fetch, repeat="safe")
    return declare(app, outside, style, gap="park", patience="30s", fetch=step, **options)


def test_after_a_gap_the_current_state_takes_the_events_place(stage: Stage, style: Style) -> None:
    app, outside = stage.process(), Outside()
    flow = fetching(stage, app, outside, style)
    flow(event(1))
    call(flow, event(3))
    outside.source = event(5)
    stage.clock.advance(31)
    look(app)
    assert outside.applied == {"a": [1, 5]}
    assert newest(stage) == "5"
    for version in (2, 4, 5):  # all of them are in what was fetched
        with pytest.raises(Stale):
            flow(event(version))
    assert stage.effects["fetch"] == 1


def test_without_a_gap_the_event_is_believed(stage: Stage) -> None:
    app, outside = stage.process(), Outside()
    flow = fetching(stage, app, outside, Style("def"))
    flow(event(1))
    flow(event(2))
    assert stage.effects["fetch"] == 0


def test_a_source_that_is_behind_the_event_does_not_take_its_place(stage: Stage) -> None:
    app, outside = stage.process(), Outside()
    flow = fetching(stage, app, outside, Style("def"))
    flow(event(1))
    call(flow, event(4))
    outside.source = event(2)
    stage.clock.advance(31)
    look(app)
    assert outside.applied == {"a": [1, 4]}


@pytest.mark.parametrize("landed", [False, True])
@pytest.mark.parametrize("at", range(1, 10))
def test_killed_anywhere_after_a_gap_the_state_fetched_is_applied_once(stage: Stage, at: int, landed: bool) -> None:
    outside, first = Outside(), stage.process()
    flow = fetching(stage, first, outside, Style("def"))
    flow(event(1))
    call(flow, event(3))
    outside.source = event(5)
    stage.clock.advance(31)
    dying = stage.process(at, landed=landed)
    fetching(stage, dying, outside, Style("def"))
    with contextlib.suppress(Died):
        look(dying)
    stage.lapse()
    app = stage.process()
    again = fetching(stage, app, outside, Style("def"))
    drain(stage, app)
    if stage.record("sync", "order:a:3").state == "done":
        outside.check("a", 5)
    else:
        assert stage.record("sync", "order:a:3").state == "review"  # its step never to be repeated was begun
        assert outside.applied["a"] in ([1], [1, 5])
    call(again, event(4))
    assert 4 not in outside.applied["a"]


# -- forking -------------------------------------------------------------------------------------


def fork(stage: Stage, app: App, version: int, key: str) -> str:
    """A person has it done once more. The state in which that ends, and whether it was stale."""
    app.fork_run(f"sync/order:a:{version}", key=key)
    drain(stage, app, 14)
    run = app.history(f"sync/{key}").run
    return "stale" if run.reason.startswith("stale") else run.state


def test_a_fork_of_the_newest_version_is_let_through_as_often_as_somebody_says_so(stage: Stage, style: Style) -> None:
    app, outside = stage.process(), Outside()
    flow = declare(app, outside, style)
    flow(event(1))
    flow(event(2))
    assert [fork(stage, app, 2, key) for key in ("again", "and again")] == ["done", "done"]
    app.fork_run("sync/again", key="a fork of a fork")
    drain(stage, app)
    assert outside.applied == {"a": [1, 2, 2, 2, 2]}
    assert newest(stage) == "2"


def test_a_fork_of_an_older_version_is_refused_with_the_next_move(stage: Stage) -> None:
    """The twin: it would write an older state over a newer one, so it could only be dropped."""
    app, outside = stage.process(), Outside()
    flow = declare(app, outside)
    flow(event(1))
    flow(event(2))
    newer = app.attach(flow="sync", key="order:a:2").id
    for fork_or_plan in (app.fork_run, lambda run, key: block(plan_fork(app.store, at_of(run), key))):
        with pytest.raises(Misuse, match=f"overtaken by 2, .* fork the newest one \\({newer}\\)"):
            fork_or_plan("sync/order:a:1", key="again")
    with pytest.raises(Misuse, match="There is no"):
        app.history("sync/again")
    assert outside.applied == {"a": [1, 2]}


def at_of(run: str) -> Any:
    return address_of("default", *run.split("/", 1), "run")


def test_a_version_that_was_not_let_through_yet_can_be_forked_as_long_as_it_is_newer(stage: Stage) -> None:
    """It was cancelled before it began: nothing has overtaken it."""
    app, outside = stage.process(), Outside()
    flow = declare(app, outside)
    flow(event(1))
    app.flows["sync"].drive(app.flows["sync"].start((event(2),), {}, delay=60.0))
    app.attach(flow="sync", key="order:a:2").cancel("ann")
    assert fork(stage, app, 2, "again") == "done"
    assert outside.applied == {"a": [1, 2]}


def test_a_fork_that_a_newer_version_came_before_is_stale(stage: Stage) -> None:
    app, outside = stage.process(), Outside()
    flow = declare(app, outside)
    flow(event(1))
    app.fork_run("sync/order:a:1", key="again")
    flow(event(2))
    drain(stage, app, 14)
    assert outside.applied == {"a": [1, 2]}


def test_a_fork_of_what_clashed_with_its_version_clashes_too(stage: Stage) -> None:
    app, outside = stage.process(), Outside()

    @app.flow(key="{order[kind]}:{order[id]}", name="sync", order=by(object="{order[id]}", version="{order[v]}"))
    def sync(order: dict[str, Any]) -> None:
        outside.set(order["id"], order["v"])

    sync(event(1, kind="order"))
    with pytest.raises(PayloadMismatch):
        sync(event(1, kind="return"))
    app.fork_run("sync/return:a:1", key="again")
    drain(stage, app, 14)
    assert app.history("sync/again").run.state == "failed"
    assert outside.applied == {"a": [1]}


def test_a_fork_of_what_was_undone_does_it_anew(stage: Stage) -> None:
    app, fails = stage.process(), [True]

    @app.step(repeat="safe")
    def refund(order: dict[str, Any]) -> None:
        stage.do("refund")

    @app.step(repeat="never", undo=refund)
    def charge(order: dict[str, Any]) -> None:
        stage.do("charge")

    @app.flow(key="order:{order[id]}", name="sync", order=by(object="{order[id]}", version="{order[v]}"))
    def sync(order: dict[str, Any]) -> None:
        charge(order)
        if fails:
            raise ValueError("no such address")

    with pytest.raises(ValueError, match="address"):
        sync(event(1))
    fails.clear()
    assert fork(stage, app, 1, "again") == "done"
    assert stage.effects == {"charge": 2, "refund": 1}


def test_of_a_run_and_its_fork_only_one_goes_on(stage: Stage) -> None:
    app, fails, outside = stage.process(), [True], Outside()

    @app.flow(key="order:{order[id]}", name="sync", order=by(object="{order[id]}", version="{order[v]}"))
    def sync(order: dict[str, Any]) -> None:
        if fails:
            raise ValueError("no such address")
        outside.set(order["id"], order["v"])

    with pytest.raises(ValueError, match="address"):
        sync(event(1))
    fails.clear()
    assert fork(stage, app, 1, "again") == "done"
    app.retry_run("sync/order:a:1")
    drain(stage, app, 14)
    with pytest.raises(Stale):
        sync(event(1))
    assert outside.applied == {"a": [1]}


def test_a_fork_of_what_went_by_the_state_fetched_asks_the_source_once_more(stage: Stage, style: Style) -> None:
    app, outside = stage.process(), Outside()
    flow = fetching(stage, app, outside, style)
    flow(event(1))
    call(flow, event(3))
    outside.source = event(5)
    stage.clock.advance(31)
    look(app)
    outside.source = event(6)
    assert fork(stage, app, 3, "again") == "done"
    assert outside.applied == {"a": [1, 5, 6]}
    assert newest(stage) == "6"


# -- keeping -------------------------------------------------------------------------------------


def test_the_mark_is_kept_for_ever_or_as_long_as_was_said(stage: Stage) -> None:
    from twiceproof.claims.retention import sweep

    app, outside = stage.process(), Outside()
    flow = declare(app, outside, keep="90d")
    flow(event(3))
    stage.clock.advance(89 * 86_400)
    block(sweep(app.store))
    with pytest.raises(Stale):
        flow(event(2))
    stage.clock.advance(91 * 86_400)
    block(sweep(app.store))
    flow(event(1))
    assert outside.applied == {"a": [3, 1]}


def test_a_flow_that_calls_an_ordered_one_is_told_once_that_it_is_stale(stage: Stage) -> None:
    from twiceproof import StepFailed

    app, outside = stage.process(), Outside()
    inner = declare(app, outside)
    inner(event(3))

    @app.flow(key="outer:{n}")
    def outer(n: int) -> str:
        try:
            inner(event(2))
        except StepFailed as error:
            return error.data["fault"].type
        return "applied"

    assert outer(1) == "Stale"


# -- at once -------------------------------------------------------------------------------------


def test_of_two_runs_that_saw_the_same_mark_the_older_one_sees_it_move(stage: Stage) -> None:
    """Its slot lapsed between its look at the mark and its write."""
    from twiceproof.flows.ordering.declaration import Version
    from twiceproof.flows.ordering.high_water_mark import DropDecision, OrderedEvent

    app, outside = stage.process(), Outside()
    flow = declare(app, outside)
    flow(event(1))
    late = flow.flow.order._advance(
        app.runtime, mark_at("default", "sync", "a"), OrderedEvent(Version("integer", "2"), "run_late", ""), 0.0
    )
    write = late.send(next(late).block())
    flow(event(3))
    look_again = late.send(write.block())
    with pytest.raises(StopIteration) as end:
        late.send(look_again.block())
    assert isinstance(end.value.value, DropDecision)


def test_many_threads_deliver_in_any_order_and_the_newest_stays(tmp_path: Any) -> None:
    from concurrent.futures import ThreadPoolExecutor

    outside = Outside()
    with App(f"sqlite:///{tmp_path}/shop.db?durability=process") as app:
        flow = declare(app, outside)
        events = [event(version, thing) for version in (4, 1, 6, 3, 5, 2) for thing in "abc"] * 2
        with ThreadPoolExecutor(6) as pool:
            list(pool.map(lambda what: call(flow, what), events))
    for thing in "abc":
        outside.check(thing, 6)
