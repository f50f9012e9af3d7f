"""Drift: what a run has done, and its flow's function no longer calls. Pure: no store, no clock."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from msgspec import Struct

from .batches.branch import are_siblings
from .entry import DONE, Entry, Note
from .names import has_id, stem_of

__all__ = ["Next", "missed"]


class Next(Struct, frozen=True, gc=False):
    """The call that a replay has come to, and which is not done."""

    name: str
    place: str = ""  # the branch it stands in
    acts: bool = True  # outside; a timer or a number drawn does not


def missed(
    call: Next, entries: Mapping[str, Entry], unvisited: Collection[str], called: Collection[tuple[str, str]]
) -> list[str]:  # fmt: skip
    """What must have been called before this, and was not. `called`: places and stems of the calls of this replay.

    A loop may go in another order. So before a call that has an id, the others that have one are missed only where
    nothing speaks for the same loop: neither are calls of its own step still to come, nor was theirs called at all.
    """
    entry = entries.get(call.name)
    before = [name for name in unvisited if _came_before(name, entries[name], entry, call)]
    if not has_id(call.name):
        return sorted(before)
    loose = [name for name in before if has_id(name)]
    stem = stem_of(call.name)
    if any(stem_of(name) == stem for name in loose):
        return sorted(set(before) - set(loose))
    looped = {name for name in loose if (entries[name].note.place, stem_of(name)) in called}
    return sorted(set(before) - looped)


def _came_before(name: str, known: Entry, entry: Entry | None, call: Next) -> bool:
    if not call.acts and (known.note.beside or has_id(name)):
        return False  # it does no harm, and what comes in any order is missed by what acts
    if _ran_beside(known.note, call.place):
        return False
    return entry is None or (known.state == DONE and known.note.order < (entry.note.order or known.note.order + 1))


def _ran_beside(note: Note, place: str) -> bool:
    """Whether nobody can say which comes first. Without a place: on tasks of the flow's own, or in an old release."""
    return note.beside and (not note.place or are_siblings(note.place, place))
