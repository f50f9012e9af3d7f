"""Actions: within a cap, by a plan that is made before the first, and each of them once."""

from __future__ import annotations

import random

import pytest

from tests.unit.reconcile.shop import Shop, kinds, surplus_run
from twiceproof import Misuse, NeedsReview, TwiceproofError
from twiceproof.errors import OutcomeUnknown
from twiceproof.flows.history.queries import count_states
from twiceproof.operations import block
from twiceproof.reconcile import Cap, compensate


@pytest.fixture
def app(shop: Shop):
    shop.options["cap"] = Cap(None, None)
    app = shop.process()
    shop.sell(app, range(1, 31))
    return app


def test_the_recorded_one_stays_whichever_came_first(shop, app):
    shop.books.insert(0, {"id": "a_first", "reference": 7, "amount": 10})
    shop.invoice(8, id_="z_last")
    report = shop.run(app)
    assert [one.state for one in report.outcomes] == ["acted", "acted"]
    assert shop.voided == {"a_first": 1, "z_last": 1}
    assert kinds(shop.run(app)) == {} and len(shop.books) == 30


@pytest.mark.slow
def test_the_recorded_one_stays_in_random_worlds(shop, app):
    """A tenth of what `make prove` has; F22 makes 1,000 worlds."""
    dice, recorded = random.Random(11), {row["id"] for row in shop.books}
    for _ in range(100):
        report = surplus_run(shop, app, dice)
        assert {row["id"] for row in shop.books} == recorded, (report.outcomes, report.sources)
    assert set(shop.voided.values()) == {1}


def test_without_the_recorded_one_a_person_must_decide(shop, app):
    shop.books[6]["id"] = "other"
    shop.invoice(7)
    report = shop.run(app)
    assert not report.outcomes and not shop.voided
    found = next(one for one in app.findings() if one.check.startswith("duplicates"))
    assert found.state == "open" and "a person must say which one is right" in found.outcome


def test_a_receipt_is_undone_once_though_two_runs_and_a_person_report_it(shop, app):
    shop.invoice(7, id_="surplus")
    row = dict(shop.books[-1])
    shop.run(app)
    for _ in range(2):
        shop.books.append(row)  # the destination still lists it
        shop.run(app)
        shop.books[:] = [one for one in shop.books if one["id"] != "surplus"]
    app.compensate_duplicate(app.create_invoice, result={"id": "surplus"}, by="ann", flow="sync_order", key="order:7")
    assert shop.voided == {"surplus": 1}


def test_an_undo_of_unknown_outcome_is_left_to_a_person_and_others_go_on(shop, app):
    shop.invoice(7, id_="first")
    shop.invoice(8, id_="second")
    original = shop.void

    def void(result):
        original(result)
        if result["id"] == "first":
            shop.books.append({"id": "first", "reference": 7, "amount": 10})
            raise OutcomeUnknown("no answer came")

    app = shop.stage.process()
    shop.void = void
    app = shop.declare(app)
    report = shop.run(app)
    assert sorted(one.state for one in report.outcomes) == ["acted", "unknown"]
    report = shop.run(app)
    assert [one.state for one in report.outcomes] == ["unknown"]
    assert shop.voided == {"first": 1, "second": 1}
    found = next(one for one in app.findings() if one.key == "order:7")
    assert found.state == "open" and "undone=True or undone=False" in found.outcome


def test_a_missing_one_is_started_once_though_three_runs_find_it(shop, app):
    shop.order(100)
    for _ in range(3):
        shop.run(app)
    assert len(app.runs(flow="sync_order", key="order:100")) == 1
    app.worker().run(until_idle=True)
    assert sum(row["reference"] == 100 for row in shop.books) == 1
    assert kinds(shop.run(app)) == {}


def test_a_run_that_is_done_is_not_started_again(shop, app):
    shop.books[:] = [row for row in shop.books if row["reference"] != 5]
    report = shop.run(app)
    (outcome,) = report.outcomes
    assert outcome.state == "refused" and "a run of sync_order is done" in outcome.text
    assert shop.made == 30


