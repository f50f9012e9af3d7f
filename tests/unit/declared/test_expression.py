"""Expressions: exact numbers, missing names, a budget; compared with Python on what both know."""

from __future__ import annotations

import contextlib
import operator
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twiceproof.declared import expression
from twiceproof.declared.expression import ExpressionError, compiled
from twiceproof.declared.functions import FUNCTIONS
from twiceproof.declared.values import BUDGET, Missing
from twiceproof.errors import NotDone

ORDER = {
    "id": 10492,
    "total": 120.5,
    "note": None,
    "tags": ["a", "b"],
    "lines": [{"sku": "x", "qty": 2, "price": 1.1}, {"sku": "y", "qty": 0, "price": 2.2}],
}


def value(text: str, **scope: object) -> object:
    return compiled(text).evaluate({"order": ORDER, **scope})


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("0.1 + 0.2 == 0.3", True),
        ("0.1 + 0.2", 0.3),
        ("order.total > 5000", False),
        ("100 < order.total <= 120.5", True),
        ("order.id in [1, 10492]", True),
        ('"a" in order.tags and not "z" in order.tags', True),
        ('order.note == null or order.note == ""', True),
        ("order.note is null", True),
        ("[line.sku for line in order.lines if line.qty > 0]", ["x"]),
        ("sum([line.price for line in order.lines])", 3.3),
        ("order.lines[1].sku", "y"),
        ("order.lines[-1].qty", 0),
        ('order["id"] + 1', 10493),
        ("7 // 2 + 7 % 2", 4),
        ("order.total / 3", 40.1666666666667),
        ("round(2.675, 2)", 2.68),
        ("round(2.5)", 2),
        ("max(1, 2.5)", 2.5),
        ('upper("a") + lower("B") + trim(" c ")', "Abc"),
        ('join(order.tags, "-")', "a-b"),
        ('split("a,b", ",")', ["a", "b"]),
        ('replace("a-b", "-", "")', "ab"),
        ('starts("abc", "a") and ends("abc", "c")', True),
        ('number("1.5") * 2', 3),
        ("text(1.10)", "1.1"),
        ('date("2026-03-29T23:30:00-02:00")', "2026-03-30"),
        ('days_between("2026-03-28", "2026-03-30T01:00:00Z")', 2),
        ('sha256("a")', "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb"),
        ('{"id": order.id, "n": len(order.lines)}', {"id": 10492, "n": 2}),
        ("json(order.tags)", '["a","b"]'),
        ('default(order.nothing.at.all, "x")', "x"),
        ('default(order.note, "x")', "x"),
        ('"yes" if order.id > 1 else "no"', "yes"),
        ("-order.id", -10492),
        (f"{10**40} + 1", 10**40 + 1),
    ],
)
def test_an_expression_has_its_value(text, result):
    assert value(text) == result


def test_a_missing_name_is_an_error_with_its_path():
    with pytest.raises(Missing, match=r"order\.totl: there is none; there are id, total"):
        value("order.totl > 1")
    with pytest.raises(Missing, match=r"order\.lines\[7\]: the list has 2 items"):
        value("order.lines[7].sku")
    with pytest.raises(Missing, match=r"order\.note\.text: what it is looked for in is null"):
        value("order.note.text")
    with pytest.raises(Missing, match="customer"):
        value("customer.id")


def test_only_the_path_of_a_default_may_be_missing():
    with pytest.raises(Missing):
        value("default(order.note, order.nothing)")


@pytest.mark.parametrize(
    "text",
    [
        '1 + "a"',
        "order.total and true",
        "not order.id",
        '"a" < 1',
        "order.lines > 1",
        "1 / 0",
        "len(5)",
        "number('x')",
        "number('9e999')",
        "min([])",
        "min(1, 'a')",
        "round(1, 20)",
        "split('a', '')",
        "date('tomorrow')",
        "5 in 5",
        "1 is 1",
    ],
)
def test_what_does_not_fit_fails_for_good_and_names_the_expression(text):
    with pytest.raises(NotDone) as caught:
        value(text)
    assert caught.value.data["final"] is True


