"""`app.approve`: a person's word, given once, about what was shown."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.unit.flows.stage import Died, Stage, Style
from tests.unit.flows.waits import deliver, park, process, work
from twiceproof import (
    App,
    Decided,
    Misuse,
    NeedsReview,
    NoSuchWait,
    PayloadMismatch,
    PriorFailure,
    Rejected,
    Waiting,
    WaitTimedOut,
)
from twiceproof.claims.claim import address_of, body_of
from twiceproof.errors import KeyRefused
from twiceproof.flows.waits.approvals import look_up
from twiceproof.flows.waits.records import ApprovalRequest, approval_id, encode_payload
from twiceproof.operations import block
from twiceproof.records import Address, Insert

INVOICE = {"id": "inv_1", "total": 700}


def asking(stage: Stage, app: App, show: Any = INVOICE, style: Style | None = None, **options: Any) -> Any:
    """A flow that reserves, asks, and charges."""
    style = style or Style("def")

    def reserve() -> None:
        stage.do("reserve")

    def release() -> None:
        stage.do("release")

    def charge() -> str:
        stage.do("charge")
        return "charged"

    undo = style.step(app, release, repeat="safe")
    first, last = style.step(app, reserve, repeat="safe", undo=undo), style.step(app, charge, repeat="safe")

    def steps(order: int) -> Any:
        yield first()
        decision = yield app.approve("charge", show=show, **options)
        stage.do(f"by {decision.by}")
        return (yield last())

    return style.flow(app, steps)


def the_only(app: App) -> Any:
    (found,) = app.approvals()
    return found


def test_nothing_is_charged_before_somebody_approves(stage: Stage, style: Style) -> None:
    app = process(stage)
    sync = asking(stage, app, style=style)
    park(sync)
    asked = the_only(app)
    assert (asked.name, asked.flow, asked.key, asked.state) == ("charge", "sync", "order:1", "open")
    assert (asked.shown, asked.run) == (INVOICE, sync.flow.handle("order:1").id)
    assert stage.effects == {"reserve": 1}
    told = app.decide(asked.id, True, by="ann", note="fine")
    assert told.first
    assert (told.decision.approved, told.decision.by, told.decision.note) == (True, "ann", "fine")
    assert told.decision.at == stage.clock.wall
    assert sync(1) == "charged"
    assert stage.effects == {"reserve": 1, "by ann": 1, "charge": 1}
    assert app.approvals() == []


def test_a_no_raises_in_the_body_and_what_was_done_is_undone(stage: Stage, style: Style) -> None:
    app = process(stage)
    sync = asking(stage, app, style=style)
    park(sync)
    app.decide(the_only(app).id, False, by="ann", note="too much")
    with pytest.raises(Rejected, match="charge was rejected by ann: too much") as caught:
        sync(1)
    assert caught.value.decision.by == "ann"
    assert stage.effects == {"reserve": 1, "release": 1}
    with pytest.raises(PriorFailure, match="Rejected"):
        sync(1)


def test_a_no_that_is_caught_is_not_undone(stage: Stage) -> None:
    app = process(stage)

    @app.flow(key="order:{order}", name="sync")
    def sync(order: int) -> str:
        try:
            app.approve("charge")
        except Rejected as no:
            return f"no: {no.decision.note}"
        return "yes"

    park(sync)
    app.decide(the_only(app).id, False, by="ann", note="later")
    assert sync(1) == "no: later"


def test_the_second_decider_gets_the_first_decision(stage: Stage) -> None:
    app, other = process(stage), process(stage)
    park(asking(stage, app))
    asked = the_only(app)
    first = app.decide(asked.id, True, by="ann")
    second = other.decide(asked.id, False, by="bob")
    assert first.first and not second.first
    assert second.decision == first.decision


def test_of_many_deciders_at_once_exactly_one_counts(stage: Stage) -> None:
    apps = [process(stage) for _ in range(4)]
    sync = asking(stage, apps[0])
    park(sync)
    asked = the_only(apps[0])
    barrier = threading.Barrier(8)

    def race(number: int) -> Decided:
        barrier.wait()
        return apps[number % 4].decide(asked.id, number % 2 == 0, by=f"p{number}")

    with ThreadPoolExecutor(8) as pool:
        told = list(pool.map(race, range(8)))
    winners = [answer for answer in told if answer.first]
    assert len(winners) == 1
    assert {answer.decision.by for answer in told if answer.decision} == {winners[0].decision.by}
    try:
        assert sync(1) == "charged"
        assert winners[0].decision.approved
    except Rejected:
        assert not winners[0].decision.approved


# -- what was shown --------------------------------------------------------------------------------


def test_a_decision_about_something_else_than_what_is_shown_is_refused(stage: Stage) -> None:
    app = process(stage)
    sync = asking(stage, app)
    park(sync)
    asked = the_only(app)
    with pytest.raises(PayloadMismatch, match="What was shown is not what this approval is about"):
        app.decide(asked.id, True, by="ann", shown="1:" + "0" * 64)
    park(sync)
    assert app.decide(asked.id, True, by="ann", shown=asked.digest).first


def test_a_replay_that_shows_something_else_stops_in_review_instead_of_charging(stage: Stage) -> None:
    park(asking(stage, process(stage)))
    app = process(stage)
    app.decide(the_only(app).id, True, by="ann")
    changed = asking(stage, process(stage), show={"id": "inv_1", "total": 7_000})
    with pytest.raises(NeedsReview, match="another show"):
        changed(1)
    assert "charge" not in stage.effects


def test_a_payload_cannot_pass_for_a_decision(stage: Stage) -> None:
    app = process(stage)
    sync = asking(stage, app)
    park(sync)
    for name in ("charge", "approve:charge"):
        deliver(app, {"approved": True, "by": "mallory", "at": 0.0}, name=name)
    park(sync)
    assert the_only(app).state == "open"


@pytest.mark.parametrize("show", [object(), float("nan"), "x" * 300_000])
def test_what_cannot_be_kept_cannot_be_shown(stage: Stage, show: Any) -> None:
    """The order is reserved by then, and not undone because of a mistake."""
    with pytest.raises(NeedsReview, match="broke off with ValueRefused"):
        asking(stage, process(stage), show=show)(1)


# -- time-outs -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("default", "ends"), [("approve", "charged"), ("reject", Rejected), (None, WaitTimedOut)])
def test_when_nobody_decides_in_time_the_default_does(stage: Stage, style: Style, default: Any, ends: Any) -> None:
    app = process(stage)
    sync = asking(stage, app, timeout="2d", default=default, style=style)
    park(sync)
    asked = the_only(app)
    assert asked.until == pytest.approx(stage.clock.wall + 2 * 86_400)
    stage.clock.advance(2 * 86_400 + 1)
    if isinstance(ends, str):
        assert sync(1) == ends
    else:
        with pytest.raises(ends):
            sync(1)
        assert stage.effects["release"] == 1
    assert block(look_up(app.store, asked.id)).state == "timeout"
    late = app.decide(asked.id, True, by="ann")
    assert not late.first
    assert (late.decision and late.decision.approved) == {"approve": True, "reject": False}.get(default)


@pytest.mark.parametrize("decision_first", [True, False])
def test_of_a_decision_and_a_time_out_at_the_same_moment_exactly_one_counts(stage: Stage, decision_first: bool) -> None:
    app, other = process(stage), process(stage)
    sync = asking(stage, app, timeout="1h", default="reject")
    park(sync)
    asked = the_only(app)
    stage.clock.advance(3_601)
    told: list[Decided] = []
    engine: Any = app.engine  # type: ignore[attr-defined]
    commit = engine.commit

    def racing(batches: Any) -> Any:
        if not any(write.at.kind == "arrival" for batch in batches for write in batch.writes):
            return commit(batches)
        engine.commit = commit
        if decision_first:
            told.append(other.decide(asked.id, True, by="ann"))
            return commit(batches)
        answers = commit(batches)
        told.append(other.decide(asked.id, True, by="ann"))
        return answers

    engine.commit = racing
    if decision_first:
        assert sync(1) == "charged"
    else:
        with pytest.raises(Rejected):
            sync(1)
    assert told[0].first is decision_first


# -- runs that end ---------------------------------------------------------------------------------


def test_a_run_that_was_cancelled_asks_nobody_any_more(stage: Stage) -> None:
    app = process(stage)
    handle = park(asking(stage, app))
    asked = the_only(app)
    handle.cancel("ann")
    assert app.approvals() == []
    with pytest.raises(NoSuchWait, match="Its run has ended"):
        app.decide(asked.id, True, by="bob")
    work(app)
    assert stage.effects == {"reserve": 1, "release": 1}


def test_a_forgotten_run_is_asked_about_anew(stage: Stage) -> None:
    app = process(stage)

    def steps(order: int) -> Any:
        return (yield app.approve("charge", show=order)).by

    sync = Style("def").flow(app, steps, keep="1h")
    park(sync)
    first = the_only(app)
    app.decide(first.id, True, by="ann")
    assert sync(1) == "ann"
    stage.clock.advance(3_601)
    park(sync)
    assert app.decide(the_only(app).id, True, by="bob").first
    assert sync(1) == "bob"


def test_a_question_that_an_earlier_run_left_behind_is_not_this_runs(stage: Stage) -> None:
    app = process(stage)
    at = Address(address_of("default", "sync", "order:1").space, "approval", "charge")
    old = ApprovalRequest("earlier", "sync", "order:1", "1:old", encode_payload({"total": 1}, "it"))
    app.store.write(Insert(at, body_of(old), "open")).block()
    with pytest.raises(NoSuchWait):
        app.decide(approval_id(at), True, by="ann")
    assert app.approvals() == []
    park(asking(stage, app))
    assert the_only(app).shown == INVOICE
    assert app.decide(approval_id(at), True, by="ann").first


@pytest.mark.parametrize("landed", [False, True])
@pytest.mark.parametrize("at", [1, 2, 3, 4])
def test_a_crash_at_any_commit_loses_neither_the_question_nor_the_answer(stage: Stage, at: int, landed: bool) -> None:
    with pytest.raises((Died, Waiting)):
        asking(stage, process(stage, at, landed=landed))(1)
    stage.lapse()
    app = process(stage)
    sync = asking(stage, app)
    park(sync)
    assert app.decide(the_only(app).id, True, by="ann").first
    assert sync(1) == "charged"
    assert stage.effects["charge"] == 1


def test_open_approvals_of_one_flow_and_of_one_tenant(stage: Stage) -> None:
    app = process(stage)
    sync = asking(stage, app)
    for order in range(3):
        park(sync, order)
    assert len(app.approvals()) == len(app.approvals(flow="sync")) == 3
    assert app.approvals(flow="other") == []
    assert len(app.approvals(limit=2)) == 2
    app.runtime.tenant = "acme"
    assert app.approvals() == []


# -- misuse ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("approval", ["", "apr_", "apr_zzz", "run_x", "apr_" + "é"])
def test_an_id_that_is_none_is_refused(stage: Stage, approval: str) -> None:
    with pytest.raises(NoSuchWait):
        process(stage).decide(approval, True, by="ann")


def test_a_decision_needs_a_name_and_a_plain_yes_or_no(stage: Stage) -> None:
    app = process(stage)
    park(asking(stage, app))
    asked = the_only(app)
    with pytest.raises(KeyRefused):
        app.decide(asked.id, True, by="")
    with pytest.raises(Misuse, match="neither yes nor no"):
        app.decide(asked.id, "no", by="ann")  # type: ignore[arg-type]
    assert the_only(app).state == "open"


def test_a_default_is_one_of_two_words(stage: Stage) -> None:
    with pytest.raises(NeedsReview, match=r"broke off with Misuse: .* is no decision"):
        asking(stage, process(stage), default="yes")(1)
