"""A schedule: which flow is started at which ticks, and what happens to those that were missed or overlap."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Literal, get_args

import msgspec
from msgspec import Struct

from ...errors import Misuse
from ...records import Address
from ..flow import Flow
from .ticks import Ticks, latest, passed

__all__ = ["KIND", "CatchUp", "Overlap", "Schedule", "ScheduleNote", "as_tick", "note_of", "takes_tick"]

KIND = "schedule"

Overlap = Literal["skip", "queue", "allow"]
CatchUp = Literal["latest", "all", "none"]


class ScheduleNote(Struct, frozen=True, omit_defaults=True):
    """What the store knows of a schedule: its next tick, and the last one that was started."""

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
                raise Misuse(f"{name}={value!r} means nothing here; say one of {', '.join(get_args(legal))}.")
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
        """Of the ticks that have passed, those that are to be started now, and the one that comes after them.

        Of very many the first ones: the others follow at the next look, and nothing else is held up meanwhile.
        """
        if first > now:
            return [], self.ticks.after(now)
        if self.catch_up == "all":
            ticks = passed(self.ticks, first, now, AT_ONCE)
            return ticks, self.ticks.after(ticks[-1])
        last = latest(self.ticks, first, now)
        missed = self.catch_up == "none" and now - last >= LATE
        return [] if missed else [last], self.ticks.after(last)


LATE = 60.0  # without catching up, a tick that nobody served for so long is missed
AT_ONCE = 100  # ticks that are caught up with at one look


def as_tick(moment: float) -> datetime:
    return datetime.fromtimestamp(moment, UTC)


def takes_tick(function: Callable[..., Any]) -> bool:
    """Whether the function wants to know which tick it runs for."""
    return bool(inspect.signature(function).parameters)
