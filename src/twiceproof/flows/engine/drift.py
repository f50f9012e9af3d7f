"""Drift: what a run has done and its flow's function no longer calls. Pure: no store, no clock."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from msgspec import Struct

from .context import are_siblings
from .ledger import STEP_DONE, Entry, EntryNote
from .step_identity import has_id, stem_of

__all__ = ["Next", "Unvisited", "missed"]


class Unvisited:
    """Entries of the ledger that were not called in this replay: `loose` with an id of their own, `firm` without."""

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
    """The call that a replay has reached and that is not done."""

    name: str
    place: str = ""  # its branch
    acts: bool = True  # has an effect; a timer or a random number has none


def missed(
    call: Next, entries: Mapping[str, Entry], unvisited: Unvisited, called: Collection[tuple[str, str]]
) -> list[str]:
    """Return the entries that must be called before this call and were not. `called`: places and stems of this replay.

    A loop may run in another order. So before a call with an id, other entries with an id are missed only if nothing
    suggests the same loop: no entries of its own step are still to come, and theirs was not called at all.
    """
    entry = entries.get(call.name)
    gone = [name for name in unvisited.firm if _came_before(name, entries[name], entry, call)]
    if not has_id(call.name):
        return sorted(gone + [name for name in unvisited.loose if _came_before(name, entries[name], entry, call)])
    own = f"{stem_of(call.name)}["
    if any(name.startswith(own) and not _is_unordered(entries[name].note, call.place) for name in unvisited.loose):
        return sorted(gone)  # one is enough: a batch may have thousands
    for name in unvisited.loose:
        known = entries[name]
        if (known.note.place, stem_of(name)) not in called and _came_before(name, known, entry, call):
            gone.append(name)
    return sorted(gone)


def _came_before(name: str, known: Entry, entry: Entry | None, call: Next) -> bool:
    if not call.acts and (known.note.concurrent or has_id(name)):
        return False  # it has no effect, and entries without an order are missed by calls that act
    if _is_unordered(known.note, call.place):
        return False
    return entry is None or (known.state == STEP_DONE and known.note.order < (entry.note.order or known.note.order + 1))


def _is_unordered(note: EntryNote, place: str) -> bool:
    """Whether their order is undefined. Without a place, it ran on tasks of the flow's own, or in an old release."""
    return note.concurrent and (not note.place or are_siblings(note.place, place))
