"""What any key must be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twiceproof.errors import KeyRefused
from twiceproof.keys import LONGEST_KEY, validate_key
from twiceproof.keys.key import _validate_slowly


@pytest.mark.parametrize("key", ["a", "0", "shop:order:10492", "a b", "x" * 1024, "é" * 512, "ключ", "😀", "a\u200db"])
def test_a_legal_key_is_returned_as_it_is(key):
    assert validate_key(key) == key


def test_a_key_is_brought_to_nfc_so_that_two_spellings_are_one():
    assert validate_key("cafe\u0301") == "caf\u00e9"


def test_the_length_is_counted_after_normalising():
    assert validate_key("e\u0301" * 512) == "\u00e9" * 512


@pytest.mark.parametrize(
    ("key", "why"),
    [
        (None, "NoneType, not text"),
        (7, "int, not text"),
        (b"a", "bytes, not text"),
        ("", "blank"),
        ("  ", "blank"),
        ("\u3000", "blank"),
        (" a", "white space"),
        ("a ", "white space"),
        ("a\u00a0", "white space"),
        ("a\x00b", "control"),
        ("a\nb", "control"),
        ("a\x7f", "control"),
        ("a\x85b", "control"),
        ("a\x9fb", "control"),
        ("a\u2028b", "control"),
        ("a\u2029b", "control"),
        ("a\ud800", "surrogate"),
        ("x" * 1025, "1025 bytes"),
        ("é" * 513, "1026 bytes"),
    ],
    ids=ascii,
)
def test_a_key_that_cannot_name_an_intent_is_refused_with_the_next_move(key, why):
    with pytest.raises(KeyRefused, match=why) as caught:
        validate_key(key)
    assert "; " in str(caught.value)


def outcome(validate, key):
    try:
        return validate(key)
    except KeyRefused as refused:
        return str(refused)


@given(st.text(max_size=30) | st.text(st.characters(codec="ascii"), max_size=LONGEST_KEY + 5))
def test_the_fast_path_accepts_and_refuses_what_the_slow_one_does(key):
    assert outcome(validate_key, key) == outcome(_validate_slowly, key)


@given(st.text())
def test_validating_twice_changes_nothing(key):
    first = outcome(validate_key, key)
    if not isinstance(first, str) or "; " in first:
        return
    assert validate_key(first) == first


INVISIBLE = [
    "\u200b",
    "\ufeff",
    "\u2060\u200d",
    "\u3164",
    "\u2800",
    "\U0001d159",
    "\ufe0f",
    "\u115f \u200b",
    "\u00ad",
    "\u2065",
    "\ufff0",
]


@pytest.mark.parametrize("key", INVISIBLE, ids=ascii)
def test_a_key_that_nobody_can_see_is_refused(key: str) -> None:
    with pytest.raises(KeyRefused, match="blank"):
        validate_key(key)


@pytest.mark.parametrize("key", INVISIBLE, ids=ascii)
def test_what_cannot_be_seen_within_a_key_is_part_of_it(key: str) -> None:
    assert validate_key(f"é{key}é") == f"é{key}é"
