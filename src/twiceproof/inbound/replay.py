"""Replays dead letters: what a replay would do, event by event, and the replay itself, through the same claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Struct

from ..claims.claim import DONE, FAILED, REVIEW, claim_of, shown_run
from ..claims.results import unpack
from ..claims.states import is_expired
from ..errors import Misuse
from ..flows.runtime import Runtime
from ..operations import Operation
from ..records import Record
from ..stores.base import Store
from .admit import ADMITTED, Admission, Admitted, EventNote
from .dead_letters import DeadLetter, body_of_letter, find_letter, mark_replayed, read_events
from .hook import Hook
from .source import Envelope, Event, Handshake, Poison, Source

__all__ = ["PlannedEvent", "plan_replay", "read_letter", "replay_letter"]


class PlannedEvent(Struct, frozen=True):
    """What a replay would do with one event, as things are now: "start" a run, answer a "duplicate", refuse it as a
    "mismatch" (it came before with other contents) or for another reason ("refuse"), "wait" for another delivery that
    is at work on it, or leave it in "review".
    """

    event: str
    would: str
    run: str = ""  # of a duplicate: the run that the first delivery started
    reason: str = ""


def replay_letter(runtime: Runtime, hooks: Mapping[str, Hook], name: str, *, by: str = "") -> Operation[list[Admitted]]:
    """Admit a stored delivery again, under the same claims: it was verified when it was received. `by`: who asked."""
    letter, admission, events = yield from _read_again(runtime, hooks, name)
    admitted = yield from admission.admit_each(events)
    if letter.refused_events or all(one.outcome in ADMITTED for one in admitted):
        yield from mark_replayed(runtime.store, letter, _still_refused(letter, admitted), by)
    return admitted


def plan_replay(runtime: Runtime, hooks: Mapping[str, Hook], name: str) -> Operation[list[PlannedEvent]]:
    """Return what `replay_letter` would do with each event of a letter. Writes nothing.

    Whether the flow takes an event's contents is known only when it is started.
    """
    _, admission, events = yield from _read_again(runtime, hooks, name)
    planned = []
    for event in events:
        planned.append((yield from _planned(runtime.store, admission, event)))
    return planned


def _planned(store: Store, admission: Admission, event: Event | Poison) -> Operation[PlannedEvent]:
    if isinstance(event, Poison):
        return PlannedEvent("", "refuse", reason=event.reason)
    try:
        request = admission.request_for(event)
    except Misuse as error:
        return PlannedEvent(event.name, "refuse", reason=str(error))
    found = yield from store.read(request.at)
    record = found.record
    if record is None or is_expired(record, found.now) or record.state == FAILED:
        return PlannedEvent(event.name, "start")
    return (yield from _known(store, event.name, record, request.fingerprint))


def _known(store: Store, name: str, record: Record, fingerprint: str) -> Operation[PlannedEvent]:
    """Of an event whose claim exists."""
    claim = claim_of(record)
    if fingerprint and claim.fingerprint and claim.fingerprint != fingerprint:
        return PlannedEvent(name, "mismatch", reason="it came before, with other contents")
    if record.state == DONE:
        note = yield from unpack(store, record.at, claim.result, claim.spill)
        run = msgspec.json.decode(note, type=EventNote).run if note else ""
        return PlannedEvent(name, "duplicate", run and shown_run(run))
    if record.state == REVIEW:
        return PlannedEvent(name, "review", reason=claim.reason)
    return PlannedEvent(name, "wait", reason="another delivery of it is being processed")


def _read_again(
    runtime: Runtime, hooks: Mapping[str, Hook], name: str
) -> Operation[tuple[DeadLetter, Admission, Sequence[Event | Poison]]]:
    letter = yield from find_letter(runtime.store, runtime.tenant, name)
    declared = hooks.get(letter.hook)
    if declared is None:
        raise Misuse(f"{letter.id} was received by {letter.hook!r}, which this app does not declare; name another app.")
    hook = (yield from declared.live(runtime.tenant)) or declared
    envelope, events = yield from read_letter(runtime.store, letter, hook.source)
    return letter, (hook.admission or Admission)(runtime, hook, envelope), events


def read_letter(
    store: Store, letter: DeadLetter, source: Source
) -> Operation[tuple[Envelope, Sequence[Event | Poison]]]:
    """Return a stored delivery, and the events in it that were refused; all of them if the whole delivery was."""
    body = yield from body_of_letter(store, letter)
    envelope = Envelope(letter.hook, body, letter.headers, letter.tenant, letter.received_at)
    reading = read_events(body) if letter.redacted else source.read(envelope)
    if isinstance(reading, Handshake | Poison):
        reason = reading.reason if isinstance(reading, Poison) else "it is a handshake"
        raise Misuse(f"{letter.id} still cannot be read: {reason}. Correct the source's options, or let it expire.")
    return envelope, _events_to_replay(letter, reading)


def _still_refused(letter: DeadLetter, admitted: Sequence[Admitted]) -> list[str]:
    """Return the events that were not admitted, including those that the source no longer finds in the body."""
    taken = {one.event for one in admitted if one.outcome in ADMITTED}
    taken -= {one.event for one in admitted if one.outcome not in ADMITTED}
    return [name for name in letter.refused_events if name not in taken]


def _events_to_replay(letter: DeadLetter, reading: Sequence[Event | Poison]) -> Sequence[Event | Poison]:
    if not letter.refused_events:
        return reading
    found = [one for one in reading if isinstance(one, Event) and one.name in letter.refused_events]
    if not found:  # an empty replay has no failures, and would delete the letter
        raise Misuse(
            f"{letter.id} no longer contains event {letter.refused_events[0][:80]!r} as its source reads it. "
            "Correct the source's options, or let it expire."
        )
    return found
