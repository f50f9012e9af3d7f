"""Guarded functions and flows inside a flow: steps of it, which guard themselves."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from twiceproof import App, NeedsReview, StepFailed, Waiting
from twiceproof.claims.claim import claim_of
from twiceproof.drive import block

from .stage import Died, Stage
from .test_flow_ends import resume
from .test_triggers import look


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


def test_a_flow_waits_for_the_flow_it_called_and_goes_on_when_that_has_ended(stage: Stage) -> None:
    app = stage.process()
    sync = shop(stage, app, sleep=True)
    with pytest.raises(Waiting, match="waits for the run of ship"):
        sync(1)
    assert stage.record("sync", "order:1").state == "waiting"
    stage.clock.advance(86_401)
    for flow in (app.flows["ship"], app.flows["sync"]):
        for record in app.store.due("claim", queues=flow.queues).block().records:
            block(flow.resume(record))
    assert stage.record("ship", "parcel:1").state == "done"
    assert sync(1) == ["sent", "parcel 1"]
    assert stage.effects == {"mail": 1, "pack": 1}
    assert resume


def test_the_end_of_the_inner_run_wakes_the_outer_one(stage: Stage) -> None:
    app = stage.process()
    sync = shop(stage, app, sleep=True)
    with pytest.raises(Waiting):
        sync(1)
    stage.clock.advance(86_401)
    ship = app.flows["ship"]
    (record,) = app.store.due("claim", queues=ship.queues).block().records
    outer = stage.record("sync", "order:1")
    block(ship.resume(record))
    assert stage.record("sync", "order:1").due_at != outer.due_at
    assert len(app.store.due("claim", queues=app.flows["sync"].queues).block().records) == 1


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
) -> None:  # fmt: skip
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
