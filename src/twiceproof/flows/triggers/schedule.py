"""`@app.every`: schedules with one run per tick, an overlap policy and catch-up."""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, time, timedelta, tzinfo
from typing import Any, Literal, Protocol, get_args
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec
from msgspec import Struct, structs

from ...claims.claim import body_of, run_id
from ...claims.policy import lease_for
from ...errors import Misuse, PayloadMismatch
from ...keys.duration import seconds
from ...operations import Operation
from ...records import Address, Insert, Record, Replace, record_kind
from ...stores.base import Store
from ..engine.run_dependencies import is_under_way
from ..flow import HIGH, Flow
from ..workers.due_work import DueWork
from ..workers.store_clock import TOLERANCE

__all__ = [
    "KIND",
    "CatchUp",
    "Cron",
    "Daily",
    "DueSchedules",
    "Interval",
    "Overlap",
    "Schedule",
    "ScheduleNote",
    "ScheduleShape",
    "Ticks",
    "as_tick",
    "interval_at",
    "is_ahead",
    "latest_tick",
    "list_schedules",
    "make_ticks",
    "note_of",
    "takes_tick",
    "ticks_passed",
]


class Ticks(Protocol):
    """Moments in seconds since the epoch, the same in every process."""

    def after(self, moment: float) -> float:
        """The first tick after this moment."""


class Interval:
    """Counted from the epoch, not from a start: all schedulers compute the same ticks."""

    def __init__(self, span: float) -> None:
        self.span = span

    def after(self, moment: float) -> float:
        count = moment // self.span + 1
        tick = count * self.span
        # The product is rounded: a tick could come out as its own successor, and loop for ever.
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
    """A cron expression: five fields, six with seconds first, or a macro.

    When clocks change, a fixed time of day has one tick; with a `*` in its seconds, minutes or hours the expression
    follows the clock.
    """

    def __init__(self, text: str, zone: str) -> None:
        self._text = text
        self._fields = _written_out(text)
        self._zone = _zone(zone)
        # cronsim handles a fixed time of day in five fields only. Six fields are computed on a clock without changes.
        self._by_wall = len(self._fields.split()) == 6 and not any(
            field.startswith("*") for field in self._fields.split()[:3]
        )
        self._simulate, self._mistake = _cronsim()
        self.after(0.0)  # a mistake is found at declaration

    def after(self, moment: float) -> float:
        here = datetime.fromtimestamp(moment, self._zone)
        try:
            for found in self._simulate(self._fields, here.replace(tzinfo=None) if self._by_wall else here):
                tick = _at_wall_time(found, self._zone) if self._by_wall else found.timestamp()
                if tick > moment:  # within the repeated hour, cronsim looks at its first occurrence
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
        raise Misuse(f"{text!r} is not valid; write one of {', '.join(MACROS)}, or five fields.") from None


def _at_wall_time(local: datetime, zone: tzinfo) -> float:
    """The moment at which a wall clock shows this time: the first, if it comes twice; if it is skipped, the moment when
    the clock shows the next hour.
    """
    while (found := local.replace(tzinfo=zone)) != found.astimezone(UTC).astimezone(zone):
        local += timedelta(minutes=1)
    return found.timestamp()


class Daily:
    """A time of day, once on each day: at the first of two such times when clocks go back, and at the next hour when
    it is left out. Unlike a cron expression, it needs no further package."""

    def __init__(self, text: str, zone: str) -> None:
        found = _TIME_OF_DAY.fullmatch(text) if isinstance(text, str) else None
        if found is None or int(found[1]) > 23 or int(found[2]) > 59:
            raise Misuse(f'at={text!r} is no time of day; write it like "03:00".')
        self._time = time(int(found[1]), int(found[2]))
        self._zone = _zone(zone)

    def after(self, moment: float) -> float:
        day = datetime.fromtimestamp(moment, self._zone).date() - timedelta(days=1)
        while (tick := _at_wall_time(datetime.combine(day, self._time), self._zone)) <= moment:
            day += timedelta(days=1)
        return tick


_TIME_OF_DAY = re.compile(r"([0-9]{1,2}):([0-9]{2})")


