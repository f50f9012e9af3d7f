"""Notices of reviews, failures, dead letters and approvals: when one is sent, by whom, and what is in it."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest

from tests.unit.inbound.post import SECRET, Post, posted
from twiceproof import App, Misuse, NeedsReview, NotDone, Notice, PriorFailure, Retry, StepFailed, Waiting, to_log
from twiceproof.effects import incidents
from twiceproof.prove.clocks import ManualClock
from twiceproof.records import Address, Insert
from twiceproof.stores.grouped import GroupedStore
from twiceproof.stores.memory import MemoryEngine

WHY = "the bank did not answer"


class Office:
    """Processes on one store, and everything their hook was told."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.engine = MemoryEngine(self.clock)
        self.told: list[Notice] = []

    def process(self, hook: Any = None, **options: Any) -> App:
        app = App(GroupedStore(self.engine, clock=self.clock), clock=self.clock)
        app.notify(hook or self.told.append, **options)

        @app.step(repeat="never", retry=Retry(attempts=1))
        def charge(order: str, how: str) -> str:
            if how == "lost":
                raise TimeoutError(WHY)
            if how == "refused":
                raise NotDone("no such card")
            return order

        @app.flow(key="order:{order}")
        def pay(order: str, how: str = "fine") -> str:
            return charge(order, how)

        app.pay = pay  # type: ignore[attr-defined]
        return app


@pytest.fixture
def office(monkeypatch: pytest.MonkeyPatch) -> Office:
    monkeypatch.setattr(incidents, "SOON", 3_600.0)  # told when the test says so
    return Office()


def park(app: Any, order: str = "17") -> None:
    with pytest.raises(NeedsReview):
        app.pay(order, "lost")


def fail(app: Any, order: str = "17") -> None:
    with pytest.raises((StepFailed, NotDone)):
        app.pay(order, "refused")


def flush(app: App) -> float | None:
    return app.incidents[0].flush()


# -- what is told --------------------------------------------------------------------------------


def test_a_run_that_waits_for_review_is_told_with_its_reason_and_where_to_look(office: Office) -> None:
    app = office.process()
    park(app)
    flush(app)
    (notice,) = office.told
    assert (notice.event, notice.operation, notice.key, notice.count) == ("review", "pay", "order:17", 1)
    assert "pay for 'order:17' waits for review" in notice.line and WHY in notice.line
    assert notice.look == "twiceproof review list --flow pay"
    assert notice.type == "review.needed"


def test_a_run_that_failed_is_told(office: Office) -> None:
    app = office.process()
    fail(app)
    flush(app)
    assert [(n.event, n.key, n.type) for n in office.told] == [("failure", "order:17", "run.failed")]
    assert "no such card" in office.told[0].reason


def test_a_claim_of_a_guarded_function_is_told_too(office: Office) -> None:
    app = office.process()

    @app.once(key="order:{order}")
    def ship(order: str) -> None:
        raise TimeoutError(WHY)

    with pytest.raises(Exception):  # noqa: B017 - whatever it raises, it is in review now
        ship("17")
    flush(app)
    assert [(n.event, n.operation) for n in office.told] == [("review", "ship")]


def test_a_guarded_function_that_failed_for_good_is_told(office: Office) -> None:
    app = office.process()

    @app.once(key="order:{order}")
    def ship(order: str) -> None:
        raise NotDone("no such address", final=True)

    with pytest.raises(NotDone):
        ship("17")
    flush(app)
    assert [(n.event, n.operation, n.key, n.type) for n in office.told] == [
        ("failure", "ship", "order:17", "run.failed")
    ]


def test_a_delivery_that_was_set_aside_is_told_once_and_one_that_was_taken_is_not(office: Office) -> None:
    app = office.process()

    @app.webhook(Post(), secret=SECRET, start=app.pay)  # type: ignore[attr-defined]
    def shop_event(event: dict[str, Any]) -> str:
        return str(event["order"])

    assert app.receive(*posted({"id": "1", "order": "17"})).status == 200
    assert app.receive(*posted({"id": "2"})).status == 200
    flush(app)
    assert [(n.event, n.operation, n.type) for n in office.told] == [("dead-letter", "post", "letter.kept")]
    assert "order" in office.told[0].reason


