"""Admits a delivery: verify it, read its events, claim each event, start its run, answer the sender."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct, structs

from ..claims.claim import (
    DONE,
    FAILED,
    HELD,
    QUEUED,
    WAITING,
    Busy,
    Done,
    Failed,
    Held,
    InReview,
    LostHold,
    Mismatch,
    address_of,
    run_address,
    run_id,
    shown_run,
    space_of_run,
)
from ..claims.duplicates import source_var
from ..claims.held_claim import ClaimScope, EnterOutcome
from ..claims.results import Packed
from ..claims.states import ClaimRequest
from ..errors import (
    FlowError,
    KeyRefused,
    Misuse,
    NeedsReview,
    PayloadMismatch,
    PriorFailure,
    ResultNotKept,
    Stale,
    StoreError,
)
from ..flows.handle import Handle
from ..flows.runtime import Runtime, require_own_run
from ..keys import fingerprint, validate_key
from ..operations import Concurrently, InThread, Operation
from ..records import Address
from .dead_letters import (
    DeadLetter,
    keep_letter,
    write_events,
)
from .hook import DEFAULT_RETRY_SECONDS, Hook
from .redaction import redact
from .reply import Reply, not_verified, too_large
from .source import DeliveryOutcome, Envelope, Event, Handshake, Poison, Reading, Source, report

__all__ = ["Admission", "Admitted", "EventNote", "admit", "refused"]


log = logging.getLogger("twiceproof.inbound")

RUNNING_STATES = (QUEUED, HELD, WAITING)
REFUSED_OUTCOMES: tuple[DeliveryOutcome, ...] = ("mismatch", "poison")


class Admitted(Struct, frozen=True):
    """The outcome of one event."""

    outcome: DeliveryOutcome
    run: str = ""
    retry_in: float = DEFAULT_RETRY_SECONDS
    reason: str = ""  # why it was refused
    event: str = ""  # its id; "" for a delivery that could not be read


class EventNote(Struct, frozen=True, omit_defaults=True):
    """The result stored with an event's claim: the run that it started, and the sender's other ids."""

    run: str = ""
    type: str = ""
    delivery: str = ""
    attempt: str = ""
    message: str = ""  # the key of the message that it came in, if that is not the event's id


class Admission:
    """Admits the events of one delivery to one hook."""

    def __init__(self, runtime: Runtime, hook: Hook, envelope: Envelope) -> None:
        self.runtime = runtime
        self.tenant = runtime.tenant  # whose events and runs these are; a hook is declared once for all tenants
        self.hook = hook
        self.envelope = envelope

    def admit_all(self, read: Sequence[Event | Poison]) -> Operation[list[Admitted]]:
        """Admit every event. If any is refused, store the delivery as one dead letter."""
        admitted = yield from self.admit_each(read)
        refused = [one for one in admitted if one.outcome in REFUSED_OUTCOMES]
        if not refused:
            return admitted
        letter = yield from self._dead_letter(refused, read)
        if letter.is_whole:
            return admitted
        # The body could not be stored, so an acknowledged event would be lost: have the sender retry it.
        return [structs.replace(one, outcome="failed") if self._is_retried(one) else one for one in admitted]

    def _is_retried(self, one: Admitted) -> bool:
        """Whether a refused event without a dead letter is retried. One without an id would be retried for days."""
        return one.outcome in REFUSED_OUTCOMES and bool(one.event)

    def admit_each(self, read: Sequence[Event | Poison]) -> Operation[list[Admitted]]:
        """Admit each event independently, so that an unreadable one does not block the others."""
        poison = next((one for one in read if isinstance(one, Poison)), None)
        admitted = yield from self._admit_events([one for one in read if isinstance(one, Event)])
        if poison is None:
            return admitted
        report(self.hook.name, "poison")
        return [*admitted, Admitted("poison", reason=poison.reason)]

    def _admit_events(self, events: Sequence[Event]) -> Operation[list[Admitted]]:
        if len(events) == 1:  # the usual case
            return [(yield from self._admit_and_report(events[0]))]
        first = {event.name: event for event in reversed(events)}
        admitted = yield from Concurrently([self._admit_and_report(event) for event in first.values()])
        # Repeats within one delivery run after the first, which they would otherwise find busy.
        again = [event for event in events if first[event.name] is not event]
        return admitted + (
            (yield from Concurrently([self._admit_and_report(event) for event in again])) if again else []
        )

    def _admit_and_report(self, event: Event) -> Operation[Admitted]:
        admitted = yield from self._admit(event)
        admitted = structs.replace(admitted, event=event.name, run=admitted.run and shown_run(admitted.run))
        report(self.hook.name, admitted.outcome, key=event.id, run=admitted.run)
        return admitted

    def _dead_letter(self, refused: Sequence[Admitted], read: Sequence[Event | Poison]) -> Operation[DeadLetter]:
        """Store the delivery for inspection and replay.

        All of it is replayed if any part has no id; events already admitted are then duplicates. With declared
        secrets, the redacted events are stored instead of the body, and nothing if there are none.
        """
        first = next((one for one in refused if not one.event), refused[0])
        events = [one.event for one in refused] if first.event else []
        letter = yield from keep_letter(
            self.runtime.claims,
            self.hook.name,
            self.envelope,
            first.reason,
            events=events,
            allowed=self.hook.source.needs,
            instead=self._redacted_events(read),
        )
        log.error("%s: a delivery was stored as dead letter %s: %s", self.hook.name, letter.id, first.reason)
        return letter

    def _redacted_events(self, read: Sequence[Event | Poison]) -> bytes | None:
        paths = self.hook.redact
        return (
            write_events([one for one in read if isinstance(one, Event)], paths, self._fingerprint) if paths else None
        )

    def _admit(self, event: Event) -> Operation[Admitted]:
        try:
            request = self.request_for(event)
        except Misuse as error:
            return refused(error)
        scope = ClaimScope(self.runtime.claims, self.runtime.heartbeat, request)
        taken = yield from scope.enter()
        if isinstance(taken, Held):
            return (yield from self._start_run(event, scope))
        if isinstance(taken, Mismatch):
            other = PayloadMismatch(
                "it was delivered before, with different contents", operation=request.operation, key=request.key
            )
            return refused(other)
        admitted = (yield from self._redelivered(taken)) if isinstance(taken, Done) else self._blocked(taken)
        if admitted.outcome != "new":
            self.runtime.claims.duplicates.blocked(self.hook.target, request.key, self.hook.name, tenant=request.tenant)
        return admitted

    def _blocked(self, taken: EnterOutcome) -> Admitted:
        """The outcome of an event whose claim could not be taken."""
        if isinstance(taken, Busy):
            return Admitted("busy", retry_in=min(DEFAULT_RETRY_SECONDS, taken.retry_after or DEFAULT_RETRY_SECONDS))
        if isinstance(taken, LostHold):
            return Admitted("busy", retry_in=DEFAULT_RETRY_SECONDS)
        if isinstance(taken, InReview):
            return Admitted("review", taken.run)
        return Admitted("failed" if isinstance(taken, Failed) else "duplicate")

    def request_for(self, event: Event) -> ClaimRequest:
        """Return what is claimed for an event. One whose id cannot be a key is refused."""
        if not event.id:
            raise KeyRefused("the event has no id to claim")
        key, policy = validate_key(event.id), self.hook.policy
        at = address_of(self.tenant, policy.operation, key)
        return ClaimRequest(
            at=at,
            operation=policy.operation,
            key=key,
            owner=self.runtime.owner(),
            lease=policy.lease,
            tenant=self.tenant,
            fingerprint=self._fingerprint(event),
            repeat=policy.repeat,
        )

    def _fingerprint(self, event: Event) -> str:
        """Leave redacted fields out: a card number could be guessed from a hash that covers it."""
        if event.fingerprint:
            return event.fingerprint
        contents = event.payload if event.contents is None else event.contents
        if self.hook.redact:
            contents = redact(contents, self.hook.redact)
        ignored = [f"payload.{name}" for name in (*self.hook.source.varying, *self.hook.redact)]
        return fingerprint({"payload": contents}, ignored)

    # -- a new event -----------------------------------------------------------------------------

    def _start_run(self, event: Event, scope: ClaimScope) -> Operation[Admitted]:
        try:
            run, _ = yield from self._start(event)
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001 - the mapping or the flow rejects this event: stored for inspection
            yield from scope.release()  # so that a redelivery is processed
            return refused(error)
        yield from self._complete(scope, self._note(event, run))
        if self.hook.wait is not None and run:
            return (yield from self._outcome_of(run, "new"))
        return Admitted("new", run)

    def _start(self, event: Event) -> Operation[tuple[str, bool]]:
        """Return the run's id, "" if the mapping ignores the event, and whether this start was the first."""
        if self.hook.redact:
            event = structs.replace(event, payload=redact(event.payload, self.hook.redact))
        arguments = self.hook.arguments(event, self.envelope)
        if arguments is None:
            return "", True
        token = source_var.set(self.hook.name)  # duplicates blocked by the flow's own key are counted under this hook
        try:
            handle, first = yield from self._begin(arguments, event)
        finally:
            source_var.reset(token)
        return run_id(handle.at.space), first

    def _begin(self, arguments: tuple[Any, Any], event: Event, **work: Any) -> Operation[tuple[Handle, bool]]:
        return (
            yield from self.hook.flow.of(self.tenant).begin(
                *arguments, from_json=True, event=self._cause(event), **work
            )
        )

    def _cause(self, event: Event) -> tuple[str, str, str]:
        """Return what the run keeps of its event, so that `twiceproof trace` leads from the one to the other."""
        return self.hook.policy.operation, event.name, self.message

    @property
    def message(self) -> str:
        """The key that the sender gave the message of this delivery; a webhook has none beside its event's id."""
        return ""

    def _note(self, event: Event, run: str = "") -> EventNote:
        message = self.message if self.message != event.id else ""
        return EventNote(run, event.type, event.delivery, event.attempt, message)

    def _complete(self, scope: ClaimScope, note: EventNote) -> Operation[None]:
        """Record the run. A claim lost meanwhile is harmless: its new holder started the same run."""
        yield from scope.complete(Packed(inline=Raw(msgspec.json.encode(note))), self.hook.policy.life)

    def _outcome_of(self, run: str, outcome: DeliveryOutcome) -> Operation[Admitted]:
        """Wait up to `hook.wait` for the run's end. Return `outcome` if it succeeds or takes longer."""
        handle = Handle(self.runtime, self._claim_of(run), self.hook.flow.results)
        try:
            yield from handle.result(self.hook.wait)
        except NeedsReview:
            return Admitted("review", run)
        except (PriorFailure, FlowError):
            return Admitted("failed", run)
        except (TimeoutError, ResultNotKept, Stale, Misuse):  # Misuse: it expired meanwhile
            pass
        return Admitted(outcome, run)

    # -- an event delivered before ---------------------------------------------------------------

    def _redelivered(self, done: Done) -> Operation[Admitted]:
        note = msgspec.json.decode(done.result, type=EventNote) if done.result else EventNote()
        return (yield from self._seen_before(note.run))

    def _seen_before(self, run: str) -> Operation[Admitted]:
        """Report a duplicate, or retry its run if that failed: this is what a manual redelivery asks for."""
        if not run or (self.hook.on_failed == "keep" and self.hook.wait is None):
            return Admitted("duplicate", run)
        state = yield from self._state_of(run)
        outcome: DeliveryOutcome = "duplicate"
        if state == FAILED and self.hook.on_failed == "retry":
            outcome = "new" if (yield from self._retried(run)) else "duplicate"
            state = yield from self._state_of(run)  # another process may have retried it first
        if self.hook.wait is None or state not in RUNNING_STATES:
            return Admitted(outcome, run)
        return (yield from self._outcome_of(run, outcome))

    def _state_of(self, run: str) -> Operation[str]:
        """Return the run's state. Only "done" is cached, because it is final."""
        now = self.runtime.clock.monotonic()
        if self.hook.recent_runs.has(run, now):
            return DONE
        try:
            found = (yield from self.runtime.store.read(self._claim_of(run))).record
        except Misuse:  # a run of another tenant
            return DONE
        if found is not None and found.state != DONE:
            return found.state
        self.hook.recent_runs.add(run, now)
        return DONE

    def _retried(self, run: str) -> Operation[bool]:
        try:
            from ..flows.history.review import retry_run  # rare: loaded when it is needed

            yield from retry_run(self.runtime.store, self._claim_of(run))
        except Misuse:  # its effects were undone, or another process retried it first
            return False
        return True

    def _claim_of(self, run: str) -> Address:
        return require_own_run(self.tenant, run_address(space_of_run(run)))


