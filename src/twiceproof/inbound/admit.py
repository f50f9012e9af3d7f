"""The one way in: verify, read, claim, start, answer; replaying a dead letter."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

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
    Mismatch,
    TakeOutcome,
    address_of,
    run_address,
    run_id,
    space_of_run,
)
from ..claims.duplicates import source_var
from ..claims.results import Packed
from ..claims.run_ids import shown_run
from ..claims.states import ClaimRequest, claim_for
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
from ..flows.history.review import retry_run
from ..flows.runtime import Runtime, require_own_run
from ..keys import fingerprint, validate_key
from ..operations import Concurrently, InThread, Operation
from ..records import Address
from .dead_letters import (
    DeadLetter,
    body_of_letter,
    find_letter,
    keep_letter,
    mark_replayed,
    name_of,
    read_events,
    write_events,
)
from .envelope import Envelope, report
from .hook import AGAIN, Hook
from .redaction import redact
from .reply import Reply, problem
from .source import Event, Handshake, Poison, Reading, Source, Word

__all__ = ["Admission", "Admitted", "admit", "replay_letter"]


log = logging.getLogger("twiceproof.inbound")

UNDER_WAY = (QUEUED, HELD, WAITING)
REFUSED: tuple[Word, ...] = ("mismatch", "poison")


class Admitted(Struct, frozen=True):
    """What became of one event."""

    word: Word
    run: str = ""
    retry_in: float = AGAIN
    reason: str = ""  # why it could not be taken in
    event: str = ""  # its name; "" of what could not be read


class EventNote(Struct, frozen=True, omit_defaults=True):
    """What an event's claim keeps as its result: which run it started, and the sender's other ids."""

    run: str = ""
    type: str = ""
    delivery: str = ""
    attempt: str = ""


class Admission:
    """One delivery at one hook."""

    def __init__(self, parts: Runtime, hook: Hook, envelope: Envelope) -> None:
        self.parts = parts
        self.hook = hook
        self.envelope = envelope

    def of(self, read: Sequence[Event | Poison]) -> Operation[list[Admitted]]:
        """The same, and the delivery is kept aside where one of them could not be taken in: once for all of them."""
        admitted = yield from self.each(read)
        refused = [one for one in admitted if one.word in REFUSED]
        if not refused:
            return admitted
        letter = yield from self._keep_aside(refused, read)
        if letter.is_whole:
            return admitted
        # Acknowledged, it would be lost. What has no name could not be read, and would come again for days.
        return [structs.replace(one, word="failed") if one.word in REFUSED and one.event else one for one in admitted]

    def each(self, read: Sequence[Event | Poison]) -> Operation[list[Admitted]]:
        """Each on its own: one that cannot be read or taken in does not harm its neighbours."""
        spoilt = next((one for one in read if isinstance(one, Poison)), None)
        admitted = yield from self._each([one for one in read if isinstance(one, Event)])
        if spoilt is None:
            return admitted
        report(self.hook.name, "poison")
        return [*admitted, Admitted("poison", reason=spoilt.reason)]

    def _each(self, events: Sequence[Event]) -> Operation[list[Admitted]]:
        if len(events) == 1:  # nearly always
            return [(yield from self._heard(events[0]))]
        first = {name_of(event): event for event in reversed(events)}
        admitted = yield from Concurrently([self._heard(event) for event in first.values()])
        # After it, or they would find it busy.
        again = [event for event in events if first[name_of(event)] is not event]
        return admitted + ((yield from Concurrently([self._heard(event) for event in again])) if again else [])

    def _heard(self, event: Event) -> Operation[Admitted]:
        told = yield from self._admit(event)
        admitted = structs.replace(told, event=name_of(event), run=told.run and shown_run(told.run))
        report(self.hook.name, admitted.word, key=event.id, run=admitted.run)
        return admitted

    def _keep_aside(self, refused: Sequence[Admitted], read: Sequence[Event | Poison]) -> Operation[DeadLetter]:
        """For people to look at, and to replay: as a whole where something in it has no name; then its other events
        are duplicates. A delivery with declared secrets leaves its events without them, and nothing where it has none.
        """
        first = next((one for one in refused if not one.event), refused[0])
        events = [one.event for one in refused] if first.event else []
        letter = yield from keep_letter(
            self.parts.claims,
            self.hook.name,
            self.envelope,
            first.reason,
            events=events,
            allowed=self.hook.source.needs,
            instead=self._instead(read),
        )
        log.error("%s: a delivery was kept aside as %s: %s", self.hook.name, letter.id, first.reason)
        return letter

    def _instead(self, read: Sequence[Event | Poison]) -> bytes | None:
        paths = self.hook.redact
        return write_events([one for one in read if isinstance(one, Event)], paths, self._asked) if paths else None

    def _admit(self, event: Event) -> Operation[Admitted]:
        try:
            ask = self._ask(event)
        except Misuse as error:
            return _refused(error)
        taken = yield from self.parts.claims.take(ask)
        if isinstance(taken, Held):
            return (yield from self._start_run(event, ask, taken))
        if isinstance(taken, Mismatch):
            other = PayloadMismatch("it came before, with other contents", operation=ask.operation, key=ask.key)
            return _refused(other)
        admitted = (yield from self._redelivered(taken)) if isinstance(taken, Done) else _told(taken)
        if admitted.word != "new":
            self.parts.claims.duplicates.blocked(self.hook.flow.name, ask.key, self.hook.name, tenant=ask.tenant)
        return admitted

    def _ask(self, event: Event) -> ClaimRequest:
        if not event.id:
            raise KeyRefused("the event has no id to claim it by")
        key, policy = validate_key(event.id), self.hook.policy
        at = address_of(policy.tenant, policy.operation, key)
        return ClaimRequest(
            at,
            policy.operation,
            key,
            self.parts.owner(),
            policy.lease,
            policy.tenant,
            self._asked(event),
            repeat=policy.repeat,
        )

    def _asked(self, event: Event) -> str:
        """Without what is redacted: from a hash of all the rest, a card's number can be guessed."""
        contents = redact(event.payload if event.contents is None else event.contents, self.hook.redact)
        apart = [f"payload.{name}" for name in (*self.hook.source.varying, *self.hook.redact)]
        return event.asked or fingerprint({"payload": contents}, apart)

    # -- an event that is ours -------------------------------------------------------------------

    def _start_run(self, event: Event, ask: ClaimRequest, held: Held) -> Operation[Admitted]:
        try:
            run = yield from self._start(event)
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001 - a mapping or a flow that cannot take this event: a person's to see
            yield from self.parts.claims.release(held)  # so that a redelivery is tried again
            return _refused(error)
        yield from self._complete(ask, held, EventNote(run, event.type, event.delivery, event.attempt))
        if self.hook.wait is not None and run:
            return (yield from self._outcome_of(run, "new"))
        return Admitted("new", run)

    def _start(self, event: Event) -> Operation[str]:
        """The run's id; "" where there is nothing to do."""
        if self.hook.redact:
            event = structs.replace(event, payload=redact(event.payload, self.hook.redact))
        arguments = self.hook.arguments(event)
        if arguments is None:
            return ""
        door = source_var.set(self.hook.name)  # what the flow's own key blocks is counted under it
        try:
            handle = yield from self.hook.flow.start(*arguments, plain=True)
        finally:
            source_var.reset(door)
        return run_id(handle.at.space)

    def _complete(self, ask: ClaimRequest, held: Held, note: EventNote) -> Operation[None]:
        """If the claim was lost meanwhile, whoever took it over started the same run: nothing is amiss."""
        packed = Packed(inline=Raw(msgspec.json.encode(note)))
        yield from self.parts.claims.complete(held, claim_for(ask, held.attempt), packed, self.hook.policy.life)

    def _outcome_of(self, run: str, word: Word) -> Operation[Admitted]:
        """Wait for the run's end, as long as the hook says. What ends well, or takes longer, is answered by `word`."""
        handle = Handle(self.parts, self._claim_of(run), self.hook.flow.results)
        try:
            yield from handle.result(self.hook.wait)
        except NeedsReview:
            return Admitted("review", run)
        except (PriorFailure, FlowError):
            return Admitted("failed", run)
        except (TimeoutError, ResultNotKept, Stale, Misuse):  # Misuse: it was forgotten meanwhile
            pass
        return Admitted(word, run)

    # -- an event that came before ---------------------------------------------------------------

    def _redelivered(self, done: Done) -> Operation[Admitted]:
        """A duplicate; but one whose run failed is tried again: a deliberate redelivery means just that."""
        note = msgspec.json.decode(done.result, type=EventNote) if done.result else EventNote()
        if not note.run or (self.hook.on_failed == "keep" and self.hook.wait is None):
            return Admitted("duplicate", note.run)
        state = yield from self._state_of(note.run)
        word: Word = "duplicate"
        if state == FAILED and self.hook.on_failed == "retry":
            word = "new" if (yield from self._retried(note.run)) else "duplicate"
            state = yield from self._state_of(note.run)  # somebody else may have been quicker
        if self.hook.wait is None or state not in UNDER_WAY:
            return Admitted(word, note.run)
        return (yield from self._outcome_of(note.run, word))

    def _state_of(self, run: str) -> Operation[str]:
        """What is done stays done: only that is remembered. A run under way may have failed a moment later."""
        now = self.parts.clock.monotonic()
        if self.hook.lately.has(run, now):
            return DONE
        try:
            found = (yield from self.parts.store.read(self._claim_of(run))).record
        except Misuse:  # not ours to look at
            return DONE
        if found is not None and found.state != DONE:
            return found.state
        self.hook.lately.add(run, now)
        return DONE

    def _retried(self, run: str) -> Operation[bool]:
        try:
            yield from retry_run(self.parts.store, self._claim_of(run))
        except Misuse:  # what it did was undone, or somebody else was quicker
            return False
        return True

    def _claim_of(self, run: str) -> Address:
        return require_own_run(self.hook.policy.tenant, run_address(space_of_run(run)))


