"""Results: what comes back equal, what comes back plain, and what is done though it cannot come back."""

from __future__ import annotations

import dataclasses
import math
import warnings
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec
import pytest

from twiceproof import App, Misuse, ResultNotKept, ResultTypeWarning
from twiceproof.claims.claim import Held
from twiceproof.claims.results import INLINE_LIMIT, SPILL_LIMIT, pack

if TYPE_CHECKING:
    from nowhere import Order


@dataclasses.dataclass
class Receipt:
    id: int
    total: Decimal
    at: datetime


class Invoice(msgspec.Struct):
    id: UUID
    lines: tuple[int, ...]
    seen: set[str]


class Tree(msgspec.Struct):
    id: int
    below: list[Tree]


class Handle:
    """Has no JSON form."""


@dataclasses.dataclass
class Wrapped:
    handles: tuple[Handle, ...]


RECEIPT = Receipt(7, Decimal("12.50"), datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))
INVOICE = Invoice(UUID(int=5), (1, 2), {"a"})


def receipt(order: int) -> Receipt:
    return RECEIPT


def invoice(order: int) -> Invoice:
    return INVOICE


def moment(order: int) -> datetime:
    return RECEIPT.at


def amount(order: int) -> Decimal:
    return Decimal("0.10")


def ident(order: int) -> UUID:
    return UUID(int=9)


def pair(order: int) -> tuple[int, str]:
    return (1, "a")


def group(order: int) -> set[int]:
    return {3, 1, 2}


def huge(order: int) -> int:
    return 2**70


def tree(order: int) -> Tree:
    return Tree(1, [Tree(2, [])])


def nothing(order: int) -> None:
    return None


def several(order: int) -> list[Receipt] | None:
    return [RECEIPT, RECEIPT]


def raw(order: int) -> bytes:
    return b"\x00\xff"


def anything(order: int) -> dict[str, object]:
    return {"a": [1, "b", None]}


def plain(order: int):  # type: ignore[no-untyped-def]
    return {"a": [1, 2.5, None, True, "é\0"]}


@pytest.mark.parametrize(
    "body",
    [receipt, invoice, moment, amount, ident, pair, group, nothing, several, raw, huge, tree, anything, plain],
    ids=lambda f: f.__name__,
)
def test_a_declared_result_comes_back_equal_and_of_its_type(memory: App, style: Any, body: Any) -> None:
    pay = style.once(memory, body)
    first, second = pay(1), pay(1)
    assert first == second == body(1)
    assert type(first) is type(second) is type(body(1))


def test_every_kind_of_result_comes_back_from_a_file(app: App) -> None:
    for body in (receipt, invoice, moment, amount, ident, pair, group, nothing, several, raw, huge, tree, plain):
        pay = app.once(key="order:{order}", name=body.__name__)(body)
        assert pay(1) == pay(1) == body(1)


def test_a_result_of_null_is_a_result(memory: App, style: Any) -> None:
    runs: list[int] = []

    def pay(order: int) -> None:
        runs.append(order)

    guarded = style.once(memory, pay)
    assert (guarded(1), guarded(1), runs) == (None, None, [1])


def test_an_undeclared_dataclass_is_plain_json_the_first_time_too(memory: App, style: Any) -> None:
    def pay(order: int):  # type: ignore[no-untyped-def]
        return RECEIPT

    guarded = style.once(memory, pay)
    with pytest.warns(ResultTypeWarning, match="returns Receipt and does not declare it"):
        first = guarded(1)
    assert first == guarded(1) == {"id": 7, "total": "12.50", "at": "2026-01-02T03:04:05Z"}


@pytest.mark.parametrize("value", ["text", 1, 1.5, True, None, [1], {"a": 1}], ids=repr)
def test_an_undeclared_plain_value_needs_no_warning(memory: App, value: Any) -> None:
    @memory.once(key="order:{order}")
    def pay(order: int):  # type: ignore[no-untyped-def]
        return value

    assert pay(1) == pay(1) == value


