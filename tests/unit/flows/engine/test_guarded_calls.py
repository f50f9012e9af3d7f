"""Guarded functions and flows inside a flow: steps of it, which guard themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context
from typing import Any

import pytest

from tests.unit.flows.stage import Died, Stage
from tests.unit.flows.test_triggers import look
from twiceproof import App, NeedsReview, NotDone, Retry, StepFailed, Waiting
from twiceproof.claims.claim import claim_of
from twiceproof.flows.workers.due_work import resume_run
from twiceproof.operations import block


def shop(stage: Stage, app: App, *, sleep: bool = False) -> Any:
    @app.once(key="mail:{order}")
    def mail(order: int) -> str:
        stage.do("mail")
        return "sent"

    @app.step(repeat="safe")
    def pack(order: int) -> None:
        stage.do("pack")

    @app.flow(key="parcel:{order}")
    def ship(order: int) -> str:
        pack(order)
        if sleep:
            app.sleep("1d")
        return f"parcel {order}"

    @app.flow(key="order:{order}")
    def sync(order: int) -> list[str]:
        return [mail(order), ship(order)]

    return sync


def test_a_guarded_function_and_a_flow_are_steps_of_the_flow_that_calls_them(stage: Stage) -> None:
    assert shop(stage, stage.process())(1) == ["sent", "parcel 1"]
    assert list(stage.entries("sync", "order:1")) == ["mail[mail:1]", "ship[parcel:1]"]
    assert list(stage.entries("ship", "parcel:1")) == ["pack"]
    assert stage.record("mail", "mail:1").state == "done"


@pytest.mark.parametrize("landed", [False, True])
@pytest.mark.parametrize("commit", range(1, 9))
def test_killed_anywhere_nothing_is_done_twice(stage: Stage, commit: int, landed: bool) -> None:
    with pytest.raises(Died):
        shop(stage, stage.process(commit, landed=landed))(1)
        raise Died
    stage.lapse()
    try:
        assert shop(stage, stage.process())(1) == ["sent", "parcel 1"]
    except NeedsReview as error:
        assert "mail[mail:1]: what it called waits for a person" in str(error)  # its holder died at work
        assert stage.record("mail", "mail:1").state == "review"
    assert stage.effects["mail"] <= 1
    assert stage.effects["pack"] <= 2  # it is safe


@pytest.mark.parametrize("fails", [0, 1])
def test_waiting_for_another_flow_takes_none_of_a_steps_own_time(stage: Stage, fails: int) -> None:
    app = stage.process()

    @app.flow(key="parcel:{order}")
    def ship(order: int) -> str:
        app.sleep("1d")
        return f"parcel {order}"

    @app.step(repeat="safe", retry=Retry(attempts=3, first="1m", within="2h"))
    def sent(order: int) -> str:
        stage.do("asked")
        if stage.effects["asked"] <= fails:
            raise NotDone("not now")
        return ship(order)

    @app.flow(key="order:{order}")
    def sync(order: int) -> str:
        return sent(order)

    for seconds in (0, 61, 3 * 3_600, 86_400):
        stage.clock.advance(seconds)
        with suppress(Waiting):
            sync(1)
        if seconds == 86_400:
            ship(1)
            sync(1)
    assert sync(1) == "parcel 1"


def test_a_flow_waits_for_the_flow_it_called_and_goes_on_when_that_has_ended(stage: Stage) -> None:
    app = stage.process()
    sync = shop(stage, app, sleep=True)
    with pytest.raises(Waiting, match="waits for the run of ship"):
        sync(1)
    assert stage.record("sync", "order:1").state == "waiting"
    stage.clock.advance(86_401)
    for flow in (app.flows["ship"], app.flows["sync"]):
        for record in app.store.due("run", queues=flow.queues).block().records:
            block(resume_run(flow, record))
    assert stage.record("ship", "parcel:1").state == "done"
    assert sync(1) == ["sent", "parcel 1"]
    assert stage.effects == {"mail": 1, "pack": 1}


def test_the_end_of_the_inner_run_wakes_the_outer_one(stage: Stage) -> None:
    app = stage.process()
    sync = shop(stage, app, sleep=True)
    with pytest.raises(Waiting):
        sync(1)
    stage.clock.advance(86_401)
    ship = app.flows["ship"]
    (record,) = app.store.due("run", queues=ship.queues).block().records
    outer = stage.record("sync", "order:1")
    block(resume_run(ship, record))
    assert stage.record("sync", "order:1").due_at != outer.due_at
    assert len(app.store.due("run", queues=app.flows["sync"].queues).block().records) == 1


def in_review(stage: Stage, app: App) -> None:
    """A flow that waits for a person because the one that it called does."""

    @app.step(repeat="never")
    def charge(order: int) -> None:
        raise TimeoutError

    @app.flow(key="payment:{order}")
    def pay(order: int) -> None:
        charge(order)

    @app.flow(key="order:{order}")
    def sync(order: int) -> str:
        try:
            pay(order)
        except StepFailed as error:
            return error.data["fault"].type
        return "paid"

    with pytest.raises(NeedsReview, match="what it called waits for a person"):
        sync(1)
    assert stage.record("pay", "payment:1").state == stage.record("sync", "order:1").state == "review"


@pytest.mark.parametrize(
    ("verdict", "result"), [("abandon", b'"PriorFailure"'), ("happened", b'"paid"')], ids=["abandon", "happened"]
)
def test_what_a_person_says_about_the_inner_run_moves_the_outer_one_too(
    stage: Stage, verdict: Any, result: bytes
) -> None:
    app = stage.process()
    in_review(stage, app)
    app.settle_run("pay/payment:1", verdict, by="ann", result=None)
    while look(app):  # the inner one first
        pass
    outer = stage.record("sync", "order:1")
    assert (outer.state, bytes(claim_of(outer).result)) == ("done", result)


def test_the_outer_run_says_what_it_is_in_review_for(stage: Stage) -> None:
    app = stage.process()
    in_review(stage, app)
    assert "Once what it called is settled, go on:" in [move.why for move in app.history("sync/order:1").next]


# -- what happens as the outer run lies down -----------------------------------------------------


def as_it_lies_down(app: App, state: str, meanwhile: Callable[[], object]) -> None:
    """`meanwhile`: between the outer run's last look at the inner one and its own lying down."""
    engine: Any = app.engine  # type: ignore[attr-defined]
    commit = engine.commit

    def late(batches: Any) -> Any:
        writes = [write for batch in batches for write in batch.writes]
        if any(write.at.space == "default/sync/order:1" and getattr(write, "state", "") == state for write in writes):
            engine.commit = commit
            Context().run(meanwhile)
        return commit(batches)

    engine.commit = late


