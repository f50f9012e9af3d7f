"""Runs that were: looked at, tried again, forked; and the ids that the outside gave, both ways."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.unit.flows.stage import Died, Stage
from twiceproof import (
    App,
    Cancelled,
    Misuse,
    NeedsReview,
    NotDone,
    PriorFailure,
    Rejected,
    Retry,
    Waiting,
    WaitTimedOut,
)
from twiceproof.claims import lists as listing
from twiceproof.claims.claim import address_of
from twiceproof.flows.history.fork import plan_fork
from twiceproof.flows.workers.due_work import resume_run
from twiceproof.operations import block
from twiceproof.records import Remove

ONCE = Retry(attempts=1)
DAY = 86_400.0


class Office:
    """Books, bills and posts. Billing fails while it is closed."""

    def __init__(
        self, stage: Stage, app: App, *, undo: bool = False, large: bool = False, first: str = "book", **flow: Any
    ) -> None:
        self.stage, self.app = stage, app
        self.closed = False

        @app.step
        def unbook(order: int) -> None:
            stage.do("unbook")

        @app.step(repeat="safe", undo=unbook if undo else None, name=first)
        def book(order: int) -> str:
            stage.do("book")
            return "x" * 100_000 if large else "booked"

        @app.step(retry=ONCE, external="invoice:{result[id]}")
        def bill(order: int) -> dict[str, str]:
            stage.do("bill")
            if self.closed:
                raise NotDone("closed")
            return {"id": f"inv_{stage.effects['bill']}"}

        @app.step(repeat="safe")
        def post(order: int) -> str:
            stage.do("post")
            return "posted"

        @app.flow(key="order:{order}", name="office", **flow)
        def office(order: int) -> str:
            book(order)
            invoice = bill(order)
            post(order)
            return invoice["id"]

        self.flow = office

    def fail(self, order: int = 1) -> None:
        self.closed = True
        with pytest.raises(NotDone):
            self.flow(order)
        self.closed = False


@pytest.fixture
def office(stage: Stage) -> Office:
    return Office(stage, stage.process())


# -- looking ---------------------------------------------------------------------------------------


def test_the_ledger_is_shown_in_the_order_in_which_it_came_about(office: Office) -> None:
    office.flow(1)
    whole = office.app.history("office/order:1")
    assert [step.name for step in whole.steps] == ["book", "bill", "post"]
    assert whole.run.run == office.app.attach(flow="office", key="order:1").id
    assert bytes(whole.result or b"") == b'"inv_1"'


def test_the_time_that_a_step_took_is_known_where_its_start_was_written_down(stage: Stage) -> None:
    app = stage.process()

    @app.step
    def slow() -> None:
        stage.clock.advance(7)

    @app.flow(key="k", name="slowly")
    def slowly() -> None:
        slow()

    slowly()
    (step,) = app.history("slowly/k").steps
    assert step.took == pytest.approx(7)


def test_runs_are_found_however_their_key_is_typed(stage: Stage) -> None:
    app = stage.process()

    @app.flow(key="{name}")
    def greet(name: str) -> None: ...

    greet("Caf\u00e9 Noir")
    assert len(app.runs(key="Cafe\u0301 Noir")) == len(app.runs(prefix="Cafe\u0301")) == 1


def test_runs_are_listed_by_state_key_and_time(office: Office) -> None:
    office.flow(1)
    office.stage.clock.advance(100)
    office.fail(2)
    now = office.stage.clock.wall
    assert [run.key for run in office.app.runs()] == ["order:2", "order:1"]
    assert [run.key for run in office.app.runs(state="done")] == ["order:1"]
    assert [run.key for run in office.app.runs(since=now)] == ["order:2"]
    assert [run.key for run in office.app.runs(until=now)] == ["order:1"]
    assert [run.key for run in office.app.runs(prefix="order:", key="order:1", flow="office")] == ["order:1"]


def test_more_runs_may_be_asked_for_than_a_store_hands_over_at_a_time(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        office.flow(number)
    assert len(office.app.runs(limit=50_000)) == 5
    monkeypatch.setattr(listing, "MOST_READ", 2)
    assert (len(office.app.runs(limit=4)), len(office.app.runs(limit=50_000))) == (4, 5)


# -- trying again ----------------------------------------------------------------------------------


def test_what_failed_is_tried_again_and_what_is_done_stays_done(office: Office) -> None:
    office.fail()
    assert office.app.retry_run("office/order:1") == "queued"
    assert office.flow(1) == "inv_2"
    assert office.stage.effects == {"book": 1, "bill": 2, "post": 1}


def test_a_retry_that_fails_again_is_failed_again(office: Office) -> None:
    office.fail()
    office.app.retry_run("office/order:1")
    office.fail()
    with pytest.raises(PriorFailure):
        office.flow(1)


def test_a_run_that_was_undone_is_not_tried_again(stage: Stage) -> None:
    office = Office(stage, stage.process(), undo=True)
    office.fail()
    with pytest.raises(Misuse, match=r"undone.*runs fork"):
        office.app.retry_run("office/order:1")


def test_a_run_that_was_cancelled_is_not_tried_again_and_stays_cancelled(office: Office) -> None:
    office.flow.start(1).cancel(by="ann")
    with pytest.raises(Misuse, match=r"cancelled by ann.*runs fork"):
        office.app.retry_run("office/order:1")
    with pytest.raises(Misuse, match=r"cancelled by ann.*runs fork"):
        office.flow.retry(1)
    whole = office.app.history("office/order:1")
    assert (whole.run.state, whole.undoing) == ("failed", "cancelled")
    assert whole.fault is not None and whole.fault["type"] == "Cancelled"
    (move,) = whole.next
    assert move.words[:2] == ("runs", "fork")


def test_a_run_that_was_cancelled_can_be_done_under_another_key(office: Office) -> None:
    office.flow.start(1).cancel(by="ann")
    forked = office.app.fork_run("office/order:1", key="order:1b")
    resume(office)
    assert office.app.attach(forked.run).result() == "inv_1"


def test_a_cancelled_run_that_is_in_review_is_settled_and_not_tried_again(stage: Stage) -> None:
    app = stage.process()

    @app.step(repeat="never")
    def charge(order: int) -> None:
        app.attach(flow="pay", key="order:1").cancel(by="ann")
        raise TimeoutError

    @app.flow(key="order:{order}", name="pay")
    def pay(order: int) -> None:
        charge(order)

    with pytest.raises(NeedsReview):
        pay(1)
    assert not any(move.words[:2] == ("runs", "retry") for move in app.history("pay/order:1").next)
    with pytest.raises(Misuse, match=r"cancelled by ann.*review settle"):
        app.retry_run("pay/order:1")
    app.settle_run("pay/order:1", "did-not-happen", by="eve")
    with pytest.raises(Cancelled):
        pay(1)


def test_a_run_that_goes_on_by_itself_is_not_tried_again(office: Office) -> None:
    office.flow.start(1)
    with pytest.raises(Misuse, match="is queued"):
        office.app.retry_run("office/order:1")


# -- forking ---------------------------------------------------------------------------------------


def test_a_fork_does_everything_anew_with_effect_keys_of_its_own(office: Office) -> None:
    office.flow(1)
    forked = office.app.fork_run("office/order:1", key="order:1b")
    assert (forked.kept, forked.again) == ((), ("book", "bill", "post"))
    resume(office)
    assert office.app.attach(forked.run).result() == "inv_2"
    assert office.stage.effects == {"book": 2, "bill": 2, "post": 2}
    assert office.app.history(forked.run).forked_from == office.app.attach(flow="office", key="order:1").id


def resume(office: Office) -> None:
    flow = office.app.flows["office"]
    for record in office.app.store.due("run", queues=flow.queues).block().records:
        block(resume_run(flow, record))


def test_a_fork_from_a_step_keeps_what_came_before_it(stage: Stage) -> None:
    office = Office(stage, stage.process(), large=True)  # a result that lies beside its entry is taken along
    office.flow(1)
    forked = office.app.fork_run("office/order:1", key="order:1b", from_step="bill")
    assert (forked.kept, forked.again) == (("book",), ("bill", "post"))
    resume(office)
    assert office.app.attach(forked.run).result() == "inv_2"
    assert stage.effects == {"book": 1, "bill": 2, "post": 2}


def test_what_a_fork_takes_as_done_did_not_take_until_it_was_forked(office: Office, stage: Stage) -> None:
    office.flow(1)
    stage.clock.advance(3_600)
    forked = office.app.fork_run("office/order:1", key="order:1b", from_step="post")
    took = {step.name: step.took for step in office.app.history(forked.run).steps}
    assert took == {"book": None, "bill": None}


def test_a_fork_from_the_step_that_failed_tries_it_under_the_new_key(office: Office) -> None:
    office.fail()
    forked = office.app.fork_run("office/order:1", key="order:1b", from_step="bill")
    assert forked.kept == ("book",)
    resume(office)
    assert office.app.attach(forked.run).result() == "inv_2"


def test_a_fork_keeps_what_was_done_at_the_third_try(stage: Stage) -> None:
    """The step it begins with has not ended, and more ends than there are steps lie before it."""
    app, closed = stage.process(), [NotDone("closed")] * 3

    @app.step(repeat="safe", retry=ONCE)
    def bill(order: int) -> None:
        if closed:
            raise closed.pop()
        stage.do("bill")

    @app.step(repeat="safe", retry=Retry(first="1h", most="1h"))
    def post(order: int) -> None:
        raise NotDone("closed")

    @app.flow(key="order:{order}", name="office")
    def office(order: int) -> None:
        bill(order)
        post(order)

    for call in (office, office.retry, office.retry):
        with pytest.raises(NotDone):
            call(1)
    with pytest.raises(Waiting):
        office.retry(1)
    app.attach(flow="office", key="order:1").cancel(by="ann")
    with pytest.raises(Cancelled):
        office(1)
    forked = app.fork_run("office/order:1", key="order:1b", from_step="post")
    assert (forked.kept, forked.again) == (("bill",), ("post",))


def test_a_fork_cannot_keep_what_was_undone(stage: Stage) -> None:
    office = Office(stage, stage.process(), undo=True)
    office.fail()
    with pytest.raises(Misuse, match="was undone"):
        office.app.fork_run("office/order:1", key="order:1b", from_step="bill")
    assert office.app.fork_run("office/order:1", key="order:1b").again == ("book", "bill")


def test_a_fork_needs_a_key_of_its_own_a_step_that_is_there_and_a_run_that_has_ended(office: Office) -> None:
    office.flow(1)
    office.flow.start(2)
    with pytest.raises(Misuse, match="there already"):
        office.app.fork_run("office/order:1", key="order:2")
    with pytest.raises(Misuse, match="not in this run's ledger; there are: book, bill, post"):
        office.app.fork_run("office/order:1", key="order:3", from_step="nobody")
    with pytest.raises(Misuse, match="This run is queued"):
        office.app.fork_run("office/order:2", key="order:3")


def test_a_fork_does_not_wait_at_the_first_runs_url(stage: Stage) -> None:
    app = stage.process()
    app.runtime.url = "https://hooks.example.com"
    told: list[str] = []

    @app.step(repeat="safe")
    def tell(url: str) -> None:
        told.append(url)

    @app.flow(key="{k}", name="pay")
    def pay(k: str) -> str:
        tell(app.callback_url("paid"))
        return str(app.wait_for("paid", timeout="1d", default="late"))

    with pytest.raises(Waiting):
        pay("1")
    stage.clock.advance(DAY + 1)
    assert pay("1") == "late"
    with pytest.raises(Misuse, match="--from callback:paid"):
        app.fork_run("pay/1", key="2", from_step="tell")
    app.fork_run("pay/1", key="2", from_step="callback:paid")
    for record in app.store.due("run", queues=app.flows["pay"].queues).block().records:
        block(resume_run(app.flows["pay"], record))
    assert app.attach(flow="pay", key="2").state == "waiting"
    assert len(set(told)) == 2


def test_a_plan_of_a_fork_writes_nothing(office: Office) -> None:
    office.flow(1)
    at = address_of("default", "office", "order:1", "run")
    assert block(plan_fork(office.app.store, at, "order:3", "post")).again == ("post",)
    with pytest.raises(Misuse, match="no such run"):
        office.app.history("office/order:3")


def test_what_was_abandoned_in_doubt_comes_back_to_review_when_it_is_tried_again(stage: Stage) -> None:
    app = stage.process()

    @app.step
    def charge() -> None:
        stage.do("charge")
        raise TimeoutError("no answer")

    @app.flow(key="order:{n}")
    def pay(n: int) -> None:
        charge()

    with pytest.raises(NeedsReview):
        pay(1)
    app.settle_run("pay/order:1", "abandon", by="ann")
    assert app.retry_run("pay/order:1") == "queued"
    with pytest.raises(NeedsReview, match="charge: no answer came"):
        pay(1)
    assert stage.effects == {"charge": 1}


def test_what_came_too_late_or_was_rejected_is_asked_for_anew_or_caught_first(stage: Stage) -> None:
    """Both are answers that stay: a retry of the same code fails the same way."""
    app = stage.process()

    @app.flow(key="wait:{n}")
    def wait(n: int) -> Any:
        return app.wait_for("paid", timeout="1h")

    @app.flow(key="ask:{n}")
    def ask(n: int) -> Any:
        return app.approve("pay", show=n, timeout="1h")

    for flow in (wait, ask):
        with pytest.raises(Waiting):
            flow(1)
    (approval,) = app.approvals()
    app.decide(approval.id, False, by="ann")
    stage.clock.advance(4_000)
    for flow, error in ((wait, WaitTimedOut), (ask, Rejected)):
        with pytest.raises(error):
            flow(1)
        name = f"{flow.__name__}/{flow.__name__}:1"
        anew, again = app.history(name).next
        assert anew.words == ("runs", "fork", name, "--key", "KEY")
        assert (f"Once the flow catches {error.__name__}" in again.why, again.words) == (True, ("runs", "retry", name))
        with pytest.raises(error):
            flow.retry(1)


# -- ids -------------------------------------------------------------------------------------------


def test_ids_lead_both_ways(office: Office) -> None:
    office.flow(10492)
    (link,) = office.app.ids("invoice:inv_1")
    assert (link.flow, link.key, link.step, link.external) == ("office", "order:10492", "bill", "invoice:inv_1")
    assert office.app.ids("order:10492") == office.app.ids(link.run) == office.app.ids("office/order:10492") == [link]
    assert office.app.ids("invoice:other") == []


@pytest.mark.parametrize("external", ["run_abc123", "sync/55", "sync/order:2", "run_", "sync/", "order:1"])
def test_an_id_of_the_outside_may_look_like_anything(stage: Stage, external: str) -> None:
    app = stage.process()

    @app.step(repeat="safe", external="{external}")
    def make(external: str) -> None: ...

    @app.flow(key="order:{order}")
    def sync(order: int, external: str) -> None:
        make(external)

    assert app.ids(external) == []
    sync(1, external)
    assert [(link.key, link.external) for link in app.ids(external)] == [("order:1", external)]
    assert app.ids("sync/order:1") == app.ids(app.attach(flow="sync", key="order:1").id) == app.ids(external)


@pytest.mark.parametrize("given", ["run_abc123", "assistant", "assistant/7"])
def test_an_id_of_the_outside_may_look_like_one_of_ours(stage: Stage, given: str) -> None:
    app = stage.process()

    @app.step(repeat="safe", external="{result}")
    def ask() -> str:
        return given

    @app.flow(key="order:{order}")
    def assistant(order: int) -> str:
        return ask()

    assistant(1)
    assert [link.key for link in app.ids(given)] == ["order:1"]


def test_several_runs_may_meet_at_one_id(stage: Stage) -> None:
    app = stage.process()

    @app.step(repeat="safe", external="customer:{name}")
    def upsert(name: str) -> None: ...

    @app.flow(key="order:{order}")
    def sync(order: int, name: str) -> None:
        upsert(name)

    sync(1, "ann")
    sync(2, "ann")
    assert sorted(link.key for link in app.ids("customer:ann")) == ["order:1", "order:2"]


def test_only_steps_that_declare_an_id_cost_a_write(stage: Stage) -> None:
    def commits(**declared: str) -> int:
        app = stage.process()

        @app.step(repeat="safe", **declared)  # type: ignore[call-overload, untyped-decorator]
        def upsert() -> str:
            return "c1"

        @app.flow(key="{k}", name=f"sync{len(stage.apps)}")
        def sync(k: int) -> None:
            upsert()

        sync(1)
        return int(app.engine.commits)  # type: ignore[attr-defined]

    assert commits(external="customer:{result}") == commits() + 1


@pytest.mark.parametrize("at", [3, 4, 5])
@pytest.mark.parametrize("landed", [False, True])
def test_a_run_that_is_done_can_be_found_by_its_ids_wherever_a_process_died(
    stage: Stage, at: int, landed: bool
) -> None:
    app = stage.process(at, landed=landed)

    def declare(app: App) -> Any:
        @app.step(repeat="safe", external="invoice:{result}")
        def bill() -> str:
            return "inv_1"

        @app.step(repeat="safe")
        def post() -> None: ...

        @app.flow(key="order:{order}", name="sync")
        def sync(order: int) -> None:
            bill()
            post()

        return sync

    try:
        declare(app)(1)
    except Died:
        stage.lapse()
    second = stage.process()
    declare(second)(1)
    assert [link.step for link in second.ids("invoice:inv_1")] == ["bill"]


def test_a_pointer_that_was_never_written_is_made_up_for_when_the_run_goes_on(stage: Stage) -> None:
    app = stage.process()

    @app.step(external="invoice:{result}")
    def bill() -> str:
        return "inv_1"

    @app.flow(key="k", name="sync")
    def sync() -> None:
        bill()
        app.sleep("1h")

    with pytest.raises(Waiting):
        sync()
    (pointer,) = app.store.scan("external").block().records
    app.store.write(Remove(pointer.at, version=pointer.version)).block()
    stage.clock.advance(3_601)
    sync()
    assert [link.state for link in app.ids("invoice:inv_1")] == ["done"]


def test_a_waiting_run_can_be_found_already(stage: Stage) -> None:
    app = stage.process()

    @app.step(external="invoice:{result}")
    def bill() -> str:
        return "inv_1"

    @app.flow(key="k", name="sync")
    def sync() -> None:
        bill()
        app.sleep("1h")

    with pytest.raises(Waiting):
        sync()
    assert [link.state for link in app.ids("invoice:inv_1")] == ["waiting"]


# -- what lasts, and what is not shown -------------------------------------------------------------


def test_a_retry_that_stops_before_it_gets_to_the_failure_is_still_one(office: Office) -> None:
    office.fail()
    with pytest.raises(NeedsReview, match="reserve is new before"):
        Office(office.stage, office.stage.process(), first="reserve").flow.retry(1)
    assert office.app.retry_run("office/order:1") == "queued"
    assert office.flow(1) == "inv_2"


def test_the_token_of_a_callback_is_not_shown(stage: Stage) -> None:
    app = stage.process()
    app.runtime.url = "https://hooks.example.com"
    told: list[str] = []

    @app.flow(key="k", name="pay")
    def pay() -> None:
        told.append(app.callback_url("paid"))
        app.wait_for("paid", timeout="1d")

    with pytest.raises(Waiting):
        pay()
    whole = app.history("pay/k")
    assert any(step.name.startswith("callback:") for step in whole.steps)
    assert told[0].rpartition("/")[2].encode() not in msgspec.json.encode(whole)