def refused(error: Exception) -> Admitted:
    outcome: DeliveryOutcome = "mismatch" if isinstance(error, PayloadMismatch) else "poison"
    return Admitted(outcome, reason=f"{type(error).__name__}: {error}")


# One reply covers all events of a delivery. The first of these wins, so that events to be retried take precedence.
PRECEDENCE: tuple[DeliveryOutcome, ...] = (
    "unavailable",
    "busy",
    "failed",
    "new",
    "mismatch",
    "poison",
    "review",
    "duplicate",
)


def admit(runtime: Runtime, hook: Hook | None, envelope: Envelope) -> Operation[Reply]:
    """Return the reply for the sender. The store is not touched before the delivery is verified."""
    if hook is None:
        return not_verified()
    handshake = hook.source.greet(envelope)
    if handshake is not None and not hook.source.greets_by_secret:
        return handshake.reply
    refusal = yield from _refuse_unverified(hook, envelope, runtime)
    if refusal is not None or handshake is not None:
        return refusal or handshake.reply  # type: ignore[union-attr]
    try:
        live = yield from hook.live(runtime.tenant)  # None: what is live has no such trigger
        admission = None if live is None else (live.admission or Admission)(runtime, live, envelope)
        return not_verified() if admission is None else (yield from _admit_verified(admission))
    except StoreError as error:
        log.error("%s: the store failed during a delivery; the sender was told to retry: %s", hook.name, error)
        return hook.source.answer("unavailable", retry_in=5 * DEFAULT_RETRY_SECONDS)


