"""Composites, stages and windows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from unicodedata import normalize

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twiceproof.errors import KeyRefused, Misuse
from twiceproof.keys import composite, stage, windowed

NOON = datetime(2026, 3, 4, 12, 0, tzinfo=UTC)


def test_a_composite_is_its_parts_with_colons_between():
    assert composite("shop", "order", 10492) == "shop:order:10492"
    assert composite("shop", 0) == "shop:0"


def test_a_part_cannot_pass_for_two():
    assert composite("a:b", "c") == "a%3Ab:c"
    assert composite("a", "b:c") == "a:b%3Ac"
    assert composite("a%3Ab", "c") == "a%253Ab:c"


@pytest.mark.parametrize("parts", [(), (None,), ("a", ""), ("a", 1.5), ("a", {}), ("x" * 2000,), ("\u0301",)])
def test_a_composite_without_a_safe_text_is_refused(parts):
    with pytest.raises(KeyRefused):
        composite(*parts)


def test_a_refused_part_is_named_by_its_place():
    with pytest.raises(KeyRefused, match=r"^part 2 is None"):
        composite("a", None)


MARKS = {"\u0301", "\u0338"}  # alone they cannot be seen, and are refused
part = st.text(st.sampled_from(["a", "b", ":", "%", "3", "A", "e", *sorted(MARKS)]), min_size=1, max_size=5).filter(
    lambda part: not MARKS.issuperset(part)
)
parts = st.lists(part, min_size=1, max_size=4)


@given(parts, parts)
def test_two_lists_of_parts_never_share_a_key(one, two):
    different = [normalize("NFC", part) for part in one] != [normalize("NFC", part) for part in two]
    assert (composite(*one) != composite(*two)) == different


def test_another_stage_is_another_event():
    assert stage("shop:order:1", "paid") == "shop:order:1:paid"
    assert stage("shop:order:1", "paid") != stage("shop:order:1", "shipped")


def test_a_stage_cannot_move_the_border_between_it_and_the_key():
    assert stage("a", "b:c") != stage("a:b", "c")


@pytest.mark.parametrize(("key", "name"), [("", "paid"), ("a", ""), ("a", None), (None, "paid")])
def test_a_stage_needs_a_key_and_a_name(key, name):
    with pytest.raises(KeyRefused):
        stage(key, name)


def test_events_of_one_window_share_a_key_and_those_of_the_next_do_not():
    key = windowed("c_1", "welcome", at=NOON, window="10m")
    assert windowed("c_1", "welcome", at=NOON + timedelta(minutes=9, seconds=59), window="10m") == key
    assert windowed("c_1", "welcome", at=NOON + timedelta(minutes=10), window="10m") != key
    assert windowed("c_1", "welcome", at=NOON - timedelta(microseconds=1), window="10m") != key


def test_entity_event_and_window_each_make_another_key():
    keys = {
        windowed("c_1", "welcome", at=NOON),
        windowed("c_2", "welcome", at=NOON),
        windowed("c_1", "goodbye", at=NOON),
        windowed("c_1", "welcome", at=NOON, window="1h"),
        windowed({"id": "c_1"}, "welcome", at=NOON),
    }
    assert len(keys) == 5
    assert all(key.startswith(("welcome:1:", "goodbye:1:")) for key in keys)


def test_the_first_windows_of_two_lengths_are_two():
    start = datetime(1970, 1, 1, tzinfo=UTC)
    assert windowed("c", "e", at=start, window="10m") != windowed("c", "e", at=start, window="1h")


def test_the_window_is_that_of_the_instant_not_of_its_time_zone():
    there = NOON.astimezone(timezone(timedelta(hours=-7)))
    assert windowed("c_1", "welcome", at=there) == windowed("c_1", "welcome", at=NOON)


def test_a_time_before_1970_has_a_window_too():
    early = datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC)
    assert windowed("c", "e", at=early) != windowed("c", "e", at=early + timedelta(seconds=1))


@pytest.mark.parametrize(
    ("entity", "at", "window"),
    [("c", NOON.replace(tzinfo=None), "10m"), (None, NOON, "10m"), ("", NOON, "10m"), ("c", NOON, 1e-9)],
)
def test_a_window_that_says_nothing_is_refused(entity, at, window):
    with pytest.raises(KeyRefused):
        windowed(entity, "welcome", at=at, window=window)


@pytest.mark.parametrize("window", [0, "0s", -5, "soon"])
def test_a_window_that_is_no_duration_is_misuse(window):
    with pytest.raises(Misuse, match="window="):
        windowed("c", "welcome", at=NOON, window=window)


@pytest.mark.parametrize("entity", [None, "", " ", "\t\u2003", "\u200b", "\ufeff "])
def test_an_entity_that_names_nobody_is_refused(entity: Any) -> None:
    with pytest.raises(KeyRefused, match="entity"):
        windowed(entity, "mail", at=datetime(2026, 1, 1, tzinfo=UTC))


@pytest.mark.parametrize("entity", [0, " 7", "a\u200bb", ["", 1]])
def test_an_entity_that_names_somebody_is_taken(entity: Any) -> None:
    assert windowed(entity, "mail", at=datetime(2026, 1, 1, tzinfo=UTC)).startswith("mail:")


@pytest.mark.parametrize("unseen", ["\u200b", "\ufeff", "\u3164", "\u2800"], ids=ascii)
def test_a_part_that_nobody_can_see_refuses_the_key(unseen):
    with pytest.raises(KeyRefused, match="blank"):
        composite("shop", unseen)
    with pytest.raises(KeyRefused, match="blank"):
        stage("shop:1", unseen)
