"""The one text of a moment, a day, a time of day and a span of time, as msgspec writes them to JSON."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta

__all__ = ["datetime_text", "span_text", "time_text"]


def datetime_text(moment: datetime) -> str:
    """Aware: in UTC with `Z`, so that one instant has one text. Naive: as it is, without `Z`."""
    if moment.utcoffset() is None:
        return moment.replace(tzinfo=None).isoformat()
    try:
        return moment.astimezone(UTC).replace(tzinfo=None).isoformat() + "Z"
    except OverflowError:
        raise ValueError("in UTC it lies outside the years 1 to 9999") from None


def time_text(moment: time) -> str:
    """A time of day has no date to move it to UTC with, so it keeps its offset."""
    text = moment.isoformat()
    return text.removesuffix("+00:00") + "Z" if text.endswith("+00:00") else text


def span_text(span: timedelta) -> str:
    """ISO 8601 in days and seconds: `P1DT0.5S`."""
    sign, span = ("-", -span) if span < timedelta(0) else ("", span)
    seconds = str(span.seconds)
    if span.microseconds:
        seconds += f".{span.microseconds:06}".rstrip("0")
    days = f"{span.days}D" if span.days or seconds == "0" else ""
    return f"{sign}P{days}" + ("" if seconds == "0" else f"T{seconds}S")
