"""When nothing is published: a target that is paused, and a store or target that cannot be reached.

A target is paused by a person, or by a relay when the target answers that it wants no more messages (a webhook's 410
Gone), until a person resumes it. The record is in the ledger: it holds for every relay, and after a restart. An outage
is known to one relay: it has one log line when it begins and one when it ends, and growing pauses between tries.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec
from msgspec import Struct

from ..claims.claim import body_of, validate_name
from ..clock import Clock, jitter
from ..errors import Misuse
from ..operations import Operation
from ..records import SELF, Address, Conflict, Insert, Record, Remove, record_kind
from ..stores.base import Store, scan_all

__all__ = [
    "LOOK_EVERY",
    "Outage",
    "PauseWatch",
    "PausedTarget",
    "ReasonLog",
    "list_pauses",
    "pause_target",
    "resume_target",
]


log = logging.getLogger("twiceproof.relay")


SPACE, PAUSE_KIND = "~targets", record_kind("pause")  # cannot clash with a tenant: their names have no tilde
LOOK_EVERY = 5.0  # seconds between two looks of a relay that has messages to publish
FIRST_RETRY, LONGEST_RETRY = 0.5, 30.0  # seconds, while the store or a target cannot be reached
MOST_TOLD = 50  # different reasons of refusals in the log of a process


class PausedTarget(Struct, frozen=True, omit_defaults=True):
    """A paused target: since when, why, and by whom ("relay": because of the target's own answer)."""

    target: str
    why: str = ""
    by: str = ""
    paused_at: float = 0.0


_decode = msgspec.json.Decoder(PausedTarget).decode


def _address(target: str) -> Address:
    return Address(f"{SPACE}/{target}", PAUSE_KIND, SELF)


def _shown(record: Record) -> PausedTarget:
    return msgspec.structs.replace(_decode(record.body), paused_at=record.created_at)


def pause_target(store: Store, target: str, *, by: str, why: str = "") -> Operation[PausedTarget]:
    """Publish nothing more to a target. Has no effect on a target that is paused already."""
    at = _address(validate_name("target", target))
    while True:
        outcome = yield from store.write(Insert(at, body_of(PausedTarget(target, why, by))))
        if isinstance(outcome, Conflict) and outcome.found is not None:
            return _shown(outcome.found)
        found = (yield from store.read(at)).record
        if found is not None:
            return _shown(found)


def resume_target(store: Store, target: str) -> Operation[PausedTarget]:
    """Publish to a paused target again. Running relays notice it within seconds."""
    at = _address(validate_name("target", target))
    while True:
        found = (yield from store.read(at)).record
        if found is None:
            raise Misuse(f"The target {target!r} is not paused; those that are: twiceproof messages list")
        outcome = yield from store.write(Remove(at, version=found.version))
        if not isinstance(outcome, Conflict):
            return _shown(found)


def list_pauses(store: Store) -> Operation[list[PausedTarget]]:
    """Return the targets that are paused, by name."""
    records = yield from scan_all(store, PAUSE_KIND)
    return sorted((_shown(record) for record in records), key=lambda one: one.target)


class PauseWatch:
    """What a relay knows of its target's pause. It queries when it starts, and then only while it has something to
    publish.
    """

    def __init__(self, store: Store, target: str, monotonic: Callable[[], float]) -> None:
        self._store = store
        self._at = _address(target)
        self._monotonic = monotonic
        self._looked: float | None = None
        self.paused: PausedTarget | None = None

    @property
    def first(self) -> bool:
        """Whether the pause must be queried before messages are taken: nothing is known yet, or the target was
        paused.
        """
        return self._looked is None or self.paused is not None

    def look(self) -> bool:
        """Return whether the target is paused; the answer may be a few seconds old."""
        now = self._monotonic()
        if self._looked is None or now - self._looked >= LOOK_EVERY:
            record = self._store.read(self._at).block().record
            self.paused = None if record is None else _shown(record)
            self._looked = now
        return self.paused is not None

    def forget(self) -> None:
        """Look again at the next opportunity."""
        self._looked = None


# -- outages and refusals ------------------------------------------------------------------------


class Outage:
    """The store or a target while it cannot be reached."""

    def __init__(self, what: str, clock: Clock) -> None:
        self._what = what
        self._clock = clock
        self._pause = FIRST_RETRY
        self.until = 0.0
        self.since: float | None = None

    def fail(self, why: object, asked: float | None = None) -> float:
        """Return after how many seconds to try again, at least `asked` (what the other side demanded)."""
        now = self._clock.monotonic()
        if self.since is None:
            self.since, self._pause = now, FIRST_RETRY
            log.warning("%s cannot be reached, will try again: %s", self._what, why)
        pause = max(jitter(self._pause), asked or 0.0)
        self._pause = min(self._pause * 2, LONGEST_RETRY)
        self.until = now + pause
        return pause

    def end(self) -> None:
        if self.since is not None:
            log.warning("%s is back after %.0f s", self._what, self._clock.monotonic() - self.since)
            self.since = None

    @property
    def left(self) -> float:
        """Seconds until the next try."""
        return 0.0 if self.since is None else max(0.0, self.until - self._clock.monotonic())


class ReasonLog:
    """Logs each reason for which messages are refused once: thousands may be refused for the same one."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def tell(self, what: str, why: str) -> None:
        if why not in self._told and len(self._told) < MOST_TOLD:
            self._told.add(why)
            log.warning("%s, will try again: %s", what, why)