def asked(app: App, *orders: str) -> Any:
    @app.flow(key="order:{order}", name="sell")
    def sell(order: str) -> None:
        app.approve("sale", show={"order": order})

    for order in orders:
        with pytest.raises(Waiting):
            sell(order)
    return sell


def test_a_run_that_waits_for_an_approval_is_told(office: Office) -> None:
    app = office.process()
    asked(app, "17")
    flush(app)
    (notice,) = office.told
    assert (notice.event, notice.operation, notice.key) == ("approval", "sell", "order:17")
    assert notice.line == "sell for 'order:17' waits for an approval: sale"
    assert notice.look == "twiceproof approvals list --flow sell" and notice.type == "approval.needed"


def test_an_approval_that_is_decided_or_whose_run_has_ended_is_told_to_nobody(office: Office) -> None:
    app = office.process()
    sell = asked(app, "17", "18")
    sell.start("18").cancel(by="ann")
    app.worker().run(until_idle=True)
    (open_one,) = app.approvals()
    app.decide(open_one.id, True, by="ann")
    assert flush(app) is None and office.told == []


def test_what_is_done_or_only_waits_is_told_to_nobody(office: Office) -> None:
    app = office.process()
    assert app.pay("17") == "17"  # type: ignore[attr-defined]
    app.pay.start("18")  # type: ignore[attr-defined]
    assert flush(app) is None and office.told == []


def test_what_was_settled_meanwhile_is_told_to_nobody(office: Office) -> None:
    app = office.process()
    with pytest.raises((TimeoutError, NeedsReview)), app.claim("ship", "order:17"):
        raise TimeoutError(WHY)
    app.settle("ship", "order:17", "abandon", by="eve")
    flush(app)
    assert office.told == []


def test_a_failure_that_may_be_tried_again_by_itself_is_no_news(office: Office) -> None:
    app = office.process()
    with pytest.raises(NotDone), app.claim("ship", "order:1"):
        raise NotDone("again later")
    assert flush(app) is None and office.told == []


@pytest.mark.parametrize(("on", "heard"), [("review", ["review"]), (("failure",), ["failure"])])
def test_only_what_was_asked_for_is_told(office: Office, on: Any, heard: list[str]) -> None:
    app = office.process(on=on)
    park(app, "1")
    fail(app, "2")
    flush(app)
    assert [n.event for n in office.told] == heard


# -- quiet periods -------------------------------------------------------------------------------


def test_one_message_per_flow_and_quiet_period_and_what_came_meanwhile_in_the_next(office: Office) -> None:
    app = office.process(quiet="10m")
    park(app, "1")
    flush(app)
    for order in "234":
        park(app, order)
    wait = flush(app)
    assert len(office.told) == 1 and wait == pytest.approx(600.0)
    office.clock.advance(601)
    assert flush(app) is None
    assert [(n.count, n.key) for n in office.told] == [(1, "order:1"), (3, "order:4")]
    assert office.told[1].line.endswith("and 2 more")
    assert len({n.id for n in office.told}) == 2


def test_a_quiet_period_that_began_while_the_stores_clock_was_ahead_does_not_last(office: Office) -> None:
    app = office.process(quiet="10m")
    office.clock.set_wall(3_600.0)
    park(app, "1")
    assert flush(app) is None
    office.clock.set_wall(-3_600.0)
    park(app, "2")
    assert flush(app) is None and [n.key for n in office.told] == ["order:1", "order:2"]
    park(app, "3")
    assert flush(app) == pytest.approx(600.0)


def test_processes_share_the_quiet_period(office: Office) -> None:
    one, other = office.process(), office.process()
    park(one, "1")
    park(other, "2")
    flush(one)
    flush(other)
    assert [n.key for n in office.told] == ["order:1"]


def test_a_failure_is_told_in_the_quiet_period_of_a_review(office: Office) -> None:
    app = office.process()
    park(app, "1")
    fail(app, "2")
    flush(app)
    assert sorted(n.event for n in office.told) == ["failure", "review"]