def _refused(error: Exception) -> Admitted:
    word: Word = "mismatch" if isinstance(error, PayloadMismatch) else "poison"
    return Admitted(word, reason=f"{type(error).__name__}: {error}")


def _told(taken: TakeOutcome) -> Admitted:
    """What the claim of an event says that is not ours to take in."""
    if isinstance(taken, Busy):
        return Admitted("busy", retry_in=min(AGAIN, taken.retry_after or AGAIN))
    if isinstance(taken, InReview):
        return Admitted("review", taken.run)
    return Admitted("failed" if isinstance(taken, Failed) else "duplicate")


# One answer for all events of a delivery: what must come again outweighs what need not.
WEIGHT: tuple[Word, ...] = ("unavailable", "busy", "failed", "new", "mismatch", "poison", "review", "duplicate")


def admit(parts: Runtime, hook: Hook | None, envelope: Envelope) -> Operation[Reply]:
    """The answer for the sender. Nothing but a verified delivery touches the store."""
    if hook is None:
        return _unbelieved()
    greeting = hook.source.greet(envelope)
    if greeting is not None and not hook.source.greets_by_secret:
        return greeting.reply
    refusal = yield from _refusal(hook, envelope, parts)
    if refusal is not None or greeting is not None:
        return refusal or greeting.reply  # type: ignore[union-attr]
    try:
        return (yield from _believed(Admission(parts, hook, envelope)))
    except StoreError as error:
        log.error("%s: a delivery could not be taken in, its sender is asked to come again: %s", hook.name, error)
        return hook.source.answer("unavailable", retry_in=5 * AGAIN)


