"""Drift: what a run has done, and its flow's function no longer calls. Pure: no store, no clock."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from msgspec import Struct

from .context import are_siblings
from .ledger import STEP_DONE, Entry, EntryNote
from .step_identity import has_id, stem_of

__all__ = ["Next", "Unvisited", "missed"]


class Unvisited:
    """What is in the ledger, and was not called in this replay: with an id of its own, and without."""

    __slots__ = ("firm", "loose")

    def __init__(self, names: Iterable[str] = ()) -> None:
        self.firm: set[str] = set()
        self.loose: set[str] = set()
        for name in names:
            (self.loose if has_id(name) else self.firm).add(name)

    def __bool__(self) -> bool:
        return bool(self.firm or self.loose)

    def __iter__(self) -> Iterator[str]:
        yield from self.firm
        yield from self.loose

    def __contains__(self, name: object) -> bool:
        return name in self.firm or name in self.loose

    def discard(self, name: str) -> None:
        self.firm.discard(name)
        self.loose.discard(name)


class Next(Struct, frozen=True, gc=False):
    """The call that a replay has come to, and which is not done."""

    name: str
    place: str = ""  # the branch it stands in
    acts: bool = True  # outside; a timer or a number drawn does not


def missed(
    call: Next, entries: Mapping[str, Entry], unvisited: Unvisited, called: Collection[tuple[str, str]]
) -> list[str]:
    """What must have been called before this, and was not. `called`: places and stems of the calls of this replay.

    A loop may go in another order. So before a call that has an id, the others that have one are missed only where
    nothing speaks for the same loop: neither are calls of its own step still to come, nor was theirs called at all.
    """
    entry = entries.get(call.name)
    gone = [name for name in unvisited.firm if _came_before(name, entries[name], entry, call)]
    if not has_id(call.name):
        return sorted(gone + [name for name in unvisited.loose if _came_before(name, entries[name], entry, call)])
    own = f"{stem_of(call.name)}["
    if any(name.startswith(own) and not _ran_beside(entries[name].note, call.place) for name in unvisited.loose):
        return sorted(gone)  # the first one tells: of a batch there may be thousands
    for name in unvisited.loose:
        known = entries[name]
        if (known.note.place, stem_of(name)) not in called and _came_before(name, known, entry, call):
            gone.append(name)
    return sorted(gone)


def _came_before(name: str, known: Entry, entry: Entry | None, call: Next) -> bool:
    if not call.acts and (known.note.beside or has_id(name)):
        return False  # it does no harm, and what comes in any order is missed by what acts
    if _ran_beside(known.note, call.place):
        return False
    return entry is None or (known.state == STEP_DONE and known.note.order < (entry.note.order or known.note.order + 1))


def _ran_beside(note: EntryNote, place: str) -> bool:
    """Whether nobody can say which comes first. Without a place: on tasks of the flow's own, or in an old release."""
    return note.beside and (not note.place or are_siblings(note.place, place))