def test_a_run_in_review_is_not_started_again(shop):
    shop.options.update(cap=Cap(None, None), step={"repeat": "never"})
    app = shop.process()
    shop.sell(app, range(1, 31))
    row, invoice = shop.order(100), shop.invoice

    def lose(*given):
        raise OutcomeUnknown("no answer came")

    shop.invoice = lose
    with pytest.raises(NeedsReview):
        app.sync_order(row)
    shop.invoice = invoice
    for _ in range(3):
        (outcome,) = shop.run(app).outcomes
        assert outcome.state == "refused" and "a run of sync_order is review" in outcome.text
        app.worker().run(until_idle=True)
    assert [run.state for run in app.runs(flow="sync_order", key="order:100")] == ["review"]
    assert shop.made == 30


def test_a_run_under_another_key_is_not_started(shop):
    app = shop.stage.process()

    @app.flow(key="other:{row[id]}")
    def other(row):
        return row

    @app.reconcile(grace="0s")
    def invoices(find):
        from twiceproof.reconcile import start

        left, right = (
            find.source(name, [{"id": 1}][:count], key="order:{id}", empty=True) for name, count in (("a", 1), ("b", 0))
        )
        yield find.missing(left, right, then=start(other, cap=Cap(None, None)))

    (outcome,) = shop.run(app).outcomes
    assert outcome.state == "refused" and "'other:1'" in outcome.text and app.runs(flow="other") == []


def test_any_step_may_be_the_action_and_runs_once(shop):
    app, told = shop.stage.process(), []

    @app.step(repeat="safe")
    def open_ticket(finding: dict) -> str:
        told.append((finding["key"], finding["refs"]))
        return "T-1"

    @app.reconcile(grace="0s")
    def invoices(find):
        rows = [{"id": number, "mail": "ann@example.com"} for number in range(30)]
        yield find.duplicates(find.source("people", rows, key="{mail}", id="{id}"), then=open_ticket)

    shop.run(app)
    shop.run(app)
    app.worker().run(until_idle=True)
    assert [key for key, _ in told] == ["ann@example.com"] and len(told[0][1]) == 30


# -- caps ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cap", "surplus", "parked"),
    [
        (Cap(20, percent=None), 20, False),
        (Cap(20, percent=None), 21, True),
        (Cap(None, percent=50), 26, False),  # of 30 + 26
        (Cap(None, percent=50), 31, True),
        (Cap(None, percent=5), 1, False),  # of 31
        (Cap(None, percent=5), 2, True),  # of 32: 6 per cent
        (Cap(0, percent=None), 1, True),
    ],
)
def test_over_its_cap_a_plan_is_parked_whole(shop, cap, surplus, parked):
    shop.options["cap"] = cap
    app = shop.process()
    shop.sell(app, range(1, 31))
    for number in range(surplus):
        shop.invoice(1 + number % 30, id_=f"surplus{number}")
    report = shop.run(app)
    (plan,) = report.plans
    assert plan["actions"] == surplus and bool(plan["over"]) is parked
    assert sum(shop.voided.values()) == (0 if parked else surplus)


def _parked(shop: Shop, count: int = 21, told: list | None = None):
    shop.options["cap"] = Cap(20, percent=None)
    app = shop.process()
    if told is not None:
        app.notify(told.append, on="approval")
    shop.sell(app, range(1, 31))
    for number in range(1, count + 1):
        shop.invoice(number, id_=f"surplus{number}")
    shop.run(app)
    app.worker().run(until_idle=True)
    (approval,) = app.approvals()
    return app, approval


def test_a_plan_that_waits_for_its_approval_is_told_and_counted(shop):
    told = []
    app, _ = _parked(shop, told=told)
    app.incidents[0].flush()
    assert [(one.event, one.operation, one.count) for one in told] == [("approval", "invoices.plan", 1)]
    assert block(count_states(app.store)).approvals == 1