def is_due(stage: Stage) -> bool:
    outer = stage.record("sync", "order:1")
    return outer.due_at is not None and outer.due_at <= stage.clock.now()


@pytest.mark.parametrize("alone", [True, False], ids=["alone", "beside a timer"])
def test_an_inner_run_that_ends_as_the_outer_one_lies_down_wakes_it_all_the_same(stage: Stage, alone: bool) -> None:
    app, other = stage.process(), stage.process()

    def parcels(app: App) -> Any:
        @app.flow(key="parcel:{order}")
        def ship(order: int) -> str:
            return str(app.wait_for("label"))

        return ship

    ship, elsewhere = parcels(app), parcels(other)

    @app.flow(key="order:{order}", name="sync")
    def sync(order: int) -> Any:
        return ship(order) if alone else app.gather(lambda: ship(order), lambda: app.sleep("1m"))[0]

    def inner_ends() -> None:
        other.deliver_to(flow="ship", key="parcel:1", name="label", payload="L1")
        assert elsewhere(1) == "L1"

    as_it_lies_down(app, "waiting", inner_ends)
    with pytest.raises(Waiting):
        sync(1)
    assert is_due(stage)
    if alone:
        assert sync(1) == "L1"


def test_an_inner_run_that_goes_on_as_the_outer_one_lies_down_is_waited_for(stage: Stage) -> None:
    """The twin: it has not ended, and the outer one does not come round for nothing."""
    app, other = stage.process(), stage.process()
    sync = shop(stage, app, sleep=True)
    shop(stage, other, sleep=True)

    as_it_lies_down(app, "waiting", lambda: other.store.read(stage.record("ship", "parcel:1").at).block())
    with pytest.raises(Waiting, match="waits for the run of ship"):
        sync(1)
    assert not is_due(stage)


