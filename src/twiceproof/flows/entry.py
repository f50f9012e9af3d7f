"""The entry: what the ledger holds about one step of a run."""

from __future__ import annotations

import msgspec
from msgspec import Raw, Struct, structs

from ..claims.claim import NO_RESULT, Fault, Settlement, Spill, body_of
from ..records import Address, Insert, Record, Replace

__all__ = [
    "DONE",
    "FAILED",
    "KIND",
    "RETRY",
    "STARTED",
    "UNKNOWN",
    "WAITS",
    "Entry",
    "Note",
    "entry_of",
    "entry_write",
    "tried_anew",
]

KIND = "step"
# A start is on record; finished; failed for good; will be tried again; outcome unknown, for a person; a wait.
STARTED, DONE, FAILED, RETRY, UNKNOWN, WAITS = "started", "done", "failed", "retry", "unknown", "waits"


class Note(Struct, frozen=True, omit_defaults=True, gc=False):
    """The body of an entry's record. Its state and times are the record's own."""

    asked: str = ""  # what it was called with, a digest per argument
    repeat: str = ""
    starts: int = 1
    first_at: float | None = None  # the ledger's time at the first start
    began_at: float | None = None  # and at the latest; None: unknown
    not_before: float | None = None  # when it may be tried, looked at or gone on with
    result: Raw = NO_RESULT
    spill: Spill | None = None
    fault: Fault | None = None
    reason: str = ""
    doubt: bool = False  # an attempt ended without an answer: it may have happened
    untold: bool = False  # one ended with an error that says nothing about its effect, a bug for one
    final: bool = False  # the last one ended with an error that no retry cures
    settled: Settlement | None = None
    beside: bool = False  # others were under way at the same time
    order: int = 0  # the how-manieth completion of the run: undo goes backwards
    external: str = ""  # the id that the outside gave it
    unfit: bool = False  # its result did not fit its declared type when it was recorded
    place: str = ""  # the branch of a gathering that it ran in
    sole: bool = False  # no other call of the run may have its id; earlier releases did not see to that

    @property
    def loose(self) -> bool:
        """Whether its result is handed on as it is: it never fitted, or a person said it."""
        return self.unfit or self.settled is not None


class Entry(Struct, frozen=True, gc=False):
    """A note in the ledger. `version` is the store's, empty while it was never written."""

    name: str
    state: str
    note: Note
    version: str = ""
    at: float = 0.0  # when it was written


_decode = msgspec.json.Decoder(Note).decode


def entry_of(record: Record) -> Entry:
    return Entry(record.at.key, record.state, _decode(record.body), record.version, record.updated_at)


def entry_write(space: str, entry: Entry) -> Insert | Replace:
    """By version: an entry that somebody settled meanwhile is not written over."""
    at, body = Address(space, KIND, entry.name), body_of(entry.note)
    if not entry.version:
        return Insert(at, body, entry.state)
    return Replace(at, body, entry.state, version=entry.version)


def tried_anew(entry: Entry) -> Entry:
    """A failure that is tried again by a person's word: counted from the beginning."""
    note = structs.replace(
        entry.note, starts=0, first_at=None, began_at=None, not_before=None, doubt=False,
        untold=False, final=False,
    )  # fmt: skip
    return structs.replace(entry, state=RETRY, note=note)
