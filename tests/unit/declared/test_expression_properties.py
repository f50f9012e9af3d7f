"""Expressions beside Python on the common subset, and hostile ones within a counted budget."""

from __future__ import annotations

import random
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twiceproof.declared import expression
from twiceproof.declared.expression import ExpressionError, compiled
from twiceproof.declared.values import BUDGET
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
    budget = expression.EvaluationBudget

    class Counted(budget):
        def __init__(self) -> None:
            super().__init__()
            made.append(self)

    made: list[Any] = []
    monkeypatch.setattr(expression, "EvaluationBudget", Counted)
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


# -- what an event brings counts, too ----------------------------------------------------------------------


MANY = list(range(60_000))
LONG = "x" * 100_000


@pytest.mark.parametrize(
    "text",
    [
        "[x for x in few if x in many]",
        "[x for x in few if -1 in many]",
        "[x for x in few if deep == other]",
        "[x for x in few if deep in [other, other]]",
        "[x for x in few if part in maps]",
        '[x for x in few if "y" in long]',
        "[sha256(long) for x in few]",
        "[long + text(x) for x in few]",
        "[many10k + [x] for x in few]",
        '[split(words, " ") for x in few]',
        "json([long for x in few])",
        'join([long for x in few], "")',
        "join([text(x) for x in few], long)",
    ],
)
def test_a_large_event_does_not_make_a_short_expression_work_for_long(text, monkeypatch):
    """The limit of the work is counted where it is done: in comparisons, and in characters that are copied."""
    compared: list[int] = []
    real = expression.compared
    monkeypatch.setattr("twiceproof.declared.values.compared", lambda *a, **k: compared.append(1) or real(*a, **k))
    part = {"id": list(range(500))}
    scope = {"few": list(range(3_000)), "many": [-2] * 60_000, "long": LONG, "words": "a " * 9_000, "part": part}
    scope |= {"deep": {"a": MANY}, "other": {"a": list(MANY)}, "maps": [{"id": 1}] * 3_000, "many10k": MANY[:9_900]}
    with pytest.raises(NotDone, match=r"needs more than 20,000 steps|longer than 100,000 characters"):
        of(text, **scope)
    assert len(compared) <= BUDGET * expression.AT_ONCE


def test_what_a_flow_compares_fits_into_the_budget():
    lines = [{"sku": f"s{number}", "qty": number % 3} for number in range(500)]
    known = [f"s{number}" for number in range(500)]
    assert len(of("[x.sku for x in lines if x.sku in known and x.qty > 0]", lines=lines, known=known)) == 333
    assert of("number in many and deep == same", number=59_999, many=MANY, deep=[MANY], same=[list(MANY)]) is True
    assert len(of("sha256(report)", report="x" * 5_000_000)) == 64


# -- exact, or refused ---------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(
    st.decimals(-(10**6), 10**6, places=3),
    st.decimals(1, 10**3, places=2),
    st.sampled_from("+-"),
    st.sampled_from(["//", "%"]),
)
def test_division_of_fractions_rounds_down_as_that_of_whole_numbers(a, b, side, sign):
    """An amount of -7.0 must not have another remainder than one of -7."""
    divisor = b if side == "+" else -b
    whole = int(a * 1000), int(divisor * 1000)
    wanted = whole[0] // whole[1] if sign == "//" else Decimal(whole[0] % whole[1]) / 1000
    assert Decimal(of(f"text(({a}) {sign} ({divisor}))")) == wanted


def test_no_digit_is_lost_silently():
    digits = "12345678901234567890123456789012345.5"
    assert of(f'-number("{digits}") == number("-{digits}")') is True
    assert of("text(0.12345678901234567890123)") == "0.12345678901234567890123"
    for text in ("1e250 + 1 == 1e250", "sum([1e250, 1])", "1e-150 * 1.1e-120 + 1"):
        with pytest.raises(NotDone, match="too large"):
            of(text)


@pytest.mark.parametrize("text", ["1e999", "1e-999", "1 < 1e999"])
def test_a_number_without_end_is_refused_when_it_is_read(text):
    with pytest.raises(ExpressionError, match="too large, or too small"):
        of(text)


def test_half_a_character_is_refused_when_it_is_read():
    with pytest.raises(ExpressionError, match="half a character"):
        of(r'"\ud800"')


@pytest.mark.parametrize("text", ['"0001-01-01T00:00:00+10:00"', '"9999-12-31T23:59:59-10:00"'])
def test_a_date_beyond_the_calendar_is_refused_with_its_text(text):
    for call in (f"date({text})", f"days_between({text}, {text})"):
        with pytest.raises(NotDone, match="before the year 1"):
            of(call)