def _refusal(hook: Hook, envelope: Envelope, parts: Runtime) -> Operation[Reply | None]:
    """What is not believed is not read. One that is too large is not even verified."""
    source = hook.source
    if len(envelope.body) > source.largest:
        return _too_large(source.largest)
    secrets, now = hook.secrets(), parts.clock.now()
    verify = InThread(lambda: source.verify(envelope, secrets, now))
    try:
        refused = (yield from verify) if source.waits else verify.block()
    except Exception:  # told from others, it would say which webhooks there are
        log.exception("%s: whether a delivery can be believed could not be found out", hook.name)
        return _unbelieved()
    if not refused:
        return None
    log.warning("%s: a delivery was not believed: %s", hook.name, refused)
    return _unbelieved()


def _believed(admission: Admission) -> Operation[Reply]:
    source = admission.hook.source
    reading = _read(source, admission.envelope)
    if isinstance(reading, Handshake):
        return reading.reply
    admitted = yield from admission.of([reading] if isinstance(reading, Poison) else reading)
    heaviest = min(admitted, key=lambda one: WEIGHT.index(one.word), default=Admitted("duplicate"))
    return source.answer(heaviest.word, run=heaviest.run, retry_in=heaviest.retry_in)


def _read(source: Source, envelope: Envelope) -> Reading:
    """A source of the user's own may mind no depth, and Python's JSON ends at some."""
    try:
        return source.read(envelope)
    except RecursionError:
        return Poison("its body is nested too deep to be read")