@pytest.mark.parametrize("verdict", ["abandon", "happened"])
def test_what_a_person_says_as_the_outer_run_goes_to_review_moves_it_all_the_same(stage: Stage, verdict: Any) -> None:
    app, other = stage.process(), stage.process()

    def payments(app: App) -> Any:
        @app.step(repeat="never")
        def charge(order: int) -> None:
            raise TimeoutError

        @app.flow(key="payment:{order}")
        def pay(order: int) -> None:
            charge(order)

        return pay

    pay, _ = payments(app), payments(other)

    @app.flow(key="order:{order}", name="sync")
    def sync(order: int) -> str:
        try:
            pay(order)
        except StepFailed as error:
            return str(error.data["fault"].type)
        return "paid"

    def settled() -> None:
        other.settle_run("pay/payment:1", verdict, by="ann", result=None)
        look(other)

    as_it_lies_down(app, "review", settled)
    with pytest.raises(Waiting):
        sync(1)
    assert is_due(stage)
    assert sync(1) == {"abandon": "PriorFailure", "happened": "paid"}[verdict]


def test_a_wait_for_what_a_run_that_has_ended_says_does_not_go_round_and_round(stage: Stage) -> None:
    """Of what it waits for, nothing is seen in the state of that run."""
    app = stage.process()

    @app.step(repeat="safe")
    def ask(order: int) -> None:
        raise Waiting("not yet", run=app.attach(flow="mailing", key="mail:1").id, until=None)

    @app.flow(key="mail:{order}")
    def mailing(order: int) -> None: ...

    @app.flow(key="order:{order}", name="sync")
    def sync(order: int) -> None:
        ask(order)

    mailing(1)
    with pytest.raises(Waiting):
        sync(1)
    assert not is_due(stage)


def test_an_inner_run_whose_input_cannot_be_read_wakes_the_outer_one(stage: Stage) -> None:
    app, newer = stage.process(), stage.process()

    @app.flow(key="parcel:{order}", name="ship")
    def old_ship(order: int) -> None:
        app.wait_for("label")

    @app.flow(key="order:{order}", name="sync")
    def sync(order: int) -> None:
        old_ship(order)

    @newer.flow(key="parcel:{order}")
    def ship(order: list[str]) -> None: ...

    with pytest.raises(Waiting):
        sync(1)
    app.deliver_to(flow="ship", key="parcel:1", name="label")
    assert not is_due(stage)
    assert look(newer) == 1
    assert stage.record("ship", "parcel:1").state == "review"
    assert is_due(stage)


def test_waiting_for_an_inner_run_is_no_attempt_also_after_a_crash(stage: Stage) -> None:
    """It was counted as one each time the outer run looked, and a person asked after so many."""

    def parcels(app: App, *, dies: bool = False) -> Any:
        @app.flow(key="parcel:{order}")
        def ship(order: int) -> Any:
            return app.wait_for("label")

        @app.step(repeat="safe", retry=Retry(attempts=2))
        def ask(order: int) -> Any:
            if dies:
                app.engine.dead = True  # type: ignore[attr-defined]
            return ship(order)

        @app.flow(key="order:{order}", name="sync")
        def sync(order: int) -> Any:
            return ask(order)

        return sync

    with pytest.raises(Died):
        parcels(stage.process(), dies=True)(1)
    stage.lapse()
    app = stage.process()
    sync = parcels(app)
    for _ in range(3):
        assert look(app) == 1
        stage.clock.advance(301)
    app.deliver_to(flow="ship", key="parcel:1", name="label", payload="L1")
    while look(app):
        pass
    assert sync(1) == "L1"


def test_an_inner_run_that_is_cancelled_before_it_began_wakes_the_outer_one(stage: Stage) -> None:
    app = stage.process()

    @app.flow(key="folder:{level}", name="sync", limit=1)
    def sync(level: int) -> int:
        return 1 + sync(level - 1) if level else 0

    with pytest.raises(Waiting):
        sync(1)
    assert app.attach(flow="sync", key="folder:0").cancel("ann") == "failed"
    outer = stage.record("sync", "folder:1")
    assert outer.due_at is not None
    assert outer.due_at <= stage.clock.now()


def test_awaited_ones_too(stage: Stage) -> None:
    app = stage.process()

    @app.once(key="mail:{order}")
    async def mail(order: int) -> str:
        stage.do("mail")
        return "sent"

    @app.flow(key="parcel:{order}")
    async def ship(order: int) -> str:
        return "parcel"

    @app.flow(key="order:{order}")
    async def sync(order: int) -> list[str]:
        return [await mail(order), await ship(order)]

    assert asyncio.run(sync(1)) == ["sent", "parcel"]
    assert list(stage.entries("sync", "order:1")) == ["mail[mail:1]", "ship[parcel:1]"]
