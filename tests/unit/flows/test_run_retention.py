"""A run is forgotten as a whole: its history first, the claim last, and never while somebody may need it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.flows.stage import Died, Stage
from twiceproof import App, Misuse, NeedsReview, ResultNotKept
from twiceproof.claims.claim import address_of, claim_of
from twiceproof.claims.queries import Evidence, evidence_write
from twiceproof.claims.retention import sweep
from twiceproof.operations import block
from twiceproof.records import Address, Insert, Replace, Written, kinds_beside_runs

DAY = 86_400.0
PLACE = address_of("default", "sync", "order:1", "run")


def declare(stage: Stage, app: App, **options: Any) -> Any:
    @app.step(repeat="safe", id="{n}", external="line:{n}")
    def line(n: int) -> str:
        stage.do("line")
        return "x" * (100_000 if n == 0 else 1)

    @app.step
    def pay() -> None:
        stage.do("pay")
        if stage.effects["lost"]:
            raise TimeoutError("no answer")

    @app.flow(key="order:{order}", name="sync", **options)
    def sync(order: int, lines: int = 3) -> int:
        for n in range(lines):
            line(n)
        pay()
        return lines

    return sync


def everything(stage: Stage) -> list[Address]:
    kinds = ("run", *kinds_beside_runs())
    return [record.at for kind in kinds for record in stage.engine.scan(kind, PLACE.space, None, None, 10_000).records]


@pytest.mark.parametrize(("keep_failed", "state"), [("forever", "failed"), ("7d", "")])
def test_a_run_that_was_cancelled_before_it_began_is_kept_as_long_as_its_flow_says(
    stage: Stage, keep_failed: str, state: str
) -> None:
    handle = declare(stage, stage.process(), keep_failed=keep_failed).start(1)
    assert handle.cancel("ann") == "failed"
    stage.clock.advance(6 * DAY)
    assert handle.state == "failed"
    for days in (2, 400):
        stage.clock.advance(days * DAY)
        assert handle.state == state


def test_a_run_that_is_cancelled_where_its_flow_is_not_known_is_kept_for_ever(stage: Stage) -> None:
    declare(stage, stage.process()).start(1)
    handle = stage.process().attach(flow="sync", key="order:1")
    assert handle.cancel("ann") == "failed"
    stage.clock.advance(400 * DAY)
    assert handle.state == "failed"


def add_piece(app: App, kind: str) -> None:
    app.store.write(Insert(Address(PLACE.space, kind, "paid"), "{}")).block()


def test_everything_of_a_forgotten_run_goes(stage: Stage) -> None:
    app = stage.process()
    declare(stage, app, keep="1d")(1)
    for kind in ("arrival", "approval", "evidence"):
        add_piece(app, kind)
    assert len(everything(stage)) == 1 + 4 + 1 + 3  # claim, steps, a large result, the three
    stage.clock.advance(DAY)
    swept = block(sweep(app.store))
    assert (swept.forgotten, swept.pieces) == (1, 8)
    assert everything(stage) == []


def test_a_long_history_goes_in_small_batches(stage: Stage) -> None:
    app = stage.process()
    declare(stage, app, keep="1d")(1, 230)
    stage.clock.advance(DAY)
    before = app.engine.commits  # type: ignore[attr-defined]
    block(sweep(app.store))
    assert everything(stage) == []
    assert app.engine.commits - before >= 5  # type: ignore[attr-defined]


@pytest.mark.parametrize("landed", [False, True])
@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_sweep_that_dies_leaves_no_orphans(stage: Stage, at: int, landed: bool) -> None:
    declare(stage, stage.process(), keep="1d")(1, 120)
    stage.clock.advance(DAY)
    with pytest.raises(Died):
        block(sweep(stage.process(at, landed=landed).store))
    left = everything(stage)
    assert PLACE in left or not left
    stage.clock.advance(61)  # no longer hidden
    block(sweep(stage.process().store))
    assert everything(stage) == []


def test_history_goes_before_the_tombstone_does(stage: Stage) -> None:
    app = stage.process()
    sync = declare(stage, app, keep="30d", keep_history="1d")
    sync(1)
    stage.clock.advance(DAY)
    assert block(sweep(app.store)).trimmed == 1
    assert everything(stage) == [PLACE]
    claim = claim_of(stage.record("sync", "order:1"))
    assert (bytes(claim.work), bytes(claim.result)) == (b"{}", b"")  # the input is gone too
    assert [run.state for run in app.runs()] == ["done"]
    with pytest.raises(ResultNotKept):
        sync(1)
    assert stage.effects["pay"] == 1
    stage.clock.advance(29 * DAY)
    block(sweep(app.store))
    assert everything(stage) == []


def test_the_same_time_is_not_given_under_two_names(stage: Stage) -> None:
    with pytest.raises(Misuse, match="keep_history alone"):
        declare(stage, stage.process(), keep_result="1d", keep_history="2d")


def test_a_run_that_waits_for_a_person_is_never_swept(stage: Stage) -> None:
    app = stage.process()
    stage.do("lost")
    with pytest.raises(NeedsReview):
        declare(stage, app, keep="1d")(1)
    found = everything(stage)
    stage.clock.advance(1_000 * DAY)
    block(sweep(app.store))
    assert everything(stage) == found


def test_the_large_input_of_a_run_that_nobody_has_come_for_yet_stays(stage: Stage) -> None:
    app = stage.process()

    @app.flow(key="order:{order}", name="sync")
    def sync(order: int, text: str) -> int:
        return len(text)

    handle = sync.start(1, "y" * 300_000)
    for _ in range(2):
        stage.clock.advance(31 * DAY)
        assert block(sweep(app.store)).total == 0
    app.worker().run(until_idle=True)
    assert handle.result() == 300_000
    stage.clock.advance(31 * DAY)
    block(sweep(app.store))
    assert everything(stage) == []


def test_evidence_stays_as_long_as_its_run_waits_for_a_person(stage: Stage) -> None:
    app = stage.process()
    stage.effects["lost"] = 1
    with pytest.raises(NeedsReview):
        declare(stage, app)(1)
    seen = Evidence("late", 1, step="pay")
    app.store.write(evidence_write(PLACE.space, seen)).block()
    stage.clock.advance(400 * DAY)
    block(sweep(app.store))
    assert len(app.history("sync/order:1").evidence) == 1
    app.settle_run("sync/order:1", "abandon", by="ann")
    stage.clock.advance(31 * DAY)
    block(sweep(app.store))
    assert "evidence" not in {at.kind for at in everything(stage)}


def test_a_run_that_is_taken_again_meanwhile_keeps_what_it_has(stage: Stage) -> None:
    """The sweep found it due; before its first write lands, somebody begins the expired key anew."""
    app = stage.process()
    declare(stage, app, keep="1d")(1)
    stage.clock.advance(DAY)
    write_each = app.store.write_each

    def begun_and_then_written(batches: Any) -> Any:
        app.store.write_each = write_each  # type: ignore[method-assign]
        stage.clock.advance(60)  # past the time for which it is hidden, so that a call finds it expired
        declare(stage, stage.process(), keep="1d")(1)
        return write_each(batches)

    app.store.write_each = begun_and_then_written  # type: ignore[method-assign]
    assert block(sweep(app.store)).total == 0
    assert app.history("sync/order:1").run.state == "done"
    assert len(app.history("sync/order:1").steps) == 4


def test_a_run_begun_anew_does_not_see_what_came_for_the_one_before(stage: Stage) -> None:
    app = stage.process()
    sync = declare(stage, app, keep="1d")
    sync(1)
    add_piece(app, "arrival")
    stage.clock.advance(DAY)
    sync(1)
    assert stage.effects["pay"] == 2
    assert [at.kind for at in everything(stage)].count("arrival") == 0


def test_a_released_run_takes_its_history_along(stage: Stage) -> None:
    app = stage.process()
    declare(stage, app)(1)
    assert block(app.claims.free(PLACE))
    assert everything(stage) == []


# -- what points to a run --------------------------------------------------------------------------


def pointers(stage: Stage) -> int:
    return len(stage.engine.scan("external", None, None, None, 1_000).records)


def test_a_pointer_is_kept_while_its_run_is_and_goes_after_it(stage: Stage) -> None:
    app = stage.process()
    declare(stage, app, keep="90d")(1)
    assert pointers(stage) == 3
    stage.clock.advance(31 * DAY)
    assert block(sweep(app.store)).total == 0  # looked at, and kept
    assert len(app.ids("line:1")) == 1
    stage.clock.advance(59 * DAY)
    assert block(sweep(app.store)).forgotten == 1
    stage.clock.advance(61)
    block(sweep(app.store))
    assert (pointers(stage), app.ids("line:1")) == (0, [])


def test_a_pointer_to_a_tombstone_goes(stage: Stage) -> None:
    app = stage.process()
    declare(stage, app, keep="forever", keep_history="1d")(1)
    stage.clock.advance(DAY)
    block(sweep(app.store))
    stage.clock.advance(30 * DAY)
    block(sweep(app.store))
    assert pointers(stage) == 0


def test_a_pointer_to_a_run_that_never_ends_stays(stage: Stage) -> None:
    app = stage.process()
    stage.do("lost")
    with pytest.raises(NeedsReview):
        declare(stage, app)(1)
    for _ in range(5):
        stage.clock.advance(31 * DAY)
        block(sweep(app.store))
    assert pointers(stage) == 3


def test_a_callback_that_leads_nowhere_goes_too(stage: Stage) -> None:
    app = stage.process()
    app.runtime.url = "https://hooks.example.com"

    @app.flow(key="k", name="pay", keep="1d")
    def pay() -> str:
        return str(app.callback_url("paid"))

    pay()
    stage.clock.advance(40 * DAY)
    for _ in range(2):
        block(sweep(app.store))
        stage.clock.advance(61)
    assert list(app.store.scan("callback").block().records) == []


def test_what_is_swept_is_what_was_due(stage: Stage) -> None:
    """A claim that was written since is not: its version is another."""
    app = stage.process()
    declare(stage, app, keep="1d")(1)
    stage.clock.advance(DAY)
    due = app.store.due

    def due_and_then_written(kind: str, **how: Any) -> Any:
        found = due(kind, **how)
        answer = found.block()
        if kind == "run":
            record = stage.record("sync", "order:1")
            again = Replace(PLACE, None, "done", version=record.version, queue=record.queue, due_in=DAY)
            assert isinstance(app.store.write(again).block(), Written)
        return type(found)(found._thread, lambda: answer)

    app.store.due = due_and_then_written  # type: ignore[method-assign]
    assert block(sweep(app.store)).total == 0
    assert len(everything(stage)) == 6
