"""A poll: everything since last time, with a durable cursor, some overlap, and a claim per item."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

import msgspec
from msgspec import Raw, Struct, structs

from ...claims.claim import NO_RESULT
from ...records import Address
from ..flow import Flow
from .schedule import as_tick
from .ticks import Ticks

__all__ = ["KIND", "Poll", "PollNote", "Polled", "poll_note_of"]

KIND = "poll"
LEAP = 60.0  # seconds by which a poll may be late
FURTHEST_BACK = 2 * 86_400.0


class Polled(Struct, frozen=True):
    """What a polling function may return: items, and where to go on next time (any JSON value)."""

    items: Iterable[Any]
    cursor: Any = None


class PollNote(Struct, frozen=True, omit_defaults=True):
    """What the store knows of a poll."""

    next: float
    cursor: Raw = NO_RESULT  # the user's own; empty: by time
    until: float | None = None  # up to when everything was fetched
    started: int = 0  # items handed to the flow so far
    sure: float | None = None  # the same before the store's time last went forwards by a leap: an outage, or its clock


poll_note_of = msgspec.json.Decoder(PollNote).decode


class Poll:
    """One declaration."""

    def __init__(
        self, name: str, function: Callable[..., Any], ticks: Ticks, flow: Flow, overlap: float, since: datetime | None
    ) -> None:  # fmt: skip
        self.name = name
        self.function = function
        self.ticks = ticks
        self.flow = flow
        self.overlap = overlap
        self.since = since
        tenant = flow.policy.tenant
        self.at = Address(f"{tenant}/{name}/", KIND, "self")
        self.queue = f"{tenant}/{name}@poll"

    def begin(self, now: float) -> PollNote:
        """The first time at once: there may be a lot to catch up with."""
        return PollNote(now)

    def polled(self, note: PollNote, now: float) -> PollNote:
        """Everything was fetched up to now."""
        leapt = note.until is not None and now - self.ticks.after(note.until) > LEAP
        return structs.replace(note, until=now, sure=note.until if leapt else note.sure)

    def corrected(self, note: PollNote, now: float) -> PollNote:
        """Noted while the store's clock was ahead: go on where everything is known to be fetched.

        Not further back than half the time for which the flow remembers its keys: an item must not be done again.
        """
        note = structs.replace(note, next=self.ticks.after(now))
        if note.until is None or note.until <= now:
            return note
        keep = self.flow.policy.life.keep
        reach = min(FURTHEST_BACK, (FURTHEST_BACK if keep is None else keep) / 2)
        until = max(now - reach, min(now, now if note.sure is None else note.sure))
        return structs.replace(note, until=until, sure=None)

    def since_of(self, note: PollNote) -> Any:
        """Where the function goes on: its own cursor, or a time a little before the last poll."""
        if note.cursor:
            return msgspec.json.decode(note.cursor)
        return self.since if note.until is None else as_tick(note.until - self.overlap)
