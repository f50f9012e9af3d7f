"""The admission of a believed delivery: each of its events is claimed under its own id, and then starts a run.

The start is harmless to repeat, because a run is named by its flow's key: a receiver that died between claim and start
is simply followed by the sender's next try.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import msgspec
from msgspec import Raw, Struct, structs

from ..claims.claim import DONE, FAILED, HELD, QUEUED, WAITING, address_of, run_address, space_of_run
from ..claims.outcomes import Busy, Done, Failed, Held, InReview, Mismatch, TakeOutcome
from ..claims.results import Packed
from ..claims.states import Ask, claim_for
from ..drive import Operation
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
from ..flows.history.again import retry_run
from ..flows.parts import Parts
from ..flows.tenancy import own_run
from ..keys import fingerprint, validate_key
from ..observe.duplicates import source_var
from ..observe.told import tell
from ..records import Address
from .envelope import Envelope
from .hook import AGAIN, Hook
from .letter_events import name_of, write_events
from .letters import Letter, keep_letter
from .redact import redact
from .source import Event, Poison, Word
from .together import Together

__all__ = ["Admission", "Admitted"]

log = logging.getLogger("twiceproof.doors")

UNDER_WAY = (QUEUED, HELD, WAITING)
REFUSED: tuple[Word, ...] = ("mismatch", "poison")


class Admitted(Struct, frozen=True):
    """What became of one event."""

    word: Word
    run: str = ""
    retry_in: float = AGAIN
    reason: str = ""  # why it could not be taken in
    event: str = ""  # its name; "" of what could not be read


class Note(Struct, frozen=True, omit_defaults=True):
    """What an event's claim keeps as its result: which run it started, and the sender's other ids."""

    run: str = ""
    type: str = ""
    delivery: str = ""
    attempt: str = ""


class Admission:
    """One delivery at one hook."""

    def __init__(self, parts: Parts, hook: Hook, envelope: Envelope) -> None:
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
        tell(self.hook.name, "poison")
        return [*admitted, Admitted("poison", reason=spoilt.reason)]

    def _each(self, events: Sequence[Event]) -> Operation[list[Admitted]]:
        if len(events) == 1:  # nearly always
            return [(yield from self._heard(events[0]))]
        first = {name_of(event): event for event in reversed(events)}
        admitted = yield from Together([self._heard(event) for event in first.values()])
        # After it, or they would find it busy.
        again = [event for event in events if first[name_of(event)] is not event]
        return admitted + ((yield from Together([self._heard(event) for event in again])) if again else [])

    def _heard(self, event: Event) -> Operation[Admitted]:
        admitted = structs.replace((yield from self._admit(event)), event=name_of(event))
        tell(self.hook.name, admitted.word, key=event.id, run=admitted.run)
        return admitted

    def _keep_aside(self, refused: Sequence[Admitted], read: Sequence[Event | Poison]) -> Operation[Letter]:
        """For people to look at, and to replay: as a whole where something in it has no name; then its other events
        are duplicates. A delivery with declared secrets leaves its events without them, and nothing where it has none.
        """
        first = next((one for one in refused if not one.event), refused[0])
        events = [one.event for one in refused] if first.event else []
        letter = yield from keep_letter(
            self.parts.claims, self.hook.name, self.envelope, first.reason, events=events,
            allowed=self.hook.source.needs, instead=self._instead(read),
        )  # fmt: skip
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
            return (yield from self._take_in(event, ask, taken))
        if isinstance(taken, Mismatch):
            other = PayloadMismatch("it came before, with other contents", operation=ask.operation, key=ask.key)
            return _refused(other)
        admitted = (yield from self._come_again(taken)) if isinstance(taken, Done) else _told(taken)
        if admitted.word != "new":
            self.parts.claims.duplicates.blocked(self.hook.flow.name, ask.key, self.hook.name, tenant=ask.tenant)
        return admitted

    def _ask(self, event: Event) -> Ask:
        if not event.id:
            raise KeyRefused("the event has no id to claim it by")
        key, policy = validate_key(event.id), self.hook.policy
        at = address_of(policy.tenant, policy.operation, key)
        return Ask(
            at, policy.operation, key, self.parts.owner(), policy.lease, policy.tenant, self._asked(event),
            repeat=policy.repeat,
        )  # fmt: skip

    def _asked(self, event: Event) -> str:
        """Without what is redacted: from a hash of all the rest, a card's number can be guessed."""
        contents = redact(event.payload if event.contents is None else event.contents, self.hook.redact)
        apart = [f"payload.{name}" for name in (*self.hook.source.varying, *self.hook.redact)]
        return event.asked or fingerprint({"payload": contents}, apart)

    # -- an event that is ours -------------------------------------------------------------------

    def _take_in(self, event: Event, ask: Ask, held: Held) -> Operation[Admitted]:
        try:
            run = yield from self._start(event)
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001 - a mapping or a flow that cannot take this event: a person's to see
            yield from self.parts.claims.release(held)  # so that a redelivery is tried again
            return _refused(error)
        yield from self._complete(ask, held, Note(run, event.type, event.delivery, event.attempt))
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
        return handle.id

    def _complete(self, ask: Ask, held: Held, note: Note) -> Operation[None]:
        """If the claim was lost meanwhile, whoever took it over started the same run: nothing is amiss."""
        packed = Packed(inline=Raw(msgspec.json.encode(note)))
        yield from self.parts.claims.complete(held, claim_for(ask, held.attempt), packed, self.hook.policy.life)

    def _outcome_of(self, run: str, word: Word) -> Operation[Admitted]:
        """Wait for the run's end, as long as the hook says. What ends well, or takes longer, is answered by `word`."""
        handle = Handle(self.parts, self._claim_of(run), run, self.hook.flow.results)
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

    def _come_again(self, done: Done) -> Operation[Admitted]:
        """A duplicate; but one whose run failed is tried again: a deliberate redelivery means just that."""
        note = msgspec.json.decode(done.result, type=Note) if done.result else Note()
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
        return own_run(self.hook.policy.tenant, run_address(space_of_run(run)))


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