def _unbelieved() -> Reply:
    """The same for an unknown address and a wrong signature: nobody learns which addresses there are."""
    return problem(
        401,
        "not-believed",
        "There is no such webhook, or its signature does not fit.",
        next_move="Check the address, and that the sender's secret is the one that this server was given.",
    )


def _too_large(most: int) -> Reply:
    return problem(
        413, "too-large", f"A delivery may have {most:,} bytes.", next_move="Send a reference instead of the contents."
    )


TAKEN_IN = ("new", "duplicate", "review")


def replay_letter(parts: Runtime, hooks: Mapping[str, Hook], name: str) -> Operation[list[Admitted]]:
    """It was believed when it came; what is claimed and started is the same as then."""
    letter = yield from find_letter(parts.store, parts.tenant, name)
    hook, body = _hook(hooks, letter), (yield from body_of_letter(parts.store, letter))
    admission = Admission(parts, hook, Envelope(letter.hook, body, letter.headers, letter.tenant, letter.received_at))
    reading = read_events(body) if letter.redacted else hook.source.read(admission.envelope)
    if isinstance(reading, Handshake | Poison):
        reason = reading.reason if isinstance(reading, Poison) else "it is a handshake"
        raise Misuse(
            f"{letter.id} still cannot be read: {reason}. Correct the source's options, or leave it to expire."
        )
    admitted = yield from admission.each(_meant(letter, reading))
    if letter.meant or all(one.word in TAKEN_IN for one in admitted):
        yield from mark_replayed(parts.store, letter, _left(letter, admitted))
    return admitted


def _left(letter: DeadLetter, admitted: Sequence[Admitted]) -> list[str]:
    """Also what its source does not find in it any more."""
    taken = {one.event for one in admitted if one.word in TAKEN_IN}
    taken -= {one.event for one in admitted if one.word not in TAKEN_IN}
    return [name for name in letter.meant if name not in taken]


def _meant(letter: DeadLetter, reading: Sequence[Event | Poison]) -> Sequence[Event | Poison]:
    if not letter.meant:
        return reading
    found = [one for one in reading if isinstance(one, Event) and name_of(one) in letter.meant]
    if not found:  # where nothing is taken in, nothing went wrong, and the letter would be removed
        raise Misuse(
            f"{letter.id} has no event {letter.meant[0][:80]!r} any more, as its source now reads it. Correct the "
            "source's options, or leave it to expire."
        )
    return found


def _hook(hooks: Mapping[str, Hook], letter: DeadLetter) -> Hook:
    if letter.hook not in hooks:
        raise Misuse(f"{letter.id} came in at {letter.hook!r}, which this app does not declare; name another app.")
    return hooks[letter.hook]