def test_a_wrong_annotation_is_warned_of_and_loses_nothing(memory: App, style: Any) -> None:
    runs: list[int] = []

    def pay(order: int) -> int:
        runs.append(order)
        return "seven"  # type: ignore[return-value]

    guarded = style.once(memory, pay)
    for _ in range(2):
        with pytest.warns(ResultTypeWarning, match="something else than it declares"):
            assert guarded(1) == "seven"
    assert runs == [1]


def test_a_parameter_known_only_to_type_checkers_does_not_hide_the_results_type(memory: App) -> None:
    @memory.once(key="order:{order}")
    def pay(order: Order) -> Receipt:
        return RECEIPT

    assert pay(1) == pay(1) == RECEIPT


NOT_KEPT = {
    "NaN": math.nan,
    "infinity": [1, {"a": -math.inf}],
    "a lone surrogate": "\ud800",
    "an object": Handle(),
    "an object inside": {"a": [Handle()]},
    "itself inside": (lambda deep: deep.append(deep) or deep)([]),
}


@pytest.mark.parametrize("value", NOT_KEPT.values(), ids=NOT_KEPT.keys())
def test_a_result_without_json_form_is_done_and_handed_to_the_first_caller(memory: App, style: Any, value: Any) -> None:
    runs: list[int] = []

    def pay(order: int):  # type: ignore[no-untyped-def]
        runs.append(order)
        return value

    guarded = style.once(memory, pay)
    with pytest.warns(ResultTypeWarning, match="is not kept"):
        assert guarded(1) is value
    with pytest.raises(ResultNotKept, match="no JSON form") as told:
        guarded(1)
    assert (told.value.key, told.value.digest, runs) == ("order:1", "", [1])


def test_a_float_field_that_is_nan_in_a_dataclass_is_found(memory: App) -> None:
    @dataclasses.dataclass
    class Point:
        x: float
        y: float | None

    held = Held(msgspec.UNSET, 1, "ann", 1, "run_1", 1.0, 1.0)  # type: ignore[arg-type]
    assert bytes(pack(Point(math.nan, None), held).inline) == b""
    assert bytes(pack(Point(1.0, None), held).inline) == b'{"x":1.0,"y":null}'


@pytest.mark.parametrize("size", [INLINE_LIMIT - 2, INLINE_LIMIT - 1, SPILL_LIMIT - 2])
def test_a_large_result_comes_back_equal(app: App, size: int) -> None:
    text = "é" * 10 + "x" * (size - 20)

    @app.once(key="order:{order}")
    def pay(order: int) -> str:
        return text

    assert pay(1) == text
    assert pay(1) == text
    assert len(app.store.scan("resource").block().records) == (0 if size < INLINE_LIMIT - 1 else 1)


def test_a_large_dataclass_gets_its_type_back_from_the_resource(memory: App, style: Any) -> None:
    def pay(order: int) -> list[Receipt]:
        return [RECEIPT] * 2_000

    guarded = style.once(memory, pay)
    assert guarded(1) == guarded(1) == [RECEIPT] * 2_000
    assert len(memory.store.scan("resource").block().records) == 1


def test_a_result_over_eight_megabytes_leaves_its_digest(memory: App, style: Any) -> None:
    text = "x" * SPILL_LIMIT
    runs: list[int] = []

    def pay(order: int) -> str:
        runs.append(order)
        return text

    guarded = style.once(memory, pay)
    with pytest.warns(ResultTypeWarning, match="too large to keep"):
        assert guarded(1) == text
    with pytest.raises(ResultNotKept, match="too large to keep") as told:
        guarded(1)
    assert (told.value.size, len(told.value.digest), runs) == (SPILL_LIMIT + 2, 64, [1])
    assert not memory.store.scan("resource").block().records


def test_large_digest_keeps_no_large_result_and_every_small_one(memory: App) -> None:
    @memory.once(key="order:{order}", large="digest")
    def pay(order: int) -> str:
        return "x" * order

    assert pay(10) == pay(10)
    with pytest.warns(ResultTypeWarning, match="too large to keep"):
        pay(100_000)
    with pytest.raises(ResultNotKept):
        pay(100_000)