def _refuse_unverified(hook: Hook, envelope: Envelope, runtime: Runtime) -> Operation[Reply | None]:
    """Return the refusal of a delivery that is too large or fails verification; None if it may be read."""
    source = hook.source
    if len(envelope.body) > source.largest:
        return too_large(source.largest)
    secrets, now = hook.secrets(), runtime.clock.now()
    try:
        if source.waits:
            refused = yield from InThread(lambda: source.verify(envelope, secrets, now))
        else:
            refused = source.verify(envelope, secrets, now)
    except Exception:  # answered like a wrong signature, so that the reply does not reveal which webhooks exist
        log.exception("%s: verifying a delivery raised an error", hook.name)
        return not_verified()
    if not refused:
        return None
    log.warning("%s: a delivery failed verification: %s", hook.name, refused)
    return not_verified()


def _admit_verified(admission: Admission) -> Operation[Reply]:
    source = admission.hook.source
    reading = _read(source, admission.envelope)
    if isinstance(reading, Handshake):
        return reading.reply
    admitted = yield from admission.admit_all([reading] if isinstance(reading, Poison) else reading)
    decisive = min(admitted, key=lambda one: PRECEDENCE.index(one.outcome), default=Admitted("duplicate"))
    return source.answer(decisive.outcome, run=decisive.run, retry_in=decisive.retry_in)


def _read(source: Source, envelope: Envelope) -> Reading:
    """Read the events. A custom source may parse JSON without a depth limit, which ends in a RecursionError."""
    try:
        return source.read(envelope)
    except RecursionError:
        return Poison("its body is nested too deeply")


ADMITTED = ("new", "duplicate", "review")