def test_a_plan_waits_for_a_person_of_its_own_tenant(shop):
    app, approval = _parked(shop)
    other = app.of("acme")
    assert other.approvals() == [] and other.findings() == []
    with pytest.raises(TwiceproofError):
        other.decide(approval.id, True, by="eve")
    app.worker().run(until_idle=True)
    assert not shop.voided and [one.id for one in app.approvals()] == [approval.id]


def test_the_findings_of_a_plan_say_that_it_waits_and_what_became_of_it(shop):
    app, approval = _parked(shop)
    waits = f"waits for an approval (21 actions, more than 20): twiceproof approvals show invoices.plan/{approval.key}"
    assert {one.outcome for one in app.findings()} == {waits}
    app.decide(approval.id, False, by="ann", note="not these")
    app.worker().run(until_idle=True)
    told = {one.outcome for one in app.findings()}
    assert len(told) == 1 and "rejected by ann" in min(told)
    shop.run(app)  # the same plan again: it is not asked for anew
    assert {one.outcome for one in app.findings()} == told


def test_an_approved_plan_is_carried_out_exactly(shop):
    app, approval = _parked(shop)
    assert approval.flow == "invoices.plan" and approval.shown["actions"] == 21
    assert len(approval.shown["lines"]) == 20 and approval.shown["plan"] == approval.key
    app.decide(approval.id, True, by="ann")
    app.worker().run(until_idle=True)
    assert shop.voided == {f"surplus{number}": 1 for number in range(1, 22)}
    assert {one.outcome for one in app.findings()} == {f"undid surplus{number}" for number in range(1, 22)}
    assert kinds(shop.run(app)) == {}


def test_a_rejected_plan_does_nothing(shop):
    app, approval = _parked(shop)
    app.decide(approval.id, False, by="ann")
    app.worker().run(until_idle=True)
    assert not shop.voided and len(app.findings(state="open")) == 21


def test_a_plan_whose_world_changed_does_less_and_never_more(shop):
    app, approval = _parked(shop)
    shop.books[:] = [row for row in shop.books if row["id"] != "surplus3"]
    shop.invoice(4, id_="surplus_new")
    app.decide(approval.id, True, by="ann")
    app.worker().run(until_idle=True)
    assert set(shop.voided) == {f"surplus{number}" for number in range(1, 22)} - {"surplus3"}
    assert any(row["id"] == "surplus_new" for row in shop.books)


def test_what_is_no_longer_missing_when_it_is_approved_is_not_started(shop):
    shop.options["cap"] = Cap(0)
    app = shop.process()
    shop.sell(app, range(1, 31))
    shop.order(100)
    shop.order(101)
    shop.run(app)
    app.worker().run(until_idle=True)
    (approval,) = app.approvals()
    shop.invoice(100)
    app.decide(approval.id, True, by="ann")
    app.worker().run(until_idle=True)
    assert app.runs(flow="sync_order", key="order:100") == []
    assert len(app.runs(flow="sync_order", key="order:101")) == 1
    assert [run.state for run in app.runs(flow="invoices.plan")] == ["done"]


def test_the_same_plan_on_the_next_day_waits_for_the_same_approval(shop):
    app, approval = _parked(shop)
    shop.run(app)
    app.worker().run(until_idle=True)
    assert [one.id for one in app.approvals()] == [approval.id]


def test_a_finding_that_a_person_has_seen_to_is_left_alone(shop, app):
    shop.options["acts"] = False
    quiet = shop.process()
    shop.invoice(7)
    (id_,) = shop.run(quiet).ids
    quiet.acknowledge_finding(id_, by="ann")
    shop.options["acts"] = True
    assert not shop.run(shop.process()).outcomes and not shop.voided


def test_other_ways_to_choose_the_good_one_are_refused(shop, app):
    with pytest.raises(Misuse, match="recorded"):
        compensate(app.create_invoice, keep="oldest")
    with pytest.raises(Misuse, match="undo"):
        compensate(lambda: None)
    with pytest.raises(Misuse, match="no limit"):
        Cap(-1)
