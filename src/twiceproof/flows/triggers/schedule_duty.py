"""The duty for schedules: one run per tick, however many schedulers there are."""

from __future__ import annotations

import logging

from msgspec import structs

from ...claims.claim import body_of
from ...drive import Operation
from ...errors import Misuse, PayloadMismatch
from ...records import Insert, Record, Replace
from ...stores.base import Store
from ..limits.succession import is_under_way
from ..priority import HIGH
from ..workers.duty import Duty
from ..workers.lease import lease_for
from .schedule import KIND, Schedule, ScheduleNote, as_tick, note_of
from .ticks import interval_at, is_ahead

__all__ = ["ScheduleDuty"]

log = logging.getLogger("twiceproof.work")


class ScheduleDuty(Duty):
    """A run's key follows from its tick: a tick that is served twice has one run."""

    kind = KIND
    rank = HIGH

    def __init__(self, store: Store) -> None:
        self.schedules: dict[str, Schedule] = {}
        self._store = store

    def add(self, schedule: Schedule) -> None:
        """A flow has one: of two, the second would silently take the place of the first."""
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
        """Put each schedule where it falls due, or correct one that was declared anew, or while the store's clock was
        ahead. What is there stays."""
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

    def put_off(self, record: Record) -> float:
        return lease_for(interval_at(self.schedules[record.queue].ticks, record.due_at or record.updated_at))

    def carry_out(self, record: Record) -> Operation[None]:
        schedule = self.schedules[record.queue]
        found = yield from self._store.read(record.at)
        if found.record is None or found.record.version != record.version:
            return  # another scheduler was here
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
        except PayloadMismatch as error:  # one run a day, say, of a tick an hour: it must not hold up those to come
            log.warning("%s: tick %s is left alone, its key is taken: %s", schedule.flow.name, as_tick(tick), error)
        return structs.replace(note, last=tick)


def _run_before(schedule: Schedule, note: ScheduleNote) -> str:
    """The run of the last tick that was started; "" if there was none."""
    if note.last is None:
        return ""
    return schedule.flow.handle(schedule.flow.key((as_tick(note.last),), {})).id


def _next(schedule: Schedule, record: Record, note: ScheduleNote, now: float) -> Replace:
    """By version: of several schedulers one moves it on."""
    due_in = max(0.0, note.next - now)
    return Replace(record.at, body_of(note), version=record.version, queue=schedule.queue, due_in=due_in)