@pytest.mark.parametrize("kind", [Handle, list[Handle], dict[str, Handle | None], Wrapped], ids=str)
def test_a_return_type_without_json_form_is_refused_before_anything_runs(memory: App, style: Any, kind: Any) -> None:
    runs: list[int] = []

    def pay(order: int) -> Any:
        runs.append(order)

    pay.__annotations__["return"] = kind
    guarded = style.once(memory, pay)
    with pytest.raises(Misuse, match=r"pay returns .*, which has no JSON form \(Handle is"):
        guarded(1)
    assert runs == []
    assert not memory.store.scan("claim").block().records


def test_replays_are_equal_byte_for_byte(app: App) -> None:
    @app.once(key="order:{order}")
    def pay(order: int) -> dict[str, float]:
        return {"b": 0.1 + 0.2, "a": 1e22}

    pay(1)
    texts = {bytes(pay.look(1).result) for _ in range(3)}
    assert texts == {b'{"b":0.30000000000000004,"a":1e22}'}


def test_the_first_answer_is_what_a_replay_will_be(memory: App) -> None:
    """A caller must not be able to tell the first time from the second, not even by what it can change."""
    kept: list[int] = [1]

    @memory.once(key="order:{order}")
    def pay(order: int) -> list[int]:
        return kept

    first = pay(1)
    first.append(2)
    assert (kept, pay(1)) == ([1], [1])


def test_where_warnings_are_errors_the_claim_is_done_all_the_same(memory: App) -> None:
    runs: list[int] = []

    @memory.once(key="order:{order}")
    def pay(order: int):  # type: ignore[no-untyped-def]
        runs.append(order)
        return RECEIPT

    with warnings.catch_warnings(), pytest.raises(ResultTypeWarning):
        warnings.simplefilter("error")
        pay(1)
    assert pay(1)["id"] == 7
    assert runs == [1]


class Unequal:
    def __eq__(self, other: object) -> bool:
        raise ValueError("no")

    __hash__ = None  # type: ignore[assignment]


@dataclasses.dataclass(eq=False)
class Amount(Unequal):
    euro: int


INSIDE = [[datetime(2026, 1, 1, tzinfo=UTC)], {1: 2}, {"a": (1, 2)}, {"x": [Amount(1)]}, [Decimal("1.5")]]


@pytest.mark.parametrize("value", INSIDE, ids=repr)
def test_what_does_not_come_back_as_it_is_is_told_also_from_within_a_list_or_a_dict(memory: App, value: Any) -> None:
    @memory.once(key="order:{order}")
    def pay(order: int):  # type: ignore[no-untyped-def]
        return value

    with pytest.warns(ResultTypeWarning, match=r"something in it .* Annotate it"):
        first = pay(1)
    assert pay(1) == first


@pytest.mark.parametrize("value", [[], {}, [1, "a", None, 1.5, {"a": [True, {}]}], {"n": 2**63}], ids=repr)
def test_what_comes_back_as_it_is_is_not_warned_about(memory: App, value: Any) -> None:
    @memory.once(key="order:{order}")
    def pay(order: int):  # type: ignore[no-untyped-def]
        return value

    assert (pay(1), pay(1)) == (value, value)


def test_only_the_first_list_or_dict_of_a_function_is_looked_into(memory: App) -> None:
    """A look costs as much as another replay: it is not for every call."""

    @memory.once(key="order:{order}")
    def pay(order: int):  # type: ignore[no-untyped-def]
        return [order, (order,)] if order else []

    pay(0)
    with pytest.warns(ResultTypeWarning):
        pay(1)
    assert pay(2) == [2, [2]]


def test_the_warning_points_at_the_function_to_be_annotated(memory: App) -> None:
    @memory.once(key="order:{order}")
    def pay(order: int):  # type: ignore[no-untyped-def]
        return (order,)

    with pytest.warns(ResultTypeWarning, match="Annotate it") as seen:
        pay(1)
    assert [(one.filename, one.lineno) for one in seen] == [(__file__, pay.__wrapped__.__code__.co_firstlineno)]
