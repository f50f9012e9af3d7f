"""Carries out a step whose entry is written in the transaction of its own work: both are there, or neither."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from ...claims.results import Packed
from ...drive import Operation, Raised
from ...errors import NotDone
from ...records import Address, Check, Conflict, Write
from ..engine import Park
from ..entry import DONE, KIND, Entry, Note, entry_of, entry_write
from .transaction import Committed, InDoubt, Refused, TornApart

if TYPE_CHECKING:
    from ..calling import Calling
    from ..session import Session

__all__ = ["Joined", "KnownBetter", "Recorded", "attempt_joined"]

TORN = "its function ended the transaction itself, so its work may be there without its ledger entry"


class Recorded(Struct, frozen=True):
    """Work and entry are in the database."""


class KnownBetter(Struct, frozen=True):
    """Nothing of this attempt is there; the ledger has news about the step, or about the run."""


Joined = Recorded | KnownBetter | Park | Raised
Done = Callable[[Any], tuple[Note, Packed]]


def attempt_joined(session: Session, calling: Calling, done: Done) -> Operation[Joined]:
    transaction = calling.step.transaction
    assert transaction is not None  # noqa: S101 - asked before
    draft = _Draft(session, calling, done)
    hold, heartbeat = session.hold, session.parts.heartbeat
    ran = yield from transaction.attempt(calling.args, calling.kwargs, draft.writes, lambda: heartbeat.drop(hold))
    if isinstance(ran, Committed) and ran.written is not None and draft.entry is not None:
        session.ledger.recorded(draft.entry, ran.written)
        session.crashed = False
        calling.step.results.mind(ran.value, draft.packed)
        return Recorded()
    if isinstance(ran, TornApart):
        return Park(TORN)
    if isinstance(ran, Refused | InDoubt):
        return (yield from _ask_the_database(session, draft, ran))
    assert isinstance(ran, Raised)  # noqa: S101 - a commit without a record was not asked for
    return ran


class _Draft:
    """The entry as it would be, made when the function has returned and before the commit."""

    def __init__(self, session: Session, calling: Calling, done: Done) -> None:
        self.entry: Entry | None = None
        self.packed = Packed()
        self.name = calling.name
        self.fence = 0
        self._session = session
        self._done = done

    def writes(self, value: Any) -> Sequence[Sequence[Write]]:
        """With the slots of an ordered run: whoever lost its turn commits nothing, and nobody takes it meanwhile."""
        session = self._session
        note, self.packed = self._done(value)
        self.entry = session.ended(self.name, DONE, note)
        held = session.hold.held
        self.fence = held.fence
        ours = Check(held.at, fence=held.fence)
        turn = [(Check(slot.held.at, fence=slot.held.fence),) for slot in session.slots]
        return *turn, (ours, entry_write(session.space, self.entry), *self.packed.writes(session.space, None))


def _ask_the_database(session: Session, draft: _Draft, ran: Refused | InDoubt) -> Operation[KnownBetter | Raised]:
    """After a refusal or a commit without an answer. Raises if the run is no longer ours."""
    if (yield from _is_written(session, draft.name)) or session.hold.held.fence != draft.fence:
        return KnownBetter()
    if isinstance(ran, InDoubt):
        return Raised(ran.error)
    at = ran.conflict.at
    if any(at == slot.held.at for slot in session.slots):
        return KnownBetter()  # its turn is over: it gives way before it would act again
    return Raised(NotDone(f"the ledger did not take it, because of what was found at {at.kind} {at.key}"))


def _is_written(session: Session, name: str) -> Operation[bool]:
    """Whether the entry is another than we know. A check waits for a commit under way; a read would overtake it."""
    old = session.ledger.entries.get(name)
    at = Address(session.space, KIND, name)
    check = Check(at, version=old.version) if old else Check(at, absent=True)
    refused = yield from session.ledger.flush(check)
    if not isinstance(refused, Conflict):
        return False
    if refused.found is not None:
        session.ledger.entries[name] = entry_of(refused.found)
    else:
        session.ledger.entries.pop(name, None)
    return True
