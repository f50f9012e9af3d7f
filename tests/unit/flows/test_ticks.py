"""Ticks: when something falls due again and again, by an interval, a cron expression or a macro, in any time zone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from twiceproof import App, Misuse
from twiceproof.flows.triggers.schedule import latest_tick, make_ticks, ticks_passed
from twiceproof.prove.clocks import ManualClock

NOON = datetime(2026, 3, 2, 12, 0, tzinfo=UTC).timestamp()


def test_intervals_are_the_same_moments_in_every_process() -> None:
    ticks = make_ticks("15m", "UTC")
    assert ticks.after(NOON) == NOON + 900
    assert ticks.after(NOON + 1) == NOON + 900
    assert make_ticks(timedelta(minutes=15), "UTC").after(NOON) == NOON + 900


def test_a_cron_expression_is_read_in_its_time_zone() -> None:
    after = make_ticks("0 2 * * *", "Europe/Paris").after(NOON)
    assert datetime.fromtimestamp(after, UTC) == datetime(2026, 3, 3, 1, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("zone", "day", "expected"),
    [
        ("Europe/Paris", datetime(2026, 10, 24, 12, tzinfo=UTC), 1),
        ("Europe/Paris", datetime(2026, 3, 28, 12, tzinfo=UTC), 1),
    ],
    ids=["the hour comes twice", "the hour is left out"],
)
def test_when_the_clocks_change_there_is_one_tick_a_day(zone: str, day: datetime, expected: int) -> None:
    ticks = make_ticks("30 2 * * *", zone)
    assert len(ticks_passed(ticks, ticks.after(day.timestamp()), day.timestamp() + 86_400)) == expected


@pytest.mark.parametrize(
    ("day", "expected"),
    [(datetime(2026, 10, 24, 12, tzinfo=UTC), 4), (datetime(2026, 3, 28, 12, tzinfo=UTC), 0)],
    ids=["the hour comes twice", "the hour is left out"],
)
def test_when_the_clocks_change_half_hours_are_counted_by_the_clock(day: datetime, expected: int) -> None:
    ticks = make_ticks("*/30 2 * * *", "Europe/Paris")
    assert len(ticks_passed(ticks, ticks.after(day.timestamp()), day.timestamp() + 64_800)) == expected


@pytest.mark.parametrize("when", ["30 2 * * *", "15 30 2 * * *", "0 0,30 2 * * *", "0 30 1-3 * * *"])
@pytest.mark.parametrize(
    "day",
    [
        datetime(2026, 10, 24, 12, tzinfo=UTC),
        datetime(2026, 3, 28, 12, tzinfo=UTC),
        datetime(2026, 5, 1, 12, tzinfo=UTC),
    ],
    ids=["the hour comes twice", "the hour is left out", "any other night"],
)
def test_when_the_clocks_change_a_fixed_time_of_day_ticks_as_often_as_in_any_night(when: str, day: datetime) -> None:
    ticks = make_ticks(when, "Europe/Paris")
    usual = {"30 2 * * *": 1, "15 30 2 * * *": 1, "0 0,30 2 * * *": 2, "0 30 1-3 * * *": 3}[when]
    left_out = day.month == 3 and when.startswith("0 ")  # two that fall on the same moment are one
    met = ticks_passed(ticks, ticks.after(day.timestamp()), day.timestamp() + 64_800)
    assert len(met) == usual - (1 if left_out and when == "0 0,30 2 * * *" else 0)
    assert len(set(met)) == len(met)


def test_in_six_fields_a_fixed_time_that_is_left_out_ticks_when_the_clock_goes_on() -> None:
    ticks = make_ticks("15 30 2 * * *", "Europe/Paris")
    after = ticks.after(datetime(2026, 3, 28, 12, tzinfo=UTC).timestamp())
    assert datetime.fromtimestamp(after, UTC) == datetime(2026, 3, 29, 1, 0, 15, tzinfo=UTC)  # 03:00:15 in Paris


@pytest.mark.parametrize(
    ("day", "expected"),
    [(datetime(2026, 10, 24, 12, tzinfo=UTC), 12), (datetime(2026, 3, 28, 12, tzinfo=UTC), 0)],
    ids=["the hour comes twice", "the hour is left out"],
)
def test_in_six_fields_a_star_in_the_seconds_follows_the_clock(day: datetime, expected: int) -> None:
    ticks = make_ticks("*/10 30 2 * * *", "Europe/Paris")
    assert len(ticks_passed(ticks, ticks.after(day.timestamp()), day.timestamp() + 64_800)) == expected


@pytest.mark.parametrize(
    ("macro", "fields"),
    [
        ("@hourly", "0 * * * *"),
        ("@daily", "0 0 * * *"),
        ("@midnight", "0 0 * * *"),
        ("@weekly", "0 0 * * 0"),
        ("@monthly", "0 0 1 * *"),
        ("@yearly", "0 0 1 1 *"),
        ("@annually", "0 0 1 1 *"),
        (" @Daily ", "0 0 * * *"),
    ],
)
@pytest.mark.parametrize("zone", ["UTC", "Europe/Paris"])
def test_a_macro_is_the_expression_that_cron_takes_it_for(macro: str, fields: str, zone: str) -> None:
    tick = NOON
    for _ in range(3):
        assert make_ticks(macro, zone).after(tick) == make_ticks(fields, zone).after(tick)
        tick = make_ticks(macro, zone).after(tick)


@pytest.mark.parametrize("macro", ["@reboot", "@every 5m", "@", "@fortnightly"])
def test_a_macro_that_is_none_of_them_is_refused_with_those_that_are(macro: str) -> None:
    with pytest.raises(Misuse, match=r"@hourly, @daily.*@yearly"):
        make_ticks(macro, "UTC")


@pytest.mark.parametrize("when", ["1m", "7.3s", "* * * * *", "30 2 * * *", "0 0 29 2 *", "* * 1 1 *"])
@pytest.mark.parametrize("gone", [1.0, 60.0, 3_600.0, 86_400.0])
def test_the_latest_tick_is_the_last_of_those_that_passed(when: str, gone: float) -> None:
    ticks = make_ticks(when, "UTC")
    first = ticks.after(NOON)
    now = first + gone
    assert latest_tick(ticks, first, now) == ticks_passed(ticks, first, now, 100_000)[-1]


@pytest.mark.parametrize("span", ["0.1s", "1.1s", "59.9s"])
def test_of_intervals_that_are_no_whole_seconds_too_each_tick_has_a_later_one(span: str) -> None:
    ticks = make_ticks(span, "UTC")
    moment = NOON
    for _ in range(1_000):
        assert ticks.after(moment) > moment
        moment = ticks.after(moment)
    assert moment == pytest.approx(NOON + 1_000 * float(span[:-1]), abs=float(span[:-1]))


def test_in_an_hour_that_comes_twice_the_next_tick_is_never_one_that_is_over() -> None:
    ticks = make_ticks("30 2 * * *", "Europe/Paris")
    second_time = datetime(2026, 10, 25, 1, 10, tzinfo=UTC)  # 02:10, an hour after 02:10
    after = datetime.fromtimestamp(ticks.after(second_time.timestamp()), UTC)
    assert after == datetime(2026, 10, 26, 1, 30, tzinfo=UTC)


@pytest.mark.parametrize("when", ["0 25 * * *", "nonsense words", "61 * * * *", "0s", "7"])
def test_what_never_comes_is_refused_when_it_is_declared(when: str) -> None:
    with pytest.raises(Misuse):
        make_ticks(when, "UTC")


def test_a_time_zone_is_refused_where_it_would_mean_nothing() -> None:
    with pytest.raises(Misuse, match="means nothing for an interval"):
        make_ticks("1d", "Europe/Paris")


def test_an_unknown_time_zone_is_refused() -> None:
    with pytest.raises(Misuse, match="not a time zone"):
        make_ticks("0 2 * * *", "Europe/Atlantis")


@pytest.mark.filterwarnings("error")
def test_the_key_of_a_schedule_is_no_cause_for_a_warning():
    clock = ManualClock()
    with App("memory://", clock=clock) as app:
        ticks = []

        @app.every("5s")
        def refresh():
            ticks.append(1)

        app.worker().run(until_idle=True)
        clock.advance(6)
        app.worker().run(until_idle=True)
        assert ticks == [1]
