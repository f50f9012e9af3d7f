"""Canonical JSON: the table of vectors, what is refused, and what takes the fast path."""

from __future__ import annotations

import dataclasses
import enum
import types
from collections import OrderedDict
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
import pytest

from twiceproof.errors import ValueRefused
from twiceproof.keys.canonical import DEEPEST, canonical, canonical_fast, canonical_slowly

PLUS_TWO = timezone(timedelta(hours=2))


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


class Mode(enum.StrEnum):
    LIVE = "live!"


class OldMode(str, enum.Enum):  # noqa: UP042  the form people wrote before StrEnum
    LIVE = "live!"


@dataclasses.dataclass
class Line:
    sku: str
    count: int = 1


class Order(msgspec.Struct, rename="camel"):
    order_id: int
    note: str | msgspec.UnsetType = msgspec.UNSET


class Paid(msgspec.Struct, tag="paid"):
    id: int


class NumpyLikeFloat(float):
    def __repr__(self) -> str:
        return f"np.float64({float(self)})"


class ShoutingText(str):
    def __str__(self) -> str:
        return self.upper()


VECTORS: list[tuple[Any, str]] = [
    (None, "null"),
    (True, "true"),
    (1, "1"),
    (-7, "-7"),
    (2**70, "1180591620717411303424"),
    (1.0, "1"),
    (-0.0, "0"),
    (19.99, "19.99"),
    (0.1 + 0.2, "0.30000000000000004"),
    (1e-7, "0.0000001"),
    (1.5e-5, "0.000015"),
    (1e16, "10000000000000000"),
    (1e23, "1" + "0" * 23),
    (-2.5e20, "-250000000000000000000"),
    (NumpyLikeFloat(0.5), "0.5"),
    (Decimal("1.10"), "1.1"),
    (Decimal("1.00"), "1"),
    (Decimal("-0.00"), "0"),
    (Decimal("1E+3"), "1000"),
    (Decimal("0.10"), "0.1"),
    (Decimal("0E-999999"), "0"),
    (Decimal("12345678901234567890.123456789012345678901"), "12345678901234567890.123456789012345678901"),
    ("", '""'),
    ('say "hi"\\', r'"say \"hi\"\\"'),
    ("\x00\n\x1f", r'"\u0000\n\u001f"'),
    ("e\u0301", '"é"'),
    ("\u2028😀", '"\u2028😀"'),
    (ShoutingText("quiet"), '"quiet"'),
    (datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), '"2026-01-02T03:04:05Z"'),
    (datetime(2026, 1, 2, 3, 4, 5, 60, tzinfo=PLUS_TWO), '"2026-01-02T01:04:05.000060Z"'),
    (datetime(2026, 1, 2, 3, 4, 5), '"2026-01-02T03:04:05"'),
    (date(2026, 1, 2), '"2026-01-02"'),
    (time(3, 4), '"03:04:00"'),
    (time(3, 4, tzinfo=UTC), '"03:04:00Z"'),
    (time(3, 4, tzinfo=PLUS_TWO), '"03:04:00+02:00"'),
    (timedelta(days=1, seconds=2, microseconds=500), '"P1DT2.0005S"'),
    (timedelta(0), '"P0D"'),
    (UUID(int=5), '"00000000-0000-0000-0000-000000000005"'),
    (Colour.RED, '"red"'),
    (Level.HIGH, "3"),
    (Mode.LIVE, '"live!"'),
    (OldMode.LIVE, '"live!"'),
    (b"\x00\xff", '"AP8="'),
    (bytearray(b"\x00\xff"), '"AP8="'),
    (memoryview(b"\x00\xff"), '"AP8="'),
    ([1, [2]], "[1,[2]]"),
    ((1, (2,)), "[1,[2]]"),
    ({3, 20, 1}, "[1,20,3]"),
    (frozenset({"b", "a"}), '["a","b"]'),
    ({}, "{}"),
    ({"b": 1, "a": 2, "B": 3, "é": 4, "aa": 5}, '{"B":3,"a":2,"aa":5,"b":1,"é":4}'),
    (OrderedDict(b=1, a=2), '{"a":2,"b":1}'),
    (types.MappingProxyType({"b": 1, "a": 2}), '{"a":2,"b":1}'),
    ({2: "b", 10: "a"}, '{"10":"a","2":"b"}'),
    ({Mode.LIVE: 1}, '{"live!":1}'),
    (Line("A"), '{"count":1,"sku":"A"}'),
    (Order(7), '{"orderId":7}'),
    (Paid(7), '{"id":7,"type":"paid"}'),
]


@pytest.mark.parametrize(("value", "text"), VECTORS)
def test_a_value_has_the_text_written_down_here(value, text):
    assert canonical(value).decode() == text
    assert canonical({"in": [value]}).decode() == f'{{"in":[{text}]}}'
    assert canonical({"in": value}).decode() == f'{{"in":{text}}}'


