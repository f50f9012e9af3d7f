"""JSON is read in one way only."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twiceproof.inbound.source import Poison
from twiceproof.inbound.sources.parsing import DEEPEST, parse_json

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT
VALUES = st.recursive(PLAIN, lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner), max_leaves=20)


@given(VALUES, st.booleans(), st.sampled_from([None, 1]))
def test_whatever_python_writes_is_read_as_it_was(value, ascii_only, indent):
    assert parse_json(json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode()) == value


@given(st.dictionaries(TEXT, PLAIN, min_size=1), st.sampled_from([",", ", "]), st.booleans(), st.integers(0, 5))
def test_a_name_that_is_there_twice_is_found_at_any_depth(value, comma, ascii_only, depth):
    name = json.dumps(next(iter(value)), ensure_ascii=ascii_only)
    inner = json.dumps(value)[:-1] + comma + name + ":1}"
    body = ('[{"x":' * depth) + inner + ("}]" * depth)
    assert isinstance(parse_json(body.encode()), Poison)


@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_depth_ends_where_it_is_said_to(opening):
    closing = "]" if opening == "[" else "}"
    deep, deeper = (opening * depth + "1" + closing * depth for depth in (DEEPEST, DEEPEST + 1))
    assert not isinstance(parse_json(deep.encode()), Poison)
    assert isinstance(parse_json(deeper.encode()), Poison)


def test_many_containers_side_by_side_are_not_deep():
    assert parse_json(b"[" + b"[]," * 200 + b"{}]") == [*[[]] * 200, {}]


@pytest.mark.parametrize("body", [b'{"a":1.10}', b'{"a":"\\/"}', b'{"a":"\\u00e9"}', b'{"a":1E2}', b'{"a":-0}'])
def test_other_spellings_of_the_same_are_no_poison(body):
    assert parse_json(body) == json.loads(body)


@given(st.binary(max_size=40))
def test_bytes_of_any_kind_break_nothing(body):
    parse_json(body)
