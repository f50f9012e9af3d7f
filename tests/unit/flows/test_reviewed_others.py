"""Runs beside others: those they call, those of other tenants, and polls that overtake each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.flows.stage import Died, Stage
from tests.unit.flows.waits import work
from twiceproof import App, Misuse, NeedsReview, NoSuchWait, NotDone, Polled, Resource, Waiting
from twiceproof.claims.claim import run_id
from twiceproof.flows.workers.due_work import resume_run
from twiceproof.operations import block
from twiceproof.records import Remove
from twiceproof.stores.grouped import GroupedStore

# -- what a run calls ----------------------------------------------------------------------------


def calling(stage: Stage, app: App, error: Exception) -> Any:
    @app.once(key="mail:{order}")
    def mail(order: int) -> str:
        stage.do("mail")
        if stage.effects["mail"] == 1:
            raise error
        return "sent"

    @app.flow(key="order:{order}", name="sync")
    def sync(order: int) -> str:
        return mail(order)

    return sync


def test_what_has_failed_for_good_is_not_asked_again_and_again(stage: Stage) -> None:
    with pytest.raises(NotDone, match="no"):
        calling(stage, stage.process(), NotDone("no", final=True))(1)
    assert stage.record("sync", "order:1").state == "failed"
    assert stage.effects["mail"] == 1


def test_what_may_be_tried_again_is(stage: Stage) -> None:
    assert calling(stage, stage.process(), NotDone("not now"))(1) == "sent"
    assert stage.effects["mail"] == 2


def test_what_a_person_settled_also_brings_on_the_run_that_had_called_it(stage: Stage) -> None:
    app = stage.process()

    @app.step(repeat="never")
    def pay(order: int) -> str:
        raise TimeoutError

    @app.flow(key="parcel:{order}")
    def ship(order: int) -> str:
        return pay(order)

    @app.flow(key="order:{order}", name="sync")
    def sync(order: int) -> str:
        return ship(order)

    with pytest.raises(NeedsReview, match="what it called waits for a person"):
        sync(1)
    app.settle_run(app.attach(flow="ship", key="parcel:1").id, "happened", result="paid", by="ann")
    for name in ("ship", "sync"):
        for record in app.store.due("run", queues=app.flows[name].queues, hide=0.0).block().records:
            block(resume_run(app.flows[name], record))
    assert sync(1) == "paid"


def test_a_run_whose_input_is_gone_does_not_go_by_its_defaults(stage: Stage) -> None:
    app = stage.process()

    @app.flow(key="order:{order}", name="sync")
    def sync(order: int = 1, text: str = "") -> None:
        stage.do("sync")

    sync.start(1, "y" * 400_000)
    (large,) = stage.engine.scan("resource", None, None, None, 10).records
    app.store.write(Remove(large.at, version=large.version)).block()
    work(app)
    assert stage.record("sync", "order:1").state == "failed"
    assert not stage.effects


# -- tenants -------------------------------------------------------------------------------------


def of_tenant(stage: Stage, tenant: str) -> App:
    app = App(GroupedStore(stage.engine, clock=stage.clock), clock=stage.clock, tenant=tenant)
    stage.apps.append(app)
    return app


def asks(app: App) -> Any:
    @app.flow(key="order:{order}", name="sync")
    def sync(order: int) -> str:
        app.approve("pay", show="secret")
        return "secret"

    return sync


LOOKS: list[Callable[[App, str], Any]] = [
    lambda app, run: app.attach(run).state,
    lambda app, run: app.history(run),
    lambda app, run: app.settle_run(run, "abandon", by="eve"),
    lambda app, run: app.progress(run),
    lambda app, run: app.compensate_duplicate(undoable(app), result=1, by="eve", run=run, good_too=True),
    lambda app, run: Resource(f"res://{run_id('ours/sync/order:1')}/1", 1, "").read(app),
]


def undoable(app: App) -> Any:
    def unbill(result: int) -> None:
        raise AssertionError("undone for another tenant")

    @app.step(repeat="safe", undo=unbill)
    def bill() -> int:
        return 1

    return bill


@pytest.mark.parametrize("look", LOOKS)
def test_the_id_of_a_run_leads_no_other_tenant_to_it(stage: Stage, look: Callable[[App, str], Any]) -> None:
    ours, theirs = of_tenant(stage, "ours"), of_tenant(stage, "theirs")
    with pytest.raises(Waiting):
        asks(ours)(1)
    with pytest.raises(Misuse, match="no such run here"):
        look(theirs, ours.attach(flow="sync", key="order:1").id)


def test_the_id_of_an_approval_lets_no_other_tenant_decide(stage: Stage) -> None:
    ours, theirs = of_tenant(stage, "ours"), of_tenant(stage, "theirs")
    with pytest.raises(Waiting):
        asks(ours)(1)
    (approval,) = ours.approvals()
    with pytest.raises(NoSuchWait):
        theirs.decide(approval.id, True, by="eve")
    assert ours.decide(approval.id, True, by="ann").first


def test_an_own_run_is_found_by_its_id(stage: Stage) -> None:
    ours = of_tenant(stage, "ours")
    with pytest.raises(Waiting):
        asks(ours)(1)
    run = ours.attach(flow="sync", key="order:1").id
    assert ours.attach(run).state == ours.history(run).run.state == "waiting"


# -- polls ---------------------------------------------------------------------------------------


def polling(app: App, source: Callable[[Any], Any]) -> None:
    @app.flow(key="item:{item}")
    def take(item: int) -> None: ...

    app.poll(every="1m", start=take, name="source")(source)
    block(app.polls.prepare())


def poll(app: App) -> None:
    for record in app.store.due("poll", queues=app.polls.queues(), hide=0.0).block().records:
        block(app.polls.carry_out(record))


def test_a_poll_that_was_overtaken_moves_the_cursor_all_the_same(stage: Stage) -> None:
    slow, dying = stage.process(), stage.process()
    seen = []

    def source(since: Any) -> Polled:
        seen.append(since)
        if len(seen) == 1:
            stage.clock.advance(301)  # so long that another worker comes, which is killed at it
            dying.engine.at = dying.engine.commits + 2  # type: ignore[attr-defined]
            with pytest.raises(Died):
                poll(dying)
        return Polled([1], cursor="page 2")

    polling(slow, source)
    polling(dying, lambda since: Polled([1], cursor="never written"))
    poll(slow)
    stage.clock.advance(301)
    poll(slow)
    assert seen == [None, "page 2"]
