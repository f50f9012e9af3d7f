"""Texts with fields, values of a file, and keys."""

from __future__ import annotations

import pytest

from twiceproof.declared.expression import ExpressionError
from twiceproof.declared.template import key_template, quoted, read_text, read_value
from twiceproof.declared.values import Missing
from twiceproof.errors import NotDone

SCOPE = {"order": {"id": 7, "name": "Ada & Bob/Co", "total": 1.1, "none": None, "empty": "", "lines": [{"sku": "x"}]}}


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("Your order {order.id}", "Your order 7"),
        ("{order[id]} and {order.lines[0].sku}", "7 and x"),
        ("{{order}} {order.total}", "{order} 1.1"),
        ("no fields", "no fields"),
    ],
)
def test_fields_are_filled_in(text, made):
    assert read_text(text).render(SCOPE) == made


@pytest.mark.parametrize("text", ["{order.nothing}", "{customer}"])
def test_a_field_that_is_not_there_is_a_mistake(text):
    with pytest.raises(Missing):
        read_text(text).render(SCOPE)


@pytest.mark.parametrize("text", ["{order.none}", "{order.empty}"])
def test_a_field_without_a_value_never_becomes_an_empty_text(text):
    with pytest.raises(NotDone, match="it is empty") as refused:
        read_text(text).render(SCOPE)
    assert not isinstance(refused.value, Missing)


def test_a_map_has_no_text():
    with pytest.raises(NotDone, match="name a field"):
        read_text("{order.lines}").render(SCOPE)


@pytest.mark.parametrize("text", ["{", "a } b", "{order.id + 1}", "{len(order)}", "{}", "{order.__class__}"])
def test_what_is_no_path_is_refused(text):
    with pytest.raises(ExpressionError):
        read_text(text)


def test_a_field_in_a_url_cannot_leave_its_part():
    text = read_text("/customers/{order.name}/x")
    assert text.render(SCOPE, quoted) == "/customers/Ada%20%26%20Bob%2FCo/x"


def test_a_value_is_a_text_an_expression_or_a_tree_of_them():
    value = read_value(
        {"id": "=order.id", "text": "No {order.id}", "sign": "==x", "n": 5, "list": ["=order.total", None]}
    )
    assert value.evaluate(SCOPE) == {"id": 7, "text": "No 7", "sign": "=x", "n": 5, "list": [1.1, None]}
    assert [use.path for use in value.names] == [("order", "id"), ("order", "id"), ("order", "total")]


def test_a_key_reaches_into_maps_however_it_is_written():
    assert key_template("shop:{order.id}:{order[stage]}") == "shop:{order[id]}:{order[stage]}"
    assert key_template("{{x}}:{id}") == "{{x}}:{id}"