def make_ticks(when: str | float | timedelta, zone: str, at: str = "") -> Ticks:
    """Make the ticks of an interval or a cron expression. `at`: once a day, at this time."""
    if at:
        if when != "1d":
            raise Misuse(f'at={at!r} is for every="1d"; for other times write a cron expression, such as "0 3 * * 1".')
        return Daily(at, zone)
    if isinstance(when, str) and (" " in when.strip() or when.strip().startswith("@")):
        return Cron(when.strip(), zone)
    if zone != "UTC":
        raise Misuse(
            f"tz={zone!r} means nothing for an interval, which is counted from the epoch; write a cron expression, "
            'such as "0 2 * * *", or leave tz= out.'
        )
    return Interval(seconds(when, name="every"))


def interval_at(ticks: Ticks, moment: float) -> float:
    """Seconds between the next two ticks: those of a cron expression need not be even."""
    first = ticks.after(moment)
    return ticks.after(first) - first


def is_ahead(ticks: Ticks, following: float, record: Record, now: float) -> bool:
    """Whether its next tick, or its due time, is later than any that could have been written by now."""
    soon = now + TOLERANCE
    tick = ticks.after(soon)
    latest = max(tick, soon + lease_for(ticks.after(tick) - tick))
    return following > tick or (record.due_at is not None and record.due_at > latest)


def ticks_passed(ticks: Ticks, first: float, now: float, most: int = 1_000) -> list[float]:
    """The ticks from `first` until now; of very many, the first ones."""
    found: list[float] = []
    tick = first
    while tick <= now and len(found) < most:
        found.append(tick)
        tick = ticks.after(tick)
    return found


def latest_tick(ticks: Ticks, first: float, now: float) -> float:
    """The last tick until now, `first` or later, without visiting all of them: there may be a year of minutes."""
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


KIND = record_kind("schedule")

Overlap = Literal["skip", "queue", "allow"]
CatchUp = Literal["latest", "all", "none"]


class ScheduleNote(Struct, frozen=True, omit_defaults=True):
    """The stored state of a schedule: its next tick, and the last one that was started."""

    when: str
    zone: str
    next: float
    last: float | None = None
    skipped: int = 0


note_of = msgspec.json.Decoder(ScheduleNote).decode


class Schedule:
    """One declaration."""

    def __init__(self, flow: Flow, ticks: Ticks, when: str, zone: str, overlap: Overlap, catch_up: CatchUp) -> None:
        for name, value, legal in (("overlap", overlap, Overlap), ("catch_up", catch_up, CatchUp)):
            if value not in get_args(legal):
                raise Misuse(f"{name}={value!r} is not valid; use one of {', '.join(get_args(legal))}.")
        if catch_up == "all" and overlap == "skip":
            raise Misuse(
                'catch_up="all" starts many at once, and overlap="skip" would skip all but the first; say '
                'overlap="queue", or "allow".'
            )
        self.flow = flow
        self.ticks = ticks
        self.when = when
        self.zone = zone
        self.overlap = overlap
        self.catch_up = catch_up
        tenant = flow.policy.tenant
        self.at = Address(f"{tenant}/{flow.name}/", KIND, "self")
        self.queue = f"{tenant}/{flow.name}@schedule"

    def begin(self, now: float) -> ScheduleNote:
        return ScheduleNote(self.when, self.zone, self.ticks.after(now))

    def is_as_declared(self, note: ScheduleNote) -> bool:
        return (note.when, note.zone) == (self.when, self.zone)

    def chosen(self, first: float, now: float) -> tuple[list[float], float]:
        """Of the ticks that have passed, those to start now, and the one that follows them.

        Of very many, the first ones: the others follow at the next look, so that nothing else is held up.
        """
        if first > now:
            return [], self.ticks.after(now)
        if self.catch_up == "all":
            ticks = ticks_passed(self.ticks, first, now, AT_ONCE)
            return ticks, self.ticks.after(ticks[-1])
        last = latest_tick(self.ticks, first, now)
        missed = self.catch_up == "none" and now - last >= LATE
        return [] if missed else [last], self.ticks.after(last)


class ScheduleShape(Struct, frozen=True, kw_only=True):
    """A schedule and where it stands. `next`: null until a worker has prepared it. `skipped`: ticks that were left out,
    because the run before was still under way."""

    flow: str
    when: str
    zone: str
    next: float | None
    last: float | None
    skipped: int
    overlap: str
    catch_up: str


def list_schedules(store: Store, schedules: Iterable[Schedule], tenant: str) -> Operation[list[ScheduleShape]]:
    """Return the schedules of a tenant's flows, each with one read."""
    shapes = []
    for one in schedules:
        if one.flow.policy.tenant != tenant:
            continue
        record = (yield from store.read(one.at)).record
        note = None if record is None else note_of(record.body)
        shapes.append(
            ScheduleShape(
                flow=one.flow.name,
                when=one.when,
                zone=one.zone,
                next=note.next if note else None,
                last=note.last if note else None,
                skipped=note.skipped if note else 0,
                overlap=one.overlap,
                catch_up=one.catch_up,
            )
        )
    return shapes