def test_an_int_of_more_digits_than_python_prints_has_a_text():
    assert canonical([10**5000]) == canonical_slowly([10**5000]) == b"[1" + b"0" * 5000 + b"]"


SAME = [
    (1, 1.0, Decimal("1.00")),
    (0.1, Decimal("0.1"), Decimal("0.100")),
    ("\u00e9", "e\u0301"),
    ({"\u00e9": 1}, {"e\u0301": 1}),
    ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    (datetime(2026, 1, 1, 12, tzinfo=UTC), datetime(2026, 1, 1, 14, tzinfo=PLUS_TWO)),
]
OTHER = [
    (1, True, "1", None, [1]),
    (0, False, "", None, [], {}),
    (datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 1), date(2026, 1, 1)),
    (0.1, 0.1 + 1e-16, Decimal("0.10000000000000001")),
    ("a", "A", "a ", "\u0430"),
    ([1, 2], [2, 1], [[1], 2]),
]


@pytest.mark.parametrize("values", SAME)
def test_equal_requests_have_one_text(values):
    assert len({canonical(value) for value in values}) == 1


@pytest.mark.parametrize("values", OTHER)
def test_different_requests_have_different_texts(values):
    assert len({canonical(value) for value in values}) == len(values)


def deep(levels: int) -> Any:
    value: Any = []
    for _ in range(levels - 1):
        value = [value]
    return value


def cyclic() -> Any:
    value: dict[str, Any] = {}
    value["me"] = value
    return value


REFUSED = [
    ({"order": {"lines": [0, 0, 0, {"price": float("nan")}]}}, "order.lines[3].price", "NaN and infinity"),
    ({"a": float("-inf")}, "a", "NaN and infinity"),
    ({"a": Decimal("sNaN")}, "a", "NaN and infinity"),
    ({"a": Decimal("1E+999999")}, "a", "digits"),
    ({"a": "\ud800"}, "a", "surrogate"),
    ({"a": {"\udfff": 1}}, "a['\\udfff']", "surrogate"),
    ({"db": object()}, "db", 'ignore=("db",)'),
    ({"order": {"db": object()}}, "order.db", 'ignore=("order.db",)'),
    ({"order": [object()]}, "order[0]", 'ignore=("name",)'),
    ({"a": [1, lambda: 1]}, "a[1]", "function"),
    ({"a": Line}, "a", "type"),
    ({"a": {1: "x", "1": "y"}}, "a", "key of type int"),
    ({"a": {True: "x"}}, "a", "key of type bool"),
    ({"a": {None: "x"}}, "a", "key of type NoneType"),
    ({"a": {"\u00e9": 1, "e\u0301": 2}}, "a", "two keys"),
    ({"odd key": {3}, "b": {"x y": object()}}, "b['x y']", "object"),
    ({"a": Line(sku=object())}, "a.sku", "object"),  # type: ignore[arg-type]
    ({"a": datetime.min.replace(tzinfo=PLUS_TWO)}, "a", "years 1 to 9999"),
    (object(), "the value", "object"),
]


@pytest.mark.parametrize(("value", "path", "why"), REFUSED)
def test_a_value_without_a_text_is_refused_by_its_path(value, path, why):
    with pytest.raises(ValueRefused) as caught:
        canonical(value)
    assert caught.value.path == path
    assert str(caught.value).startswith(path + " ")
    assert why in str(caught.value)


def test_nesting_is_legal_up_to_the_limit_and_refused_beyond_it():
    assert canonical(deep(DEEPEST)) == canonical_slowly(deep(DEEPEST)) == b"[" * DEEPEST + b"]" * DEEPEST
    for encode in (canonical, canonical_slowly):
        with pytest.raises(ValueRefused, match="deeper than 100"):
            encode(deep(DEEPEST + 1))


@pytest.mark.parametrize("value", [deep(10_000), cyclic()], ids=["10,000 levels", "cycle"])
def test_bottomless_values_are_refused_in_a_short_message(value):
    with pytest.raises(ValueRefused, match="contains itself") as caught:
        canonical(value)
    assert len(str(caught.value)) < 400


def test_the_slow_path_shares_nothing_with_a_set_iteration_order():
    assert canonical({f"k{n}" for n in range(100)}) == canonical(sorted(f"k{n}" for n in range(100)))


@pytest.mark.parametrize(
    "value", [1.0, 1e-5, 1e15, 1e300, float("nan"), Decimal(1), "é", (1,), Colour.RED, {1: 1}, {"é": 1}]
)
def test_what_the_fast_path_would_write_otherwise_does_not_take_it(value):
    assert canonical_fast({"a": [value]}) is None


@pytest.mark.parametrize("value", [1, 2**80, -1.25, True, None, "a", [1], {"a": {"b": [1]}}])
def test_plain_json_takes_the_fast_path(value):
    assert canonical_fast({"a": [value]}) is not None
