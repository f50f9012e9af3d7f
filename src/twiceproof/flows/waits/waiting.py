"""`app.sleep` and `app.wait_for`: park a run until its time has come or something arrives."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Raw

from ...claims.claim import NO_RESULT, body_of, shown_run
from ...claims.results import json_reader
from ...clock import moment
from ...errors import Misuse, ValueRefused, WaitTimedOut
from ...keys import validate_key
from ...operations import Operation, Sleep
from ...records import Address, Check, Insert, Record, Remove, Write
from ..engine.exits import Wait
from ..engine.ledger import STEP_DONE, WAITS, Entry, EntryNote
from ..engine.session import Session
from .records import ARRIVAL_KIND, TIMEOUT, WAIT, Arrival, arrival_of, encode_payload

__all__ = ["PayloadType", "Pending", "arrived", "awaited", "sleep", "timed_out", "wait_for", "wait_name"]


def sleep(session: Session, seconds: float) -> Operation[None]:
    """Park the run until its time has come; sleep in place if the time is short."""
    name = session.name_for("sleep")
    entry = session.visit(name, "") or _begin(session, name, seconds)
    left = (entry.note.not_before or 0.0) - session.ledger.now()
    if entry.state == STEP_DONE:
        return
    if left > session.patience:
        session.stop_run(Wait(f"sleeps until {moment(session.ledger.now() + left)}", left))
    if left > 0:
        yield from session.ledger.flush()
        yield Sleep(session.runtime.clock, left)
    session.finished(name, STEP_DONE, EntryNote(result=Raw(NULL), not_before=entry.note.not_before))


def _begin(session: Session, name: str, seconds: float) -> Entry:
    session.refuse_unvisited(name)
    now = session.ledger.now()
    entry = Entry(name, WAITS, EntryNote(not_before=now + seconds), at=now)
    session.ledger.note(entry)
    return entry


NULL = b"null"
LATE = "timeout"  # an entry's reason when the wait timed out


class Pending:
    """Something a run waits for. `name` is its name in the ledger, and the arrival's key."""

    def __init__(
        self, name: str, why: str, seconds: float | None, *, otherwise: Raw = NO_RESULT, asked: str = ""
    ) -> None:
        self.name = name
        self.why = why
        self.seconds = seconds
        self.otherwise = otherwise  # what a time-out answers; unset: it raises
        self.asked = asked

    def open(self, session: Session) -> Operation[None]:
        """Writes that go with the first suspension."""
        yield from ()

    def close(self, session: Session) -> Operation[Sequence[Write]]:
        """Writes that go with the time-out."""
        yield from ()
        return ()


def wait_name(name: str) -> str:
    return f"{WAIT}{validate_key(name)}"


class PayloadType:
    """The type that a flow declares for a payload; None: plain JSON.

    It is checked by the flow that waits, not where the payload is accepted: the server may not have the flow's code,
    and a payload may arrive before the flow has reached its wait.
    """

    def __init__(self, declared: Any) -> None:
        self._shown = declared.__qualname__ if isinstance(declared, type) else inspect.formatannotation(declared)
        try:
            self._decode = json_reader(Any if declared is None else declared)
        except TypeError as error:
            raise Misuse(
                f"type={self._shown} has no JSON form ({error}); give a dataclass, a msgspec.Struct, a pydantic model "
                "or plain types."
            ) from None

    def encode_default(self, default: Any) -> Raw:
        """Encode a default. One of another type is refused now: it would not come back as it is."""
        encoded = encode_payload(default, "default=")
        if default is not None:
            try:
                self._decode(encoded)
            except msgspec.ValidationError as error:
                raise ValueRefused(f"default= is no {self._shown} ({error}); give a value of it, or None.") from None
        return encoded

    def restore(self, session: Session, name: str, note: EntryNote) -> Any:
        """Decode how a wait ended. If that does not fit, a person gives another payload, or the code is repaired."""
        if note.reason == LATE and bytes(note.result) == NULL:  # default=None, whatever the type
            return None
        try:
            return self._decode(note.result)
        except msgspec.ValidationError as error:
            if session.undoing:  # it is called only to find what is to be undone
                return msgspec.json.decode(note.result)
            session.ask_for_result(name, f"what arrived does not fit {self._shown} ({error})")


