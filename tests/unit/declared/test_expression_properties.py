"""Expressions beside Python on the common subset, and hostile ones within a counted budget."""

from __future__ import annotations

import random
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twiceproof.declared import expression
from twiceproof.declared.expression import BUDGET, ExpressionError, compiled
from twiceproof.errors import NotDone

WHOLE = st.integers(-(10**40), 10**40)


def of(text: str, **scope: Any) -> Any:
    return compiled(text).evaluate(scope)


def sums(children: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    pair = st.tuples(children, st.sampled_from(["+", "-", "*"]), children)
    return pair.map(lambda given: f"({given[0]} {given[1]} {given[2]})")


LEAVES = st.one_of(WHOLE.map(lambda number: f"({number})"), st.sampled_from(["a", "b", "c"]))
SUMS = st.recursive(LEAVES, sums, max_leaves=8)


@settings(max_examples=300, deadline=None)
@given(SUMS, WHOLE, WHOLE, WHOLE)
def test_whole_numbers_are_those_of_python(text, a, b, c):
    scope = {"a": a, "b": b, "c": c}
    wanted = eval(text, {"__builtins__": {}}, scope)
    if abs(wanted) < 2**4_000:
        assert of(text, **scope) == wanted


@settings(max_examples=200, deadline=None)
@given(WHOLE, st.integers(1, 10**20), st.sampled_from(["//", "%"]))
def test_division_of_whole_numbers_is_that_of_python(a, b, sign):
    assert of(f"a {sign} b", a=a, b=b) == eval(f"a {sign} b", {"a": a, "b": b})


@settings(max_examples=300, deadline=None)
@given(st.decimals(-(10**6), 10**6, places=4), st.decimals(-(10**6), 10**6, places=4), st.sampled_from("+-*"))
def test_fractions_are_those_of_decimal(a, b, sign):
    made = of(f"text(({a}) {sign} ({b}))")
    wanted = {"+": a + b, "-": a - b, "*": a * b}[sign]
    assert Decimal(made) == wanted


def test_tenths_add_up():
    assert of("0.1 + 0.2 == 0.3") is True and of("0.1 + 0.2") == 0.3


WORDS = st.text("abc ", max_size=6)


@settings(max_examples=200, deadline=None)
@given(WORDS, WORDS, st.lists(st.integers(-5, 5), max_size=6))
def test_texts_and_lists_are_those_of_python(a, b, items):
    scope = {"a": a, "b": b, "items": items}
    for text in (
        "a + b",
        "a == b",
        "a < b",
        "a in b",
        "len(a) + len(items)",
        "[x + 1 for x in items if x > 0]",
        "sum(items)",
        '"x" if a == b else "y"',
        "not (a == b) and len(items) >= 0",
        "items + items",
        "2 in items",
    ):
        assert of(text, **scope) == eval(text, {"len": len, "sum": sum}, scope), text


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.booleans(), min_size=3, max_size=3),
    st.sampled_from(["a and b or c", "not a or b and c", "a or not (b and c)"]),
)
def test_words_of_logic_are_those_of_python(given_words, text):
    scope = dict(zip("abc", given_words, strict=True))
    assert of(text, **scope) is eval(text, {}, scope)


# -- hostile expressions -------------------------------------------------------------------------


def hostile(seed: int) -> str:
    """One of the kinds of attack on evaluators, with numbers of its own."""
    dice = random.Random(seed)
    size = dice.randint(5, 400)
    kinds = [
        lambda: "(" * size + "1" + ")" * size,
        lambda: "-" * size + "1",
        lambda: "not " * size + "true",
        lambda: "1" + " + 1" * dice.randint(500, 3_000),
        lambda: "items" + " + items" * size,
        lambda: '"a"' + ' + "' + "a" * size + '"' * 1 + " * 99999999",
        lambda: f"9 ** 9 ** {size}",
        lambda: f"{'9' * size} * {'9' * size} * {'9' * size} * {'9' * size}",
        lambda: " * ".join(["9" * 300] * 20),
        lambda: "[[x for x in items] for y in items]",
        lambda: "[x for x in items for y in items]",
        lambda: "sum([sum(items) for x in items])",
        lambda: f"().__class__.__bases__[0].__subclasses__()[{size}]",
        lambda: "items.__len__()",
        lambda: "items.clear()",
        lambda: "(lambda: 1)()",
        lambda: "{x: x for x in items}",
        lambda: f"'{{0.__class__}}'.format({size})",
        lambda: "f'{items!r}'",
        lambda: "__import__('os').system('true')",
        lambda: "open('/etc/passwd')",
        lambda: "(y := items)",
        lambda: "items[0:9999999]",
        lambda: "1 if " * size + "true",
        lambda: 'replace(join([text(x) for x in items], "aaaaaaaa"), "a", "' + "b" * size + '")',
        lambda: "json([items, items, items, items, items, items, items, items])",
        lambda: "a" * dice.randint(1_900, 5_000),
        lambda: "\x00" + "1",
        lambda: "1 +",
        lambda: "max(" + ", ".join(["1"] * 50) + ")",
    ]
    return kinds[seed % len(kinds)]()


ITEMS = list(range(9_000))


def test_a_thousand_hostile_expressions_end_within_the_budget(monkeypatch):
    spent: list[int] = []
    budget = expression._Budget

    class Counted(budget):
        def __init__(self) -> None:
            super().__init__()
            made.append(self)

    made: list[Any] = []
    monkeypatch.setattr(expression, "_Budget", Counted)
    for seed in range(1_000):
        made.clear()
        text = hostile(seed)
        try:
            of(text, items=ITEMS)
        except ExpressionError as error:
            assert 0 <= error.column <= len(text) + 1, text
        except NotDone as error:
            assert str(error)
        spent += [BUDGET - one.left for one in made]
    assert list(range(9_000)) == ITEMS  # nothing was changed
    assert spent and max(spent) <= BUDGET + 9_001  # the last part that was begun is counted whole


@pytest.mark.parametrize(
    "text",
    [
        "items.__class__",
        "().__class__",
        "__import__('os')",
        "items.clear()",
        "(lambda: 1)()",
        "9 ** 9",
        "'a' * 9",
        "a.b()",
    ],
)
def test_what_reaches_out_of_the_language_is_refused(text):
    with pytest.raises((ExpressionError, NotDone)):
        of(text, items=[1], a={"b": 1})
