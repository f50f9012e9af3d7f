"""Durations as people write them."""

from __future__ import annotations

from datetime import timedelta

import pytest

from twiceproof.errors import Misuse
from twiceproof.keys import lifetime, seconds


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (30, 30.0),
        (0.5, 0.5),
        ("250ms", 0.25),
        ("30s", 30.0),
        ("5m", 300.0),
        ("2h", 7200.0),
        ("1.5h", 5400.0),
        ("30d", 2_592_000.0),
        ("1w", 604_800.0),
        ("10 m", 600.0),
        (timedelta(minutes=1), 60.0),
        ("36525d", 36_525 * 86_400.0),
    ],
)
def test_a_duration_is_read(value, expected):
    assert seconds(value, name="lease") == expected
    assert lifetime(value, name="keep") == expected


NEGATIVE_OR_ENDLESS = [
    -1,
    "-1s",
    timedelta(-1),
    float("nan"),
    float("inf"),
    "36526d",
    10**400,
    "9" * 400 + "s",
]
NO_DURATION = [True, None, "", "30", "s", "5 minutes", "1h30m", "５s", "1e3s", [], "forever ", b"5s", "5s\n"]


@pytest.mark.parametrize("value", NEGATIVE_OR_ENDLESS + NO_DURATION, ids=lambda value: repr(value)[:20])
def test_nonsense_is_refused_and_the_setting_named(value):
    for read in (seconds, lifetime):
        with pytest.raises(Misuse, match=r"^lease=.*; write seconds") as caught:
            read(value, name="lease")
        assert caught.value.setting == "lease"
        assert len(str(caught.value)) < 200


@pytest.mark.parametrize("value", [0, 0.0, "0s", timedelta(0)])
def test_zero_is_legal_only_where_it_means_something(value):
    assert seconds(value, name="delay", positive=False) == 0
    with pytest.raises(Misuse, match="is zero"):
        seconds(value, name="lease")


def test_only_a_lifetime_may_be_for_ever():
    assert lifetime("forever", name="keep") is None
    with pytest.raises(Misuse):
        seconds("forever", name="lease")
