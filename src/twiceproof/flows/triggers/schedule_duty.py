"""The duty for schedules: one run per tick, however many schedulers there are."""

from __future__ import annotations

import logging

from msgspec import structs

from ...claims.claim import HELD, QUEUED, WAITING, body_of
from ...claims.states import is_expired
from ...drive import Operation
from ...records import Insert, Record, Replace
from ...stores.base import Store
from ..flow import HIGH
from ..workers.duty import Duty
from .schedule import KIND, Schedule, ScheduleNote, as_tick, note_of
from .ticks import passed

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
        self.schedules[schedule.queue] = schedule

    def queues(self) -> list[str]:
        return list(self.schedules)

    def prepare(self) -> Operation[None]:
        """Put each schedule where it falls due, or correct one that was declared anew. What is there stays."""
        for schedule in list(self.schedules.values()):
            found = yield from self._store.read(schedule.at)
            if found.record is None:
                note = schedule.begin(found.now)
                due_in = max(0.0, note.next - found.now)
                yield from self._store.write(Insert(schedule.at, body_of(note), queue=schedule.queue, due_in=due_in))
            elif not schedule.is_as_declared(note_of(found.record.body)):
                old = note_of(found.record.body)
                note = structs.replace(schedule.begin(found.now), last=old.last, skipped=old.skipped)
                yield from self._store.write(_next(schedule, found.record, note, found.now))

    def carry_out(self, record: Record) -> Operation[None]:
        schedule = self.schedules[record.queue]
        found = yield from self._store.read(record.at)
        if found.record is None or found.record.version != record.version:
            return  # another scheduler was here
        note, now = note_of(record.body), found.now
        ticks = passed(schedule.ticks, note.next, now)
        for tick in schedule.chosen(ticks, now):
            note = yield from self._start(schedule, note, tick)
        note = structs.replace(note, next=schedule.ticks.after(max(now, *ticks) if ticks else now))
        yield from self._store.write(_next(schedule, record, note, now))

    def _start(self, schedule: Schedule, note: ScheduleNote, tick: float) -> Operation[ScheduleNote]:
        if schedule.overlap == "skip" and (yield from self._is_open(schedule, note)):
            log.warning("%s: tick %s is skipped, the one before is still under way", schedule.flow.name, as_tick(tick))
            return structs.replace(note, skipped=note.skipped + 1)
        yield from schedule.flow.start((as_tick(tick),), {})
        return structs.replace(note, last=tick)

    def _is_open(self, schedule: Schedule, note: ScheduleNote) -> Operation[bool]:
        if note.last is None:
            return False
        key = schedule.flow.key((as_tick(note.last),), {})
        found = yield from self._store.read(schedule.flow.handle(key).at)
        record = found.record
        return record is not None and not is_expired(record, found.now) and record.state in (QUEUED, HELD, WAITING)


def _next(schedule: Schedule, record: Record, note: ScheduleNote, now: float) -> Replace:
    """By version: of several schedulers one moves it on."""
    due_in = max(0.0, note.next - now)
    return Replace(record.at, body_of(note), version=record.version, queue=schedule.queue, due_in=due_in)