@pytest.mark.parametrize(
    "text",
    [
        "",
        "order.",
        "lambda: 1",
        "(x := 1)",
        "f'{order}'",
        "order.__class__",
        "_x",
        "().__class__",
        "open('x')",
        "order.get('id')",
        "len(x=1)",
        "len(*order.tags)",
        "2 ** 9",
        "1 << 9",
        "{1, 2}",
        "(1, 2)",
        "{x: 1 for x in order.tags}",
        "[x for a in order.tags for x in a]",
        "[[y for y in order.tags] for x in order.tags]",
        "order.tags[0:1]",
        "await x",
        "b'x'",
        "1j",
        "None",
        "...",
        "{1: 2}",
        "default(1)",
        "len()",
        "x if y",
        "a" * 3_000,
        "(" * 60 + "1" + ")" * 60 + "+",
        "+".join(["(1"] * 50) + ")" * 50,
        "\x00",
    ],
)
def test_what_is_not_part_of_the_language_is_refused_when_it_is_read(text):
    with pytest.raises(ExpressionError):
        compiled(text)


def test_names_are_known_before_anything_runs():
    names = compiled('order.customer.name + default(order.note, "") + order.lines[0].sku').names
    assert [(".".join(use.path), use.optional) for use in names] == [
        ("order.customer.name", False),
        ("order.note", True),
        ("order.lines", False),
    ]
    assert [use.column for use in compiled("a.b + c").names] == [0, 6]
    assert compiled("[x.id for x in items]").names[0].path == ("items",)


def test_an_evaluation_has_a_budget():
    scope = {"items": list(range(BUDGET))}
    with pytest.raises(NotDone, match="more than"):
        compiled("[x + 1 for x in items]").evaluate(scope)
    with pytest.raises(NotDone, match="more than"):
        compiled("[sum(items) for x in items]").evaluate({"items": list(range(500))})
    assert compiled("sum([x + 1 for x in items])").evaluate({"items": list(range(1_000))}) == 500_500


@pytest.mark.parametrize("seed", range(20))
def test_texts_lists_and_numbers_cannot_grow_without_bound(seed):
    grown = {0: "replace(a, 'x', a)", 1: "a + a", 2: "[a, a, a]", 3: "n * n"}[seed % 4]
    scope = {"a": "x" * 90_000, "n": 1 << 4_000}
    if seed % 4 == 2:
        assert len(compiled(grown).evaluate(scope)) == 3
        return
    with pytest.raises(NotDone):
        compiled(grown).evaluate(scope)


def test_a_number_that_json_would_round_is_refused():
    long = Decimal("0.1234567890123456789012")
    with pytest.raises(NotDone, match="more digits"):
        compiled("x").evaluate({"x": long})
    assert compiled("text(x)").evaluate({"x": long}) == "0.1234567890123456789012"
    assert compiled("round(x, 4)").evaluate({"x": long}) == 0.1235


NUMBERS = st.integers(-(10**40), 10**40)
SIGNS = {"+": operator.add, "-": operator.sub, "*": operator.mul}
COMPARISONS = {"<": operator.lt, "<=": operator.le, "==": operator.eq, "!=": operator.ne, ">": operator.gt}


@given(NUMBERS, NUMBERS, st.sampled_from(sorted(SIGNS)))
def test_whole_numbers_are_calculated_as_python_does(a, b, sign):
    assert compiled(f"a {sign} b").evaluate({"a": a, "b": b}) == SIGNS[sign](a, b)


@given(NUMBERS, NUMBERS, st.sampled_from(sorted(COMPARISONS)))
def test_numbers_are_compared_as_python_does(a, b, sign):
    assert compiled(f"a {sign} b").evaluate({"a": a, "b": b}) is COMPARISONS[sign](a, b)


@given(st.decimals(-(10**6), 10**6, places=2), st.decimals(-(10**6), 10**6, places=2))
def test_amounts_are_added_exactly(a, b):
    assert compiled("a + b").evaluate({"a": a, "b": b}) == float(a + b)


@given(st.text(max_size=200))
def test_no_text_does_anything_but_read_or_be_refused(text):
    with contextlib.suppress(ExpressionError, NotDone):
        compiled(text).evaluate({"order": ORDER})


def test_nothing_changes_the_data():
    before = repr(ORDER)
    for function in FUNCTIONS.values():
        compiled(function.usage.replace("customer", "order").replace("file", "order"))
    value("[line.sku for line in order.lines]")
    assert repr(ORDER) == before


def test_equal_values_of_different_kinds_are_not_equal():
    assert value('1 == "1"') is False and value("1 == true") is False and value("[1, 2.0] == [1.0, 2]") is True
    assert expression.to_plain(ORDER) is ORDER
