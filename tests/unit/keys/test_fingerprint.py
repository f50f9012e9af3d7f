"""Fingerprints: what they leave out, what they do not, and hashes of bodies."""

from __future__ import annotations

import dataclasses
from hashlib import sha256

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from twiceproof.errors import Misuse, ValueRefused
from twiceproof.keys import body_hash, digest, fingerprint


@dataclasses.dataclass
class Order:
    id: int
    updated_at: str


class Event(msgspec.Struct):
    id: int
    updated_at: str


def test_a_fingerprint_is_the_sha256_of_the_canonical_text_with_the_scheme_before_it():
    assert fingerprint({"b": 1, "a": "x"}) == "1:" + sha256(b'{"a":"x","b":1}').hexdigest()
    assert digest([1]) == "1:" + sha256(b"[1]").hexdigest()


def test_an_ignored_argument_makes_no_difference_and_every_other_does():
    base = fingerprint({"order": 1, "db": object()}, ignore=("db",))
    assert fingerprint({"order": 1, "db": object()}, ignore=("db",)) == base
    assert fingerprint({"order": 2, "db": object()}, ignore=("db",)) != base
    assert fingerprint({"order": 1}) == base


def test_an_argument_that_has_no_text_is_refused_unless_ignored():
    with pytest.raises(ValueRefused, match=r"^db is of type object"):
        fingerprint({"order": 1, "db": object()})


@pytest.mark.parametrize("make", [lambda **fields: fields, Order, Event], ids=["dict", "dataclass", "Struct"])
def test_a_dotted_name_leaves_out_a_field_and_no_other(make):
    ignore = ("order.updated_at",)
    base = fingerprint({"order": make(id=1, updated_at="x")}, ignore)
    assert fingerprint({"order": make(id=1, updated_at="y")}, ignore) == base
    assert fingerprint({"order": make(id=2, updated_at="x")}, ignore) != base
    assert fingerprint({"order": {"id": 1}}) == base


def test_a_dotted_name_reaches_into_every_element_of_a_list():
    def order(seen: int, sku: str = "A") -> dict[str, object]:
        return {"order": {"lines": [{"sku": sku, "seen_at": seen}, [{"seen_at": seen}]]}}

    ignore = ("order.lines.seen_at",)
    assert fingerprint(order(1), ignore) == fingerprint(order(2), ignore)
    assert fingerprint(order(1), ignore) != fingerprint(order(1, sku="B"), ignore)


def test_only_the_named_depth_is_left_out():
    ignore = ("at",)
    assert fingerprint({"at": 1, "order": {"at": 1}}, ignore) != fingerprint({"at": 1, "order": {"at": 2}}, ignore)


def test_a_name_and_a_longer_one_inside_it_leave_out_the_whole():
    for ignore in (("order", "order.id"), ("order.id", "order")):
        assert fingerprint({"order": {"id": 1, "x": 2}}, ignore) == fingerprint({})


def test_a_name_that_is_not_there_leaves_out_nothing():
    assert fingerprint({"a": 1}, ("b", "a.b", "c.d")) == fingerprint({"a": 1})


def test_the_arguments_are_not_changed():
    arguments = {"order": {"id": 1, "at": 2}}
    fingerprint(arguments, ("order.at",))
    assert arguments == {"order": {"id": 1, "at": 2}}


@pytest.mark.parametrize("ignore", ["db", ("",), ("order.",), ("a..b",)])
def test_a_misspelt_ignore_is_refused(ignore):
    with pytest.raises(Misuse, match="write"):
        fingerprint({"db": 1}, ignore)


def test_a_bottomless_list_is_refused_also_where_fields_are_left_out():
    value: list[object] = []
    value.append(value)
    with pytest.raises(ValueRefused, match="contains itself"):
        fingerprint({"a": value}, ("a.x",))


def test_a_body_is_hashed_by_its_meaning():
    assert body_hash(b'{"a": 1.0, "b": [1]}') == body_hash('{"b":[1],\n"a":1}') == body_hash({"a": 1, "b": [1]})
    assert body_hash(b'{"a": 1}') != body_hash(b'{"a": 2}')


def test_a_bodys_varying_fields_are_normalised_away():
    ignore = ("sent_at", "meta.attempt")
    one = body_hash('{"id": 1, "sent_at": "10:00", "meta": {"attempt": 1}}', ignore)
    assert body_hash('{"id": 1, "sent_at": "10:05", "meta": {"attempt": 2}}', ignore) == one
    assert body_hash('{"id": 2, "sent_at": "10:00", "meta": {"attempt": 1}}', ignore) != one


def test_amounts_that_differ_beyond_a_floats_digits_are_two_bodies():
    assert body_hash("[0.10000000000000000001]") != body_hash("[0.1]")


@pytest.mark.parametrize("body", [b"a=1&b=2", b"\xff", "", "[NaN]", "[" * 100_000, "{} x"])
def test_a_body_that_is_not_json_is_refused(body):
    with pytest.raises(ValueRefused, match=r"not JSON .* parse it yourself"):
        body_hash(body)


@given(st.dictionaries(st.sampled_from("abcd"), st.integers(), min_size=1), st.sets(st.sampled_from("abcd")))
def test_ignoring_is_the_same_as_not_having(arguments, names):
    rest = {name: value for name, value in arguments.items() if name not in names}
    assert fingerprint(arguments, tuple(names)) == fingerprint(rest)


@pytest.mark.parametrize("body", ['{"a":1,"a":2}', '[{"b":{"a":1,"a":1}}]', b'{"a":1,"a":null}'])
def test_a_body_that_names_a_key_twice_is_refused(body: str | bytes) -> None:
    """One reader takes the first, another the last: hashed as one of them, it would pass for that one."""
    with pytest.raises(ValueRefused, match="twice"):
        body_hash(body)


def test_a_body_with_the_same_key_in_two_places_is_hashed() -> None:
    assert body_hash('[{"a":1},{"a":{"a":2}}]') == body_hash([{"a": 1}, {"a": {"a": 2}}])
