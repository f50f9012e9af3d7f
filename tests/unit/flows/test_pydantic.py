"""pydantic models as arguments and results: they come back as models, and ask by their contents."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Generic, TypeVar

import pytest

from tests.unit.flows.stage import Stage, Style
from twiceproof import App, Misuse, NeedsReview, PayloadMismatch, ValueRefused, Waiting
from twiceproof.operations import block

pydantic = pytest.importorskip("pydantic")
T = TypeVar("T")


class Line(pydantic.BaseModel):
    sku: str
    price: Decimal


class Order(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)
    id: int
    placed_at: datetime
    lines: list[Line] = pydantic.Field(default_factory=list)
    note: str | None = pydantic.Field(None, alias="customerNote")

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def total(self) -> Decimal:
        return sum((line.price for line in self.lines), Decimal())


class Refund(pydantic.BaseModel):
    reason: str


class Page(pydantic.BaseModel, Generic[T]):
    items: list[T]


@dataclass
class Parcel:
    order: Order
    others: list[Order]


ORDER = Order(
    id=7,
    placed_at=datetime(2026, 3, 1, 9, 30, tzinfo=UTC),
    lines=[Line(sku="A1", price=Decimal("1.50"))],
    customerNote="ring twice",
)


def test_a_model_comes_back_as_a_model_the_first_time_and_in_a_replay(stage: Stage, style: Style) -> None:
    app, seen = stage.process(), []

    def confirm(order: Order) -> Order:
        return order.model_copy(update={"id": order.id + 1})

    confirm.__annotations__ = {"order": Order, "return": Order}
    step = style.step(app, confirm, repeat="safe")

    def steps(order: Any) -> Any:
        confirmed = yield step(ORDER)
        seen.append(confirmed)
        return confirmed.id

    flow = style.flow(app, steps)
    assert flow(1) == 8
    assert seen == [ORDER.model_copy(update={"id": 8})]
    assert type(seen[0].lines[0]) is Line


def test_a_run_that_is_left_to_a_worker_sees_the_model(stage: Stage) -> None:
    app, seen = stage.process(), []

    @app.flow(key="order:{order.id}")
    def sync(order: Order, parcel: Parcel) -> Order:
        seen.append((order, parcel))
        return order

    handle = sync.start(ORDER, Parcel(ORDER, [ORDER]))
    app.worker().run(until_idle=True)
    assert handle.result() == ORDER
    assert seen == [(ORDER, Parcel(ORDER, [ORDER]))]


@pytest.mark.parametrize(
    ("declared", "value"),
    [
        (list[Order], [ORDER]),
        (dict[str, Order], {"a": ORDER}),
        (Order | None, None),
        (Order | Refund, Refund(reason="late")),
        (list[Order | Refund], [ORDER, Refund(reason="late")]),
        (Page[Line], Page[Line](items=ORDER.lines)),
        (Parcel, Parcel(ORDER, [])),
    ],
    ids=str,
)
def test_models_in_other_types_come_back_too(stage: Stage, declared: Any, value: Any) -> None:
    app = stage.process()

    def look() -> Any:
        return value

    look.__annotations__ = {"return": declared}
    once = app.once(key="look", repeat="safe")(look)
    assert once() == value
    assert once() == value


def test_the_same_model_is_the_same_request_and_another_is_not(stage: Stage) -> None:
    app = stage.process()

    @app.once(key="order:{order.id}", repeat="safe")
    def sync(order: Order) -> int:
        stage.do("sync")
        return order.id

    assert (sync(ORDER), sync(ORDER.model_copy(deep=True))) == (7, 7)
    with pytest.raises(PayloadMismatch):
        sync(ORDER.model_copy(update={"note": "another"}))
    assert stage.effects["sync"] == 1


def test_fields_of_a_model_can_be_left_out_of_the_fingerprint(stage: Stage) -> None:
    app = stage.process()

    @app.once(key="order:{order.id}", repeat="safe", ignore=("order.note",))
    def sync(order: Order) -> int:
        return order.id

    assert sync(ORDER) == sync(ORDER.model_copy(update={"note": "another"})) == 7


def test_a_step_that_is_asked_with_another_model_stops_the_run(stage: Stage) -> None:
    given = [ORDER, ORDER.model_copy(update={"id": 9})]

    def flow(app: App) -> Any:
        @app.step(repeat="safe")
        def confirm(order: Order) -> None: ...

        @app.flow(key="order:{number}", name="sync")
        def sync(number: int) -> None:
            confirm(given.pop(0))
            app.sleep("1d")

        return sync

    with pytest.raises(Waiting):
        flow(stage.process())(1)
    stage.clock.advance(90_000)
    with pytest.raises(NeedsReview, match="another order"):
        flow(stage.process())(1)


def test_plain_data_from_a_door_becomes_the_model_by_names_or_aliases(stage: Stage) -> None:
    app = stage.process()

    @app.flow(key="order:{order.id}")
    def sync(order: Order) -> str | None:
        return order.note

    for number, name in enumerate(("note", "customerNote")):
        plain = {"id": number, "placed_at": "2026-03-01T09:30:00Z", name: "ring"}
        block(app.flows["sync"].start((plain,), {}, validate_now=True, from_json=True))
    app.worker().run(until_idle=True)
    assert {app.attach(flow="sync", key=f"order:{number}").result() for number in (0, 1)} == {"ring"}


def test_what_does_not_fit_the_model_is_refused_without_repeating_what_was_given(stage: Stage) -> None:
    app = stage.process()

    @app.flow(key="order:{number}")
    def sync(number: int, order: Order) -> None: ...

    with pytest.raises(Misuse, match=r"declares order: .*placed_at") as caught:
        sync.start(1, {"id": 1, "placed_at": "hunter2"})  # type: ignore[arg-type]
    assert "hunter2" not in str(caught.value)


def test_a_secret_is_refused_and_not_kept_masked(stage: Stage) -> None:
    class Login(pydantic.BaseModel):
        password: pydantic.SecretStr

    app = stage.process()

    @app.flow(key="login:{number}", ignore=("login",))
    def sync(number: int, login: Any) -> None: ...

    with pytest.raises(ValueRefused, match="holds a secret"):
        sync.start(1, Login(password="hunter2"))


def test_a_class_of_another_kind_is_still_refused(stage: Stage) -> None:
    class Own: ...

    app = stage.process()

    def look() -> Any:
        return Own()

    look.__annotations__ = {"return": list[Own]}
    with pytest.raises(Misuse, match="pydantic model"):
        app.once(key="look", repeat="safe")(look)()
