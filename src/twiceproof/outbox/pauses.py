"""Paused targets: nothing is published to them, by any relay, until a person resumes them.

A target is paused by a person, or by a relay when it answers that it wants no more (a webhook's 410 Gone). The record
is in the ledger: it holds for every relay, and after a restart.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from msgspec import Struct

from ..claims.claim import body_of, validate_name
from ..errors import Misuse
from ..operations import Operation
from ..records import SELF, Address, Conflict, Insert, Record, Remove, record_kind
from ..stores.base import Store, scan_all

__all__ = ["LOOK_EVERY", "PauseWatch", "PausedTarget", "list_pauses", "pause_target", "resume_target"]


SPACE, PAUSE_KIND = "~targets", record_kind("pause")  # no tenant's own: a name has no tilde
LOOK_EVERY = 5.0  # seconds between two looks of a relay that has messages to publish


class PausedTarget(Struct, frozen=True, omit_defaults=True):
    """A target that nothing is published to: since when, why, and who paused it ("relay": its own answer did)."""

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
    """Publish nothing more to a target. One that is paused stays as it is."""
    at = _address(validate_name("target", target))
    while True:
        outcome = yield from store.write(Insert(at, body_of(PausedTarget(target, why, by))))
        if isinstance(outcome, Conflict) and outcome.found is not None:
            return _shown(outcome.found)
        found = (yield from store.read(at)).record
        if found is not None:
            return _shown(found)


def resume_target(store: Store, target: str) -> Operation[PausedTarget]:
    """Publish to a paused target again. Relays that run notice it within seconds."""
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
    """What a relay knows of its target's pause. It looks when it starts, and then while it has something to publish."""

    def __init__(self, store: Store, target: str, monotonic: Callable[[], float]) -> None:
        self._store = store
        self._at = _address(target)
        self._monotonic = monotonic
        self._looked: float | None = None
        self.paused: PausedTarget | None = None

    @property
    def first(self) -> bool:
        """Whether nothing is known yet, or it was paused: then it looks before it takes messages."""
        return self._looked is None or self.paused is not None

    def look(self) -> bool:
        """Return whether the target is paused, as of the last few seconds."""
        now = self._monotonic()
        if self._looked is None or now - self._looked >= LOOK_EVERY:
            record = self._store.read(self._at).block().record
            self.paused = None if record is None else _shown(record)
            self._looked = now
        return self.paused is not None

    def forget(self) -> None:
        """Look again at the next opportunity."""
        self._looked = None
