"""Keys made from templates and functions, for a function's arguments."""

from __future__ import annotations

import inspect
import operator

import pytest

from twiceproof.errors import KeyRefused, Misuse
from twiceproof.keys import KeyMaker


def sync(order, db=None): ...


def spread(*events, **more): ...


CALL = {"order": {"id": 7}, "db": "db"}


def test_a_template_makes_a_validated_key():
    assert KeyMaker("order:{order[id]}", sync).make(CALL) == "order:7"
    assert KeyMaker("order:{order[id]}", inspect.signature(sync)).make({"order": {"id": "e\u0301"}}) == "order:\u00e9"


def test_a_rendered_key_is_validated_too():
    with pytest.raises(KeyRefused, match="control character"):
        KeyMaker("order:{order[id]}", sync).make({"order": {"id": "a\nb"}})


def test_a_template_for_an_argument_the_function_does_not_take_is_refused_at_once():
    with pytest.raises(Misuse, match=r"uses {ordr}.* takes \(order, db\)"):
        KeyMaker("order:{ordr[id]}", sync)


def test_a_template_finds_keyword_arguments_by_the_hint_it_gives():
    with pytest.raises(Misuse, match=r"or {more\[order_id\]}"):
        KeyMaker("{order_id}", spread)
    assert KeyMaker("{more[order_id]}", spread).make({"events": (), "more": {"order_id": 3}}) == "3"


@pytest.mark.parametrize(
    "function",
    [
        lambda order: f"k:{order['id']}",
        lambda db, order: f"k:{order['id']}" if db == "db" else "mixed up",
        lambda *, order: f"k:{order['id']}",
        lambda order, prefix="k": f"{prefix}:{order['id']}",
        lambda **call: f"k:{call['order']['id']}",
        lambda first, second: f"k:{first['id']}" if second == "db" else "mixed up",
        lambda order, db, /: f"k:{order['id']}" if db == "db" else "mixed up",
        lambda first, second, /: f"k:{first['id']}" if second == "db" else "mixed up",
        lambda *call: f"k:{call[0]['id']}",
    ],
    ids=[
        "one name",
        "names in another order",
        "keyword only",
        "own default",
        "**",
        "by place",
        "names by place only",
        "by place only",
        "*",
    ],
)
def test_a_function_gets_the_arguments_by_name_or_else_by_place(function):
    assert KeyMaker(function, sync).make(CALL) == "k:7"


def test_a_function_by_place_gets_starred_arguments_spread():
    assert KeyMaker(lambda a, b: a + b, spread).make({"events": ("x", "y"), "more": {}}) == "xy"


def test_a_function_without_a_signature_is_called_by_place():
    def one(order): ...

    assert KeyMaker(operator.itemgetter("id"), one).make({"order": {"id": "x"}}) == "x"


def test_a_function_of_nothing_makes_one_key_for_all():
    assert KeyMaker(lambda: "once", sync).make(CALL) == "once"


def test_a_function_that_does_not_fit_is_refused_at_once():
    with pytest.raises(Misuse, match=r"takes \(o\), the function \(order, db\); name"):
        KeyMaker(lambda o: o["id"], sync)


@pytest.mark.parametrize(("made", "why"), [(None, "gave None"), (7, "gave a int"), (b"x", "gave a bytes")])
def test_a_function_that_gives_no_text_is_refused(made, why):
    with pytest.raises(KeyRefused, match=f"{why}, not text; return"):
        KeyMaker(lambda: made, sync).make(CALL)


@pytest.mark.parametrize("made", ["", " ", "a\x00", "x" * 2000])
def test_a_functions_text_is_validated(made):
    with pytest.raises(KeyRefused):
        KeyMaker(lambda: made, sync).make(CALL)


async def make_later() -> str:
    return "k"


def test_an_async_function_is_refused_at_once_and_its_disguise_when_called():
    with pytest.raises(Misuse, match="is async"):
        KeyMaker(make_later, sync)
    with pytest.raises(KeyRefused, match="gave a coroutine"):
        KeyMaker(lambda: make_later(), sync).make(CALL)


@pytest.mark.parametrize("key", [None, 7, ("a",)])
def test_a_key_that_is_neither_text_nor_function_is_refused(key):
    with pytest.raises(Misuse, match="neither text nor a function"):
        KeyMaker(key, sync)
