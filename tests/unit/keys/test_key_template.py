"""Key templates: what they render, refuse, and that no two events share a key."""

from __future__ import annotations

import enum
import types
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from unicodedata import normalize
from uuid import UUID

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from twiceproof.errors import KeyRefused, Misuse
from twiceproof.keys import Template, validate_key


class Stage(enum.Enum):
    PAID = "paid"
    NONE = None


ORDER = {
    "id": 10492,
    "lines": [{"sku": "A-1"}],
    "_id": "mongo",
    "@id": "ld",
    "customer": types.SimpleNamespace(id=7),
}


@pytest.mark.parametrize(
    ("template", "key"),
    [
        ("shop:order:{order[id]}", "shop:order:10492"),
        ("{order[id]}", "10492"),
        ("{order[lines][0][sku]}", "A-1"),
        ("{order[customer].id}!", "7!"),
        ("{order[_id]}", "mongo"),
        ("{order[@id]}", "ld"),
        ("{{{order[id]}}}", "{10492}"),
        ("{order[id]}:{order[id]}", "10492:10492"),
        ("nightly", "nightly"),
        ("a}}b{{", "a}b{"),
    ],
)
def test_a_template_renders_attributes_and_items(template, key):
    assert Template(template).render({"order": ORDER}) == key


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (-3, "-3"),
        ("0", "0"),
        (True, "true"),
        (False, "false"),
        (Decimal("1.10"), "1.1"),
        (Decimal(0), "0"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (date(2026, 1, 2), "2026-01-02"),
        (datetime(2026, 1, 2, 3, tzinfo=UTC), "2026-01-02T03:00:00Z"),
        (datetime(2026, 1, 2, 5, tzinfo=timezone(timedelta(hours=2))), "2026-01-02T03:00:00Z"),
        (Stage.PAID, "paid"),
        ("a:b%", "a:b%"),
    ],
    ids=repr,
)
def test_a_legal_value_has_this_text(value, text):
    assert Template("x:{v}").render({"v": value}) == "x:" + text


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (None, "None"),
        ("", "blank"),
        (" \t", "blank"),
        ("\u200b", "blank"),
        ("\ufeff", "blank"),
        ("\u3164", "blank"),
        ("\u2800 \u2800", "blank"),
        ("\U000e0041\u2065", "blank"),
        (Stage.NONE, "None"),
        (1.5, "float"),
        (1.0, "float"),
        (Decimal("NaN"), "NaN"),
        ({"id": 1}, "dict"),
        ([1], "list"),
        (b"x", "bytes"),
        (len, "builtin_function"),
    ],
    ids=ascii,
)
def test_a_value_without_a_safe_text_refuses_the_key_and_names_the_field(value, why):
    with pytest.raises(KeyRefused, match=why) as caught:
        Template("x:{order[v]}").render({"order": {"v": value}})
    assert caught.value.field == "order[v]"
    assert "order[v]" in str(caught.value)
    assert "use" in str(caught.value)


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("{order[nope]}", "has none"),
        ("{order.id}", r"write \[id\] instead of \.id"),
        ("{order[customer][id]}", r"write \.id instead of \[id\]"),
        ("{order[lines][5]}", "has none"),
        ("{order[id][x]}", "has none"),
        ("{order[none][x]}", "is None"),
        ("{other[id]}", "has no other: there is only order; use a name that is there"),
    ],
)
def test_a_missing_field_refuses_the_key_and_says_why(template, why):
    with pytest.raises(KeyRefused, match=why) as caught:
        Template(template).render({"order": ORDER | {"none": None}})
    assert caught.value.field == template.strip("{}")


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("a{", "'{' at 1"),
        ("ab}", "'}' at 2"),
        ("{a{b}}", "at 0"),
        ("x{}", "at 1 does not begin"),
        ("{0}", "does not begin"),
        ("{_private}", "does not begin"),
        ("{order.__class__}", "private"),
        ("{order._id}", "private"),
        ("{order[__class__]}", "private"),
        ("{order!r}", "conversion"),
        ("{order:>5}", "format"),
        ("{order[id]:d}", "format"),
        ("{order.get()}", "calls"),
        ("{order[]}", "cannot be read"),
        ("{order.}", "cannot be read"),
        ("{order[id}", "cannot be read"),
        ("{ order }", "does not begin"),
        ("{a}{b}", "no separator"),
        ("{a}x{b}", "no separator"),
        ("{a}%{b}", "no separator"),
        ("{a}={b}", "no separator"),
        ("", "write one like"),
        ("  ", "write one like"),
        (7, "write one like"),
    ],
)
def test_a_bad_template_is_refused_when_it_is_read(template, why):
    with pytest.raises(Misuse, match=why) as caught:
        Template(template)
    assert "write" in str(caught.value) or "put" in str(caught.value)


