"""Versions: what can be compared is, and what cannot be is refused with what to say."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twiceproof import KeyRefused, Misuse, by
from twiceproof.flows.ordering.declaration import read_version

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (7, "integer", "7"),
        (-3, "integer", "-3"),
        (NOON, "time", "2026-05-01T12:00:00Z"),
        (NOON.astimezone(timezone(timedelta(hours=2))), "time", "2026-05-01T12:00:00Z"),
        ("2026-05-01T14:00:00+02:00", "time", "2026-05-01T12:00:00Z"),
        ("2026-05-01 12:00:00.500z", "time", "2026-05-01T12:00:00.5Z"),
        ("2026-05-01T12:00:00.123456789Z", "time", "2026-05-01T12:00:00.123456789Z"),
        (date(2026, 5, 1), "date", "2026-05-01"),
        ("2026-05-01", "date", "2026-05-01"),
    ],
)
def test_a_kind_without_doubt_is_seen_from_the_value(value: Any, kind: str, text: str) -> None:
    version = read_version(value, None, "v")
    assert (version.kind, version.text) == (kind, text)


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        1.5,
        "10",
        "v10",
        "",
        "01HZX",
        [1],
        "2026-05-01T12:00:00",
        datetime(2026, 5, 1),
        "2026-13-01T12:00:00Z",
    ],
)
def test_what_has_no_order_of_its_own_is_refused_with_what_to_say(value: Any) -> None:
    with pytest.raises(KeyRefused, match="compare="):
        read_version(value, None, "v")


@pytest.mark.parametrize(
    ("value", "compare", "text"),
    [("010", "integer", "10"), ("10", "text", "10"), ("01HZX", "text", "01HZX"), (3, "integer", "3")],
)
def test_what_is_declared_is_compared_as_declared(value: Any, compare: Any, text: str) -> None:
    assert read_version(value, compare, "v").text == text


@pytest.mark.parametrize(("value", "compare"), [("ten", "integer"), (5, "time"), ("2026-05-01", "time"), (7, "text")])
def test_what_does_not_fit_its_declaration_is_refused(value: Any, compare: Any) -> None:
    with pytest.raises(KeyRefused, match=f"cannot be compared as {compare}"):
        read_version(value, compare, "v")


@given(st.datetimes(timezones=st.timezones()), st.datetimes(timezones=st.timezones()))
def test_times_compare_as_their_instants(one: datetime, other: datetime) -> None:
    try:
        instants = one.astimezone(UTC), other.astimezone(UTC)
        places = [read_version(at, None, "v").place for at in (one, other)]
    except (KeyRefused, OverflowError):
        return  # an offset with seconds, or beyond the calendar
    assert (places[0] < places[1]) == (instants[0] < instants[1])
    assert (places[0] == places[1]) == (instants[0] == instants[1])


@given(st.text("0123456789", max_size=12), st.text("0123456789", max_size=12))
def test_no_digit_of_a_fraction_is_lost(one: str, other: str) -> None:
    def place(digits: str) -> Any:
        return read_version(f"2026-05-01T12:00:00{'.' if digits else ''}{digits}Z", None, "v").place

    assert (place(one) < place(other)) == (float(f"0.{one or 0}") < float(f"0.{other or 0}"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"compare": "size"}, "compare='size'"),
        ({"gap": "wait"}, "gap='wait'"),
        ({"fetch": print}, 'gap="park"'),
        ({"first": 1}, 'gap="park"'),
        ({"gap": "park", "compare": "time"}, "needs integers"),
        ({"gap": "park", "first": "1"}, "not an integer"),
        ({"gap": "park", "patience": "soon"}, "not a duration"),
    ],
)
def test_a_declaration_that_means_nothing_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(Misuse, match=words):
        by("{o}", "{v}", **options)