LATE = 60.0  # without catch-up, a tick this late counts as missed
AT_ONCE = 100  # ticks to catch up with at one look


def as_tick(moment: float) -> datetime:
    return datetime.fromtimestamp(moment, UTC)


def takes_tick(function: Callable[..., Any]) -> bool:
    """Whether the function takes the tick that it runs for."""
    return bool(inspect.signature(function).parameters)


log = logging.getLogger("twiceproof.work")


class DueSchedules(DueWork):
    """Due schedules. A run's key follows from its tick, so a tick that is served twice has one run."""

    kind = KIND
    rank = HIGH

    def __init__(self, store: Store) -> None:
        self.schedules: dict[str, Schedule] = {}
        self._store = store

    def add(self, schedule: Schedule) -> None:
        """Refuse a second schedule of one flow: it would silently replace the first."""
        known = self.schedules.get(schedule.queue)
        if known is not None and known.flow is schedule.flow:
            raise Misuse(
                f"{schedule.flow.name} is scheduled twice, {known.when!r} and {schedule.when!r}; call it from a second "
                "function with a schedule of its own."
            )
        self.schedules[schedule.queue] = schedule

    def queues(self) -> list[str]:
        return list(self.schedules)

    def prepare(self) -> Operation[None]:
        """Write each schedule where it falls due.

        Correct one that was declared anew, or that was written while the store's
        clock was ahead. Existing ones stay.
        """
        for schedule in list(self.schedules.values()):
            found = yield from self._store.read(schedule.at)
            if found.record is None:
                note = schedule.begin(found.now)
                due_in = max(0.0, note.next - found.now)
                yield from self._store.write(Insert(schedule.at, body_of(note), queue=schedule.queue, due_in=due_in))
                continue
            old = note_of(found.record.body)
            if not schedule.is_as_declared(old) or is_ahead(schedule.ticks, old.next, found.record, found.now):
                note = structs.replace(schedule.begin(found.now), last=old.last, skipped=old.skipped)
                yield from self._store.write(_next(schedule, found.record, note, found.now))

    def pause_before_retry(self, record: Record) -> float:
        return lease_for(interval_at(self.schedules[record.queue].ticks, record.due_at or record.updated_at))

    def carry_out(self, record: Record) -> Operation[None]:
        schedule = self.schedules[record.queue]
        found = yield from self._store.read(record.at)
        if found.record is None or found.record.version != record.version:
            return  # another scheduler was faster
        note, now = note_of(record.body), found.now
        ticks, following = schedule.chosen(note.next, now)
        for tick in ticks:
            note = yield from self._start(schedule, note, tick)
        note = structs.replace(note, next=following)
        if following <= now:
            log.info("%s: catching up, %d ticks started, next %s", schedule.flow.name, len(ticks), as_tick(following))
        yield from self._store.write(_next(schedule, record, note, now))

    def _start(self, schedule: Schedule, note: ScheduleNote, tick: float) -> Operation[ScheduleNote]:
        before = _run_before(schedule, note)
        if schedule.overlap == "skip" and before and (yield from is_under_way(self._store, before)):
            log.warning("%s: tick %s is skipped, the one before is still under way", schedule.flow.name, as_tick(tick))
            return structs.replace(note, skipped=note.skipped + 1)
        follows = before if schedule.overlap == "queue" else ""
        try:
            yield from schedule.flow.start((as_tick(tick),), {}, follows=follows)
        except PayloadMismatch as error:  # e.g. one run a day with hourly ticks: later ticks must not be held up
            log.warning("%s: tick %s is left alone, its key is taken: %s", schedule.flow.name, as_tick(tick), error)
        return structs.replace(note, last=tick)


def _run_before(schedule: Schedule, note: ScheduleNote) -> str:
    """The run of the last tick that was started; "" if there was none."""
    if note.last is None:
        return ""
    return run_id(schedule.flow.handle(schedule.flow.key((as_tick(note.last),), {})).at.space)


def _next(schedule: Schedule, record: Record, note: ScheduleNote, now: float) -> Replace:
    """Conditional on the version: one of several schedulers moves it on."""
    due_in = max(0.0, note.next - now)
    return Replace(record.at, body_of(note), version=record.version, queue=schedule.queue, due_in=due_in)
