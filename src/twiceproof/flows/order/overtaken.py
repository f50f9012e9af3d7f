"""A run that was overtaken after it had begun: what is open about it does not end with it."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import structs

from ...drive import Operation
from ..ending import Ended, Reviewed, as_review
from ..entry import RETRY, STARTED, UNKNOWN, Entry
from ..ledger import Ledger
from ..parts import Parts
from ..run import Taken
from ..undo import is_aside

__all__ = ["doubts", "leave_doubts", "ledger_of"]

ASKED = ("never", "check", "keyed")  # what has happened of these, somebody must know; the others may just be so


def ledger_of(parts: Parts, taken: Taken) -> Operation[Ledger]:
    """What the run has done so far. One that has just begun has done nothing."""
    ledger = Ledger(parts.claims, taken.hold, parts.courier)
    if taken.claim.attempt > 1:
        yield from ledger.load()
    return ledger


def doubts(entries: Mapping[str, Entry]) -> list[Entry]:
    """Steps that may have happened, and nobody will ask about them any more."""
    return [entry for entry in entries.values() if _is_open(entry) and not is_aside(entry.name, entries)]


def _is_open(entry: Entry) -> bool:
    begun = entry.state == STARTED or (entry.state == RETRY and entry.note.doubt)
    return entry.state == UNKNOWN or (begun and entry.note.repeat in ASKED)


def leave_doubts(ledger: Ledger, taken: Taken, doubts: list[Entry], why: str) -> Operation[Ended]:
    """To a person, who says of each whether it happened. Then the run is dropped."""
    for entry in doubts:
        if entry.state != UNKNOWN:
            note = structs.replace(entry.note, reason=f"{why}; whether it was done is unknown")
            ledger.note(structs.replace(entry, state=UNKNOWN, note=note))
    reason = f"{why}, but the outcome of {', '.join(sorted(entry.name for entry in doubts))} is unknown"
    yield from ledger.flush(end=as_review(taken.hold.held.at, taken.claim, reason))
    return Reviewed(reason)
