"""`type=` of `app.wait_for` and `app.remote`: a payload comes in its type, and one that does not fit is not lost."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from tests.unit.flows.stage import Stage, Style
from tests.unit.flows.waits import arrival, deliver, park, process, token_of, waiter, work
from twiceproof import App, Delivered, Misuse, NeedsReview, ValueRefused, WaitTimedOut


class Payment(msgspec.Struct):
    amount: Decimal
    note: str = ""


class Receipt(msgspec.Struct):
    number: int


@dataclass
class Parcel:
    weight: float


PAID = Payment(Decimal("7.50"))


@pytest.mark.parametrize(
    ("declared", "payload", "expected"),
    [
        (Payment, {"amount": "7.50"}, PAID),
        (Payment, PAID, PAID),
        (Parcel, {"weight": 2}, Parcel(2.0)),
        (list[Payment], [{"amount": "7.50"}], [PAID]),
        (Payment | None, None, None),
        (int, 7, 7),
        (dict, {"a": 1}, {"a": 1}),
        (Any, {"a": 1}, {"a": 1}),
        (None, {"a": 1}, {"a": 1}),
    ],
)
def test_a_payload_comes_in_the_type_that_the_flow_declares(
    stage: Stage, style: Style, declared: Any, payload: Any, expected: Any
) -> None:
    found: list[Any] = []

    def flow(app: App) -> Any:
        def steps(order: int) -> Any:
            found.append((yield app.wait_for("paid", type=declared)))
            yield app.sleep("1h")
            return "done"

        return style.flow(app, steps)

    app = process(stage)
    park(flow(app))
    deliver(app, payload)
    park(flow(app))
    stage.clock.advance(3_601)
    assert flow(process(stage))(1) == "done"
    assert found == [expected, expected]  # the first time, and in a replay
    assert type(found[1]) is type(expected)


def test_a_pydantic_model_is_a_payloads_type_too(stage: Stage) -> None:
    pydantic = pytest.importorskip("pydantic")

    class Order(pydantic.BaseModel):
        id: int = pydantic.Field(alias="orderId")

    app = process(stage)

    @app.flow(key="order:{order}", name="sync")
    def sync(order: int) -> int:
        found = app.wait_for("paid", type=Order)
        assert type(found) is Order
        return int(found.id)

    park(sync)
    park(sync, 2)
    deliver(app, {"orderId": 8})
    assert sync(1) == 8
    deliver(app, {"orderId": "eight"}, order=2)
    with pytest.raises(NeedsReview, match=r"wait:paid: what arrived does not fit .*Order \(orderId: Input should be a"):
        sync(2)


# -- a payload that does not fit -------------------------------------------------------------------


def misfit(stage: Stage, style: Style | None = None) -> Any:
    """A flow that reserves, waits for a payment, and got something else."""
    app = process(stage)
    sync = reserving(stage, app, style or Style("def"), Payment)
    park(sync)
    assert deliver(app, {"amont": 7}) == Delivered(True, {"amont": 7})
    with pytest.raises(NeedsReview, match="what arrived does not fit Payment"):
        sync(1)
    return app, sync


def reserving(stage: Stage, app: App, style: Style, declared: Any) -> Any:
    def release(item: str) -> None:
        stage.do("release")

    def reserve(item: str) -> str:
        stage.do("reserve")
        return item

    step = style.step(app, reserve, repeat="safe", undo=release)

    def steps(order: int) -> Any:
        yield step("shoe")
        paid = yield app.wait_for("paid", type=declared, timeout="7d")
        return str(paid.amount if declared is Payment else paid)

    return style.flow(app, steps)


def test_a_payload_of_another_type_parks_the_run_and_is_kept(stage: Stage, style: Style) -> None:
    app, sync = misfit(stage, style)
    told = app.history("sync/order:1").run
    assert told.state == "review"
    assert told.reason == "wait:paid: what arrived does not fit Payment (Object missing required field `amount`)"
    assert arrival(stage).state == "arrived"
    assert bytes(stage.entries("sync", "order:1")["wait:paid"].note.result) == b'{"amont":7}'
    assert stage.effects == {"reserve": 1}  # and nothing is undone
    with pytest.raises(NeedsReview):
        sync(1)


def test_a_person_gives_the_payload_that_was_meant(stage: Stage, style: Style) -> None:
    app, sync = misfit(stage, style)
    app.settle_run("sync/order:1", "happened", by="ann", result={"amount": "7"})
    assert sync(1) == "7"
    assert stage.effects == {"reserve": 1}


def test_a_person_who_gives_another_misfit_is_asked_again(stage: Stage) -> None:
    app, sync = misfit(stage)
    app.settle_run("sync/order:1", "happened", by="ann", result=None)
    with pytest.raises(NeedsReview, match=r"wait:paid: what arrived does not fit Payment \(Expected `object`, got"):
        sync(1)
    app.settle_run("sync/order:1", "happened", by="ann", step="wait:paid", result={"amount": "7"})
    assert sync(1) == "7"


def test_once_the_declared_type_accepts_it_the_run_goes_on(stage: Stage) -> None:
    misfit(stage)
    app = process(stage)
    repaired = reserving(stage, app, Style("def"), dict[str, int])
    app.retry_run("sync/order:1")
    assert work(app) == 1
    assert repaired(1) == "{'amont': 7}"


def test_a_run_whose_payload_does_not_fit_can_be_undone(stage: Stage, style: Style) -> None:
    app, _ = misfit(stage, style)
    app.settle_run("sync/order:1", "undo", by="ann")
    work(app)
    assert stage.record("sync", "order:1").state == "failed"
    assert stage.effects == {"reserve": 1, "release": 1}


def test_the_moves_of_a_misfit_are_another_payload_retry_undo_and_abandon(stage: Stage) -> None:
    app, _ = misfit(stage)
    moves = app.history("sync/order:1").next
    assert [tuple(word for word in move.words if word != "sync/order:1") for move in moves] == [
        ("review", "settle", "--happened", "--result", "JSON"),
        ("runs", "retry"),
        ("review", "settle", "--undo"),
        ("review", "settle", "--abandon"),
    ]
    assert moves[0].why == "To go on with another payload for paid, said by hand:"
    assert moves[1].why == "Once what wait:paid declares accepts what is on record, go on:"


def test_a_wait_without_a_type_accepts_anything(stage: Stage) -> None:
    app = process(stage)
    sync = waiter(app)
    park(sync)
    deliver(app, {"amont": 7})
    assert sync(1) == {"amont": 7}


# -- time-outs and defaults ------------------------------------------------------------------------


@pytest.mark.parametrize("default", [None, PAID])
def test_a_default_comes_back_in_its_type(stage: Stage, style: Style, default: Any) -> None:
    found: list[Any] = []

    def steps(order: int) -> Any:
        found.append((yield app.wait_for("paid", type=Payment, timeout="1h", default=default)))
        return "done"

    app = process(stage)
    sync = style.flow(app, steps)
    park(sync)
    stage.clock.advance(3_601)
    assert sync(1) == "done"
    assert found == [default]


def test_none_as_a_default_lets_no_null_through_as_a_payload(stage: Stage) -> None:
    app = process(stage)
    sync = waiter(app, type=Payment, timeout="1h", default=None)
    park(sync)
    deliver(app, None)
    with pytest.raises(NeedsReview, match="does not fit Payment"):
        sync(1)


@pytest.mark.parametrize("default", ["late", {"amont": 7}, Receipt(1)])
def test_a_default_of_another_type_is_refused(stage: Stage, default: Any) -> None:
    sync = waiter(process(stage), type=Payment, timeout="1h", default=default)
    with pytest.raises(ValueRefused, match=r"default= is no Payment \(.*\); give a value of it, or None"):
        sync(1)


def test_a_time_out_without_a_default_raises_whatever_the_type(stage: Stage) -> None:
    sync = waiter(process(stage), type=Payment, timeout="1h")
    park(sync)
    stage.clock.advance(3_601)
    with pytest.raises(WaitTimedOut):
        sync(1)


# -- what may be declared --------------------------------------------------------------------------


class Opaque: ...


@pytest.mark.parametrize("declared", [Opaque, list[Opaque], Payment | Receipt])
def test_a_type_without_a_json_form_is_refused_before_anything_waits(stage: Stage, declared: Any) -> None:
    sync = waiter(process(stage), type=declared)
    with pytest.raises(Misuse, match=r"has no JSON form \(.*\); give a dataclass, a msgspec\.Struct"):
        sync(1)
    assert arrival(stage) is None


# -- waiting_for -----------------------------------------------------------------------------------


def test_waiting_for_is_the_same_awaited(stage: Stage) -> None:
    app = process(stage)

    def steps(order: int) -> Any:
        paid = yield app.waiting_for("paid", type=Payment, timeout="7d", default=None)
        return "late" if paid is None else str(paid.amount)

    sync = Style("async def").flow(app, steps)
    park(sync)
    park(sync, 2)
    deliver(app, {"amount": 7})
    assert sync(1) == "7"
    stage.clock.advance(8 * 86_400)
    assert sync(2) == "late"


def test_waiting_for_in_a_plain_flow_is_refused(stage: Stage) -> None:
    app = process(stage)

    @app.flow(key="order:{order}", name="sync")
    def sync(order: int) -> Any:
        return app.waiting_for("paid", type=Payment)

    with pytest.raises(Misuse, match=r"this flow is a def; call app\.wait_for"):
        sync(1)


# -- remote ----------------------------------------------------------------------------------------


def rendering(app: App, urls: list[str], style: Style) -> Any:
    def steps(order: int) -> Any:
        found = yield app.remote(start=urls.append, callback="job", type=Receipt, timeout="2h")
        return found.number

    return style.flow(app, steps)


def test_the_callback_of_remote_work_comes_in_its_type(stage: Stage, style: Style) -> None:
    app, urls = process(stage), list[str]()
    sync = rendering(app, urls, style)
    park(sync)
    app.deliver(token_of(urls[0]), {"number": 8})
    assert sync(1) == 8


def test_remote_work_whose_callback_does_not_fit_is_not_started_again(stage: Stage, style: Style) -> None:
    app, urls = process(stage), list[str]()
    sync = rendering(app, urls, style)
    park(sync)
    app.deliver(token_of(urls[0]), {"number": "eight"})
    with pytest.raises(NeedsReview, match=r"wait:job: what arrived does not fit Receipt \(Expected `int`, got `str`"):
        sync(1)
    app.settle_run("sync/order:1", "happened", by="ann", result={"number": 8})
    assert sync(1) == 8
    assert len(urls) == 1