def test_a_template_knows_the_arguments_it_uses():
    assert Template("{order[id]}:{order[x]}:{shop.id}").names == {"order", "shop"}
    assert [field.path for field in Template("{lines[0][sku]}:{a.b}").fields] == ["lines.0.sku", "a.b"]


def test_separators_inside_values_are_encoded_only_where_they_could_be_mistaken():
    both = {"a": "x:y/%", "b": "z"}
    assert Template("k:{a}").render(both) == "k:x:y/%"
    assert Template("k:{a}:{b}").render(both) == "k:x%3Ay/%25:z"
    assert Template("k:{a}/{b}").render(both) == "k:x:y%2F%25/z"
    assert Template("k:{a} of-{b}").render(both) == "k:x:y/%25 of-z"
    assert Template("k:{a}/of:{b}").render(both) == "k:x%3Ay/%25/of:z"


text = st.text(st.sampled_from("ab:%-/;3A=e.\u0301\u0338\u037e\u00e9\u1100\u1161"), min_size=1, max_size=6).filter(
    lambda text: text.strip("\u0301\u0338")  # marks alone cannot be seen, and are refused
)
literals = st.lists(st.text(st.sampled_from("a:-/=<e\u0301\u1100%;3A"), max_size=4), min_size=3, max_size=4)


@given(literals, st.lists(text, min_size=3, max_size=3), st.lists(text, min_size=3, max_size=3))
@example([":", ":", ""], ["a:b", "c", "x"], ["a", "b:c", "x"])
@example([":", ":", ""], ["a%3Ab", "c", "x"], ["a:b", "c", "x"])
@example(["", ";", ""], ["a\u037eb", "c", "x"], ["a", "b\u037ec", "x"])
@example(["", "=:", ""], ["a", "\u0338c\u2260b", "x"], ["a\u2260c", "\u0338b", "x"])
def test_two_different_events_never_share_a_key(literals, one, two):
    names = ["f0", "f1", "f2"][: len(literals) - 1]
    try:
        template = Template(literals[0] + "".join(f"{{{n}}}{x}" for n, x in zip(names, literals[1:], strict=True)))
    except Misuse:
        assume(False)
    one, two = one[: len(names)], two[: len(names)]
    different = [normalize("NFC", part) for part in one] != [normalize("NFC", part) for part in two]
    keys = [normalize("NFC", template.render(dict(zip(names, parts, strict=True)))) for parts in (one, two)]
    assert (keys[0] != keys[1]) == different


@given(text, text)
def test_one_field_keeps_its_value_and_two_values_stay_two(one, two):
    template = Template("shop:e{a}")
    assert template.render({"a": one}) == "shop:e" + one
    same = normalize("NFC", one) == normalize("NFC", two)
    assert (validate_key(template.render({"a": one})) == validate_key(template.render({"a": two}))) == same


def test_a_template_shows_itself():
    assert repr(Template("a:{b}")) == "Template('a:{b}')"


@pytest.mark.parametrize("unseen", ["\u200b", "\ufeff", "\u3164", "\u2800"], ids=ascii)
def test_what_nobody_can_see_within_a_field_is_part_of_it(unseen):
    assert Template("x:{v}:{w}").render({"v": f"a{unseen}", "w": 1}) == f"x:a{unseen}:1"
