"""Canonical JSON: what holds for every value; first of all that the fast path equals the slow one."""

from __future__ import annotations

import json
from decimal import Decimal

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from twiceproof.keys.canonical import canonical, canonical_slowly, span_text

numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
atoms = (
    st.none() | st.booleans() | numbers | st.text(st.characters(codec="utf-8")) | st.text(st.characters(codec="ascii"))
)
values = st.recursive(
    atoms,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters(codec="ascii")), inner, max_size=6)
    ),
    max_leaves=20,
)


@given(values)
def test_the_fast_path_and_the_slow_path_give_the_same_bytes(value):
    assert canonical(value) == canonical_slowly(value)


@given(st.floats(1e-4, 1e15) | st.integers(1, 10**12).map(lambda cents: cents / 100))
def test_a_float_that_takes_the_fast_path_has_the_text_of_the_slow_one(number):
    assert canonical([number, -number]) == canonical_slowly([number, -number])


@given(values)
def test_the_text_is_json_and_its_own_canonical_form(value):
    text = canonical(value)
    assert canonical(json.loads(text, parse_float=Decimal)) == text


@given(st.integers(-(2**53), 2**53))
def test_an_integral_float_reads_as_its_int(number):
    assert canonical(float(number)) == canonical(number)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_float_reads_as_the_decimal_of_its_shortest_text_and_no_two_floats_alike(number):
    assert canonical(number) == canonical(Decimal(repr(number)))
    assert float(canonical(number)) == number


decimals = st.builds(
    lambda digits, places: Decimal((0, digits, places)),
    st.just((1, 0)) | st.tuples(*[st.integers(0, 9)] * 3),
    st.integers(-9, 9),
)


@given(decimals, decimals)
def test_two_decimals_read_alike_exactly_if_they_are_equal(one, two):
    assert (canonical(one) == canonical(two)) == (one == two)


@given(st.timedeltas())
def test_a_span_is_written_as_msgspec_writes_it(span):
    assert span_text(span) == msgspec.to_builtins(span)