def wait_for(
    session: Session, name: str, seconds: float | None, otherwise: Raw, payload: PayloadType
) -> Operation[Any]:
    """Return the payload that arrived, or the default after a time-out; the same in a replay."""
    pending = Pending(wait_name(name), f"waits for {name}", seconds, otherwise=otherwise)
    note = yield from awaited(session, pending)
    if not note.result:
        raise timed_out(session, f"nothing arrived for {name} in time", name)
    return payload.restore(session, pending.name, note)


def timed_out(session: Session, what: str, name: str) -> WaitTimedOut:
    return WaitTimedOut(
        f"{session.claim.operation} for {session.claim.key!r}: {what}; catch WaitTimedOut to go another way, or "
        "give a default=.",
        name=name,
        run=shown_run(session.claim.run),
    )


def awaited(session: Session, pending: Pending) -> Operation[EntryNote]:
    """Return how the wait ended. Leaves by `Unwind` while it has not."""
    _refuse_twice(session, pending.name)
    entry = session.visit(pending.name, pending.asked)
    if entry is not None and entry.state == STEP_DONE:
        return entry.note
    at = Address(session.space, ARRIVAL_KIND, pending.name)
    arrival = yield from arrived(session, at)
    if arrival is None:
        entry = yield from _begun(session, pending, entry)
        left = None if entry.note.not_before is None else entry.note.not_before - session.ledger.now()
        if left is not None and left <= 0:
            arrival = yield from _time_out(session, pending, at)
        if arrival is None:
            session.stop_run(Wait(pending.why, left and max(left, 0.0), (Check(at, absent=True),)))
    elif entry is None:
        session.refuse_unvisited(pending.name)
    return session.finished(pending.name, STEP_DONE, _ended(pending, arrival)).note


def _refuse_twice(session: Session, name: str) -> None:
    """Refuse two waits with one name: the second would be answered by the first one's arrival."""
    if not session.take_name(name):
        kind, _, word = name.partition(":")
        raise Misuse(
            f"{session.claim.operation} waits twice for {word!r} ({kind}) in one run; give each wait a name of its "
            'own, like f"paid:{line}".'
        )


def arrived(session: Session, at: Address) -> Operation[Record | None]:
    """The arrival for this start of the run. One for an earlier start of the same key is discarded."""
    store = session.runtime.store
    record = (yield from store.read(at)).record
    if record is None or arrival_of(record).start_id == session.work.start_id:
        return record
    yield from store.write(Remove(at, version=record.version))
    return None


def _begun(session: Session, pending: Pending, entry: Entry | None) -> Operation[Entry]:
    """The time counts from the first visit, whatever a later release says; or again, after a settled stop."""
    if entry is not None and (entry.note.not_before is not None or pending.seconds is None):
        return entry
    if entry is None:
        session.refuse_unvisited(pending.name)
    now = session.ledger.now()
    until = None if pending.seconds is None else now + pending.seconds
    version = entry.version if entry else ""
    session.ledger.note(Entry(pending.name, WAITS, EntryNote(pending.asked, not_before=until), version, now))
    if entry is None:
        yield from pending.open(session)
    return session.ledger.entries[pending.name]


def _time_out(session: Session, pending: Pending, at: Address) -> Operation[Record | None]:
    """Claimed like an arrival: of a time-out and a callback at the same moment, exactly one counts."""
    beside = yield from pending.close(session)
    late = Arrival(session.work.start_id, pending.otherwise)
    yield from session.ledger.flush(Insert(at, body_of(late), TIMEOUT), *beside)
    return (yield from arrived(session, at))


def _ended(pending: Pending, arrival: Record) -> EntryNote:
    late = arrival.state == TIMEOUT
    return EntryNote(pending.asked, result=arrival_of(arrival).payload, reason=LATE if late else "")