# -- a receiver that is away, and processes that die ---------------------------------------------


def test_a_message_that_was_not_sent_is_tried_again(office: Office) -> None:
    answers = [NotDone("it is away."), None]

    def hook(notice: Notice) -> None:
        answer = answers.pop(0)
        if answer is not None:
            raise answer
        office.told.append(notice)

    app = office.process(hook)
    park(app)
    assert flush(app) == incidents.AGAIN and office.told == []
    assert flush(app) is None
    assert [n.key for n in office.told] == ["order:17"]


def test_a_message_that_may_have_been_sent_is_not_sent_again(office: Office) -> None:
    tried = []

    def hook(notice: Notice) -> None:
        tried.append(notice)
        raise TimeoutError("no answer")

    app = office.process(hook)
    park(app)
    flush(app)
    office.clock.advance(3_600)
    flush(app)
    assert len(tried) == 1


def test_a_hook_that_hangs_holds_up_no_run(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incidents, "SOON", 0.0)
    monkeypatch.setattr(incidents, "GRACE", 0.0)
    hanging, let_go = threading.Event(), threading.Event()

    def hook(notice: Notice) -> None:
        hanging.set()
        let_go.wait(30)

    app = office.process(hook)
    park(app, "1")
    assert hanging.wait(30)
    assert app.pay("2") == "2"  # type: ignore[attr-defined]
    park(app, "3")
    app.close()
    let_go.set()


def test_what_a_process_that_died_did_not_tell_a_worker_that_starts_tells(office: Office) -> None:
    park(office.process())  # and is killed
    office.clock.advance(5)
    app = office.process()
    app.worker().run(until_idle=True)
    flush(app)
    assert [n.key for n in office.told] == ["order:17"]
    office.clock.advance(3_600)
    again = office.process()
    again.worker().run(until_idle=True)
    flush(again)
    assert len(office.told) == 1  # it was told, and nothing has happened since


def test_a_worker_that_starts_does_not_tell_of_all_that_ever_failed(office: Office) -> None:
    fail(office.process())  # and is killed
    office.clock.advance(5)
    app = office.process()
    app.worker().run(until_idle=True)
    flush(app)
    assert office.told == []


def test_a_record_that_cannot_be_read_holds_up_no_other_notice(office: Office) -> None:
    app = office.process()
    app.store.write(Insert(Address("default/sealed", "dead-letter", "1"), "sealed:x", "kept")).block()
    park(app)
    flush(app)
    assert [n.key for n in office.told] == ["order:17"]


def test_closing_the_app_tells_what_is_left(office: Office) -> None:
    app = office.process()
    park(app)
    app.close()
    assert [n.key for n in office.told] == ["order:17"]


def test_it_goes_to_a_log_by_itself_soon_after(office: Office, caplog: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incidents, "SOON", 0.0)
    seen = threading.Event()
    to, caplog.handler.level = to_log(), logging.WARNING

    def hook(notice: Notice) -> None:
        to(notice)
        seen.set()

    park(office.process(hook))
    assert seen.wait(30)
    (line,) = [record for record in caplog.records if record.name == "twiceproof.notices"]
    assert line.getMessage().endswith("; look: twiceproof review list --flow pay")


@pytest.mark.parametrize("wrong", [{"on": ()}, {"on": "reviews"}, {"hook": 7}, {"quiet": "soon"}])
def test_a_declaration_that_would_tell_nothing_is_refused(office: Office, wrong: dict[str, Any]) -> None:
    app = App("memory://")
    with pytest.raises(Misuse):
        app.notify(wrong.pop("hook", office.told.append), **wrong)


def test_a_prior_failure_is_told_once(office: Office) -> None:
    app = office.process()
    fail(app)
    flush(app)
    with pytest.raises((PriorFailure, StepFailed)):
        app.pay("17", "refused")  # type: ignore[attr-defined]
    office.clock.advance(3_600)
    flush(app)
    assert len(office.told) == 1
