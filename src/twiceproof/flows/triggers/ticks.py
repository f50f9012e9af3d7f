"""When something falls due again and again: every so often, or by a cron expression in a time zone. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Protocol
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from ...errors import Misuse
from ...keys.duration import seconds
from ...records import Record
from ..workers.lease import lease_for
from ..workers.store_clock import TOLERANCE

__all__ = ["Cron", "Interval", "Ticks", "interval_at", "is_ahead", "latest", "make_ticks", "passed"]


class Ticks(Protocol):
    """Moments in seconds since the epoch, the same in every process."""

    def after(self, moment: float) -> float:
        """The first tick after this moment."""


class Interval:
    """Counted from the epoch, not from a start: ten schedulers mean the same moments."""

    def __init__(self, span: float) -> None:
        self.span = span

    def after(self, moment: float) -> float:
        count = moment // self.span + 1
        tick = count * self.span
        # The product is rounded: a tick could come out as its own successor, and be gone round for ever.
        return tick if tick > moment else (count + 1) * self.span


MACROS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}


class Cron:
    """Five fields, as cron has them, or six, the first of them seconds; or a macro.

    When clocks change, a fixed time of day has one tick; with a `*` in its seconds, minutes or hours it follows the
    clock.
    """

    def __init__(self, text: str, zone: str) -> None:
        self._text = text
        self._fields = _written_out(text)
        self._zone = _zone(zone)
        # cronsim sees to a fixed time of day in five fields only. Six are looked for on a clock that nobody sets.
        self._by_wall = len(self._fields.split()) == 6 and not any(
            field.startswith("*") for field in self._fields.split()[:3]
        )
        self._simulate, self._mistake = _cronsim()
        self.after(0.0)  # a mistake is found when it is declared

    def after(self, moment: float) -> float:
        here = datetime.fromtimestamp(moment, self._zone)
        try:
            for found in self._simulate(self._fields, here.replace(tzinfo=None) if self._by_wall else here):
                tick = _on_the_wall(found, self._zone) if self._by_wall else found.timestamp()
                if tick > moment:  # in an hour that comes for the second time, it looks into the first
                    return tick
        except self._mistake as error:
            raise Misuse(
                f'{self._text!r} is no cron expression ({error}); write five fields, such as "0 2 * * *", six with '
                'seconds first, or "@daily".'
            ) from None
        raise Misuse(f"{self._text!r} never comes; write the five fields of a cron expression.")


def _written_out(text: str) -> str:
    if not text.startswith("@"):
        return text
    try:
        return MACROS[text.lower()]
    except KeyError:
        raise Misuse(f"{text!r} means nothing here; write one of {', '.join(MACROS)}, or five fields.") from None


def _on_the_wall(local: datetime, zone: tzinfo) -> float:
    """When a clock on the wall shows this: the first time, if twice; if it is left out, when it shows the next hour."""
    while (found := local.replace(tzinfo=zone)) != found.astimezone(UTC).astimezone(zone):
        local += timedelta(minutes=1)
    return found.timestamp()


def make_ticks(when: str | float | timedelta, zone: str) -> Ticks:
    if isinstance(when, str) and (" " in when.strip() or when.strip().startswith("@")):
        return Cron(when.strip(), zone)
    if zone != "UTC":
        raise Misuse(
            f"tz={zone!r} means nothing for an interval, which is counted from the epoch; write a cron expression, "
            'such as "0 2 * * *", or leave tz= out.'
        )
    return Interval(seconds(when, name="every"))


def interval_at(ticks: Ticks, moment: float) -> float:
    """Seconds between the two ticks that come next: those of a cron expression need not be even."""
    first = ticks.after(moment)
    return ticks.after(first) - first


def is_ahead(ticks: Ticks, following: float, record: Record, now: float) -> bool:
    """Whether its next tick, or the time at which it is due, is later than any that could have been written by now."""
    soon = now + TOLERANCE
    tick = ticks.after(soon)
    latest = max(tick, soon + lease_for(ticks.after(tick) - tick))
    return following > tick or (record.due_at is not None and record.due_at > latest)


def passed(ticks: Ticks, first: float, now: float, most: int = 1_000) -> list[float]:
    """The ticks from `first` until now; of very many the first ones."""
    found: list[float] = []
    tick = first
    while tick <= now and len(found) < most:
        found.append(tick)
        tick = ticks.after(tick)
    return found


def latest(ticks: Ticks, first: float, now: float) -> float:
    """The last tick until now, `first` or later, without going through all of them: there may be a year of minutes."""
    span = 60.0
    while now - span > first and ticks.after(now - span) > now:
        span *= 2
    tick = first if now - span <= first else ticks.after(now - span)
    while (following := ticks.after(tick)) <= now:
        tick = following
    return tick


def _zone(name: str) -> tzinfo:
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError):
        raise Misuse(f'tz={name!r} is not a time zone; write one like "Europe/Paris".') from None


def _cronsim() -> tuple[Callable[[str, datetime], Iterator[datetime]], type[Exception]]:
    try:
        from cronsim import CronSim, CronSimError
    except ImportError:
        raise Misuse(
            "Cron expressions need the package cronsim; install it with: pip install 'twiceproof[cron]'."
        ) from None
    return CronSim, CronSimError
