"""The high-water mark of an object: the newest version admitted. It is moved before anything acts on that version.

`decide` is pure: the mark and an event go in, the decision comes out.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import Struct, structs

from ...claims.claim import body_of, space_of
from ...claims.states import EXPIRE
from ...records import Address, Insert, Record, Replace, record_kind
from .declaration import Compare, Version

__all__ = [
    "KIND",
    "ApplyDecision",
    "ClashDecision",
    "DropDecision",
    "GoDecision",
    "Mark",
    "MixedDecision",
    "OrderedEvent",
    "ParkDecision",
    "decide",
    "mark_at",
    "mark_of",
    "mark_write",
]


KIND = record_kind("mark", expires=True)
MOST_PARKED = 100  # runs beyond this number wait until their time-out instead of being woken


class Mark(Struct, frozen=True, omit_defaults=True):
    """The body of the mark's record."""

    kind: Compare
    version: str
    run: str
    fingerprint: str = ""
    fetched: bool = False  # there was a gap: its run applies the fetched state instead of its event
    parked: Mapping[str, str] = {}  # runs that wait for a version in between, by their own version

    @property
    def newest(self) -> Version:
        return Version(self.kind, self.version)


class OrderedEvent(Struct, frozen=True):
    """A version of an object that a run wants to apply. `waited`: its waiting time is over.

    `forked_from`: the run that this one repeats on purpose.
    """

    version: Version
    run: str
    fingerprint: str
    waited: bool = False
    forked_from: str = ""


class ApplyDecision(Struct, frozen=True):
    """Write this mark; if it lands, the run may act."""

    mark: Mark


class GoDecision(Struct, frozen=True):
    """The mark is this run's own: it continues."""

    mark: Mark


class DropDecision(Struct, frozen=True):
    """A newer version was admitted, or this one by another run (`same`)."""

    mark: Mark
    same: bool = False


class ClashDecision(Struct, frozen=True):
    """The same version with another payload."""

    mark: Mark


class MixedDecision(Struct, frozen=True):
    """The object's versions were of another kind so far."""

    mark: Mark


class ParkDecision(Struct, frozen=True):
    """Versions in between are missing. Write this mark, then wait."""

    mark: Mark
    missing: int


Decision = ApplyDecision | GoDecision | DropDecision | ClashDecision | MixedDecision | ParkDecision


def decide(mark: Mark | None, event: OrderedEvent, *, park: bool, first: int | None, fetch: bool = False) -> Decision:
    """Decide about an event.

    `park`: wait for a gap to close. `first`: an object's first version. `fetch`: the source is
    queried after a gap.
    """
    if mark is not None and mark.run == event.run:
        return GoDecision(mark)
    if mark is not None and mark.kind != event.version.kind:
        return MixedDecision(mark)
    ours = event.version.place
    if mark is not None and ours <= mark.newest.place:
        return _not_newer(mark, event)
    newest = mark.newest.number if mark else None if first is None else first - 1
    missing = _missing(newest, event) if park else None
    if missing is not None and not event.waited:
        return ParkDecision(_with_parked(mark or Mark("integer", str(missing - 1), ""), event), missing)
    return _apply(mark, event, fetched=fetch and missing is not None)


def _not_newer(mark: Mark, event: OrderedEvent) -> ApplyDecision | DropDecision | ClashDecision:
    equal = event.version.place == mark.newest.place
    same = equal and (mark.fetched or mark.fingerprint == event.fingerprint)
    if event.forked_from and (same or mark.run == event.forked_from):
        return _inherit(mark, event)
    if not equal:
        return DropDecision(mark)
    return DropDecision(mark, same=True) if same else ClashDecision(mark)


def _inherit(mark: Mark, event: OrderedEvent) -> ApplyDecision:
    """A fork of the run admitted last is not older than it, and takes its place."""
    fetched = mark.fetched and mark.fingerprint == event.fingerprint
    return ApplyDecision(structs.replace(mark, run=event.run, fingerprint=event.fingerprint, fetched=fetched))


def _missing(newest: int | None, event: OrderedEvent) -> int | None:
    """The version that should come next, if it is not this one."""
    number = event.version.number
    return None if newest is None or number is None or number <= newest + 1 else newest + 1


def _apply(mark: Mark | None, event: OrderedEvent, *, fetched: bool) -> ApplyDecision:
    version = event.version
    parked = {text: run for text, run in (mark.parked.items() if mark else ()) if _is_after(text, version)}
    return ApplyDecision(Mark(version.kind, version.text, event.run, event.fingerprint, fetched, parked))


def _is_after(text: str, version: Version) -> bool:
    return Version(version.kind, text).place > version.place


def _with_parked(mark: Mark, event: OrderedEvent) -> Mark:
    if len(mark.parked) >= MOST_PARKED:
        return mark
    return structs.replace(mark, parked={**mark.parked, event.version.text: event.run})


# -- its record ----------------------------------------------------------------------------------

_decode = msgspec.json.Decoder(Mark).decode


def mark_at(tenant: str, flow: str, thing: str) -> Address:
    return Address(space_of(tenant, f"{flow}@order", thing), KIND, "self")


def mark_of(record: Record | None) -> Mark | None:
    return None if record is None else _decode(record.body)


def mark_write(at: Address, mark: Mark, found: Record | None, keep: float | None) -> Insert | Replace:
    """Conditional on the version: of two runs that saw the same mark, one moves it."""
    body, queue = body_of(mark), "" if keep is None else EXPIRE
    if found is None:
        return Insert(at, body, queue=queue, due_in=keep)
    return Replace(at, body, version=found.version, queue=queue, due_in=keep)
