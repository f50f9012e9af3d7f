"""Claim operations: each reads a record, lets `states` decide, and writes the decision."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeGuard

from msgspec import Raw, structs

from ..clock import Clock, system_clock
from ..errors import Misuse, StoreError
from ..operations import Operation, Uncancellable
from ..records import Address, Check, Conflict, Found, Insert, Lost, Outcome, Record, Remove, Replace, Write, Written
from ..safe_text import suggested_command
from ..stores.base import Store
from ..threads import raised_by_signal_handler
from .blobs import BlobStore
from .claim import (
    CLAIM,
    DONE,
    FAILED,
    HELD,
    NO_RESULT,
    REVIEW,
    Claim,
    Fault,
    Held,
    InReview,
    LostHold,
    Settlement,
    Spill,
    TakeOutcome,
    alone,
    body_of,
    claim_of,
    other_kind,
    shown_run,
)
from .duplicates import Duplicates
from .queries import KEEP, Evidence, evidence_write
from .results import SPILL_LIMIT, Packed, resource_address
from .retention import forget, remove_pieces
from .states import (
    AnswerOnly,
    BeginClaim,
    ClaimRequest,
    Lifetime,
    Move,
    ParkClaim,
    decide,
    decide_of_other_kind,
    finish_times,
    first_pointer,
    is_expired,
    is_lapsed,
    outcome_of,
)

__all__ = ["FOR_EVER", "ClaimManager", "Decide", "interrupt_requested"]


Decide = Callable[[ClaimRequest, Record | None, float], Move]

NOT_LOOKED = Found(None, 0.0)
MOST_IN_BLOBS = 256 * 1024 * 1024
FOR_EVER = Lifetime(keep=None, keep_failed=None)


class ClaimManager:
    """Operations on claims in one store. Each is a generator: run it with `operations.block` or `operations.await_`."""

    def __init__(self, store: Store, *, clock: Clock = system_clock, blobs: BlobStore | None = None) -> None:
        self.store = store
        self.clock = clock
        self._margin: float = getattr(store, "lease_margin", 0.0)  # by which processes may differ about a lease's end
        self.blobs = blobs  # where the large values of runs are kept; None: in the store
        self.duplicates = Duplicates(clock=clock)  # counts every duplicate that is answered without doing the work

    @property
    def value_limit(self) -> int:
        """The largest size of a run's value, in bytes."""
        return self.result_limit if self.blobs is None else MOST_IN_BLOBS

    @property
    def result_limit(self) -> int:
        """The largest size of a result that is kept beside its claim, in bytes."""
        return min(SPILL_LIMIT, self.store.body_limit)

    # -- taking ----------------------------------------------------------------------------------

    def take(
        self, request: ClaimRequest, decide: Decide = decide, found: Found | None = None
    ) -> Operation[TakeOutcome]:
        """Claim a key before any work is done. Of any number of callers exactly one gets `Held`."""
        if found is None:  # what is there may be known already
            found = (yield self.store.read(request.at)) if self.store.reads_first else NOT_LOOKED
        while True:
            move = decide(request, found.record, found.now)
            if isinstance(move, AnswerOnly):
                return move.outcome
            sent = self.clock.monotonic()
            try:
                written: Outcome = yield self.store.write(
                    move.write, *self._alone(move.write), also=first_pointer(move.write)
                )
            except GeneratorExit:
                raise
            except BaseException as error:
                # Cancelled or interrupted while the take was on its way: nothing was done yet, so give it back.
                if not isinstance(error, Exception) or raised_by_signal_handler(error):
                    yield from self._give_back(request, found, error)
                raise
            if isinstance(written, Written):
                return self._won(request, move, written, sent)
            if written.at == request.at:
                found = Found(written.found, written.now)
                continue
            told = yield from self._of_other_kind(request, decide, written)
            if told is not None:
                return told
            found = Found(None, written.now)

    def _alone(self, write: Write) -> tuple[Check, ...]:
        """Return the check for a run of the same key. A store without transactions cannot hold runs, so needs none."""
        return alone(write) if self.store.batch_limit > 1 else ()

    def _of_other_kind(
        self, request: ClaimRequest, decide: Decide, refused: Conflict | Lost
    ) -> Operation[TakeOutcome | None]:
        """Answer a claim whose key has a run, or the other way round: as a duplicate, never taken over.

        None: the other record is gone, or had expired.
        """
        record = refused.found
        if record is None:
            return None
        if is_expired(record, refused.now):
            yield from forget(self.store, record)
            return None
        if request.at.kind == CLAIM:
            decide(request, record, refused.now)  # which may refuse it
        move = decide_of_other_kind(request, record, refused.now)
        if isinstance(move, AnswerOnly):
            return move.outcome
        written = yield from self.store.write(move.write)
        return InReview(move.reason, request.run, written.now) if isinstance(written, Written) else None

    def _won(self, request: ClaimRequest, move: BeginClaim | ParkClaim, written: Written, sent: float) -> TakeOutcome:
        if isinstance(move, ParkClaim):
            return InReview(move.reason, request.run, written.now)
        deadline = self._deadline(sent, request.lease)
        return Held(
            request.at,
            written.fence,
            request.owner,
            move.attempt,
            request.run,
            request.lease,
            deadline,
            move.write.queue,
            written.now,
        )

    def _deadline(self, sent: float, lease: float) -> float:
        """When the holder stops, by this machine's monotonic clock: before another process may find the lease over."""
        return sent + lease - min(self._margin, lease / 2)

    def _give_back(self, request: ClaimRequest, before: Found, error: BaseException) -> Operation[None]:
        """Withdraw a take that was cancelled. A store error must not replace the cancellation, which would be lost."""
        if request.reentrant:  # by its owner's name, the claim of an earlier life cannot be told from this take's
            return
        try:
            yield from Uncancellable(self._withdraw(request, before))
        except StoreError as worse:
            error.add_note(f"twiceproof could not give the claim back, which lapses if it was taken: {worse}")

    def _withdraw(self, request: ClaimRequest, before: Found) -> Operation[None]:
        """Remove only what this take wrote: an earlier holder's unknown outcome, or a failure, must not be lost."""
        record = (yield from self.store.read(request.at)).record
        if record is None or (before.record is not None and record.version == before.record.version):
            return
        if record.state == HELD and claim_of(record).owner == request.owner:
            undo = _undo(record, before)
            if undo is not None:
                yield from self.store.write(undo)

    def look(self, at: Address) -> Operation[TakeOutcome | None]:
        """Return what a claim is now. Writes nothing."""
        found = yield from self.store.read(at)
        if found.record is None or is_expired(found.record, found.now):
            return None
        return outcome_of(found.record, found.now)

    # -- holding ---------------------------------------------------------------------------------

    def renew(self, held: Held, lease: float | None = None) -> Operation[Held | LostHold]:
        """Extend the lease, counted from now."""
        span = held.lease if lease is None else lease
        while True:
            sent = self.clock.monotonic()
            due_in = span if held.queue else None  # a run is due when its lease is over
            again = Replace(held.at, None, HELD, fence=held.fence, lease=span, queue=held.queue, due_in=due_in)
            written = yield from self.store.write(again)
            if isinstance(written, Written):
                return structs.replace(held, lease=span, deadline=self._deadline(sent, span))
            if not interrupt_requested(written.found, held):
                return _lost(written.found)
            held = structs.replace(held, fence=written.found.fence)

    # The last write of a holder draws a new fence, so that a late heartbeat cannot undo it. It is sent once; only over
    # HTTP may it come `twice`, when the sender has given up on the first answer.

    def complete(
        self, held: Held, claim: Claim, packed: Packed, life: Lifetime = FOR_EVER, *, twice: bool = False
    ) -> Operation[Written | LostHold]:
        """Record the result. A holder that lost its claim leaves it as evidence instead."""
        queue, due_in, keep = finish_times(DONE, life)
        body = body_of(structs.replace(claim, result=packed.inline, spill=packed.spill, keep=keep))
        write = Replace(held.at, body, DONE, fence=held.fence, draw=True, queue=queue, due_in=due_in)
        beside = yield from self._first(packed.writes(held.at.space, due_in))
        written: Outcome = yield self.store.write(write, *beside)
        if isinstance(written, Written):
            return written
        if twice and _recorded_before(written.found, held, DONE) and packed.is_kept_in(claim_of(written.found)):
            return _as_written(written.found, written.now)
        evidence = Evidence(held.owner, held.fence, result=packed.inline, spill=packed.spill)
        return (yield from self._report(held, written, evidence, *packed.writes(held.at.space, KEEP)))

    def _first(self, pieces: Sequence[Insert]) -> Operation[Sequence[Insert]]:
        """Write what belongs to a claim before the claim, where a store lands one write at a time; return the rest."""
        if self.store.batch_limit > 1:
            return pieces
        for piece in pieces:
            yield from self.store.write(piece)
        return ()

    def fail(
        self, held: Held, claim: Claim, fault: Fault, life: Lifetime = FOR_EVER, *, twice: bool = False
    ) -> Operation[Written | LostHold]:
        """Record a failure, retryable or not."""
        queue, due_in, _ = finish_times(FAILED, life)
        body = body_of(structs.replace(claim, fault=fault))
        write = Replace(held.at, body, FAILED, fence=held.fence, draw=True, queue=queue, due_in=due_in)
        return (yield from self._end(held, write, fault, twice=twice))

    def park(
        self, held: Held, claim: Claim, fault: Fault, reason: str, *, twice: bool = False
    ) -> Operation[Written | LostHold]:
        """Record that the outcome is unknown: a person must settle it."""
        body = body_of(structs.replace(claim, fault=fault, reason=reason))
        write = Replace(held.at, body, REVIEW, fence=held.fence, draw=True)
        return (yield from self._end(held, write, fault, twice=twice))

    def release(self, held: Held) -> Operation[Written | LostHold]:
        """Give the key back as if it had never been taken. Only the holder can."""
        written = yield from self.store.write(Remove(held.at, fence=held.fence))
        return written if isinstance(written, Written) else _lost(written.found)

    def _end(self, held: Held, write: Replace, fault: Fault, *, twice: bool) -> Operation[Written | LostHold]:
        written = yield from self.store.write(write)
        if isinstance(written, Written):
            return written
        found = written.found
        if twice and _recorded_before(found, held, write.state) and fault.weighs_like(claim_of(found).fault):
            return _as_written(found, written.now)
        return (yield from self._report(held, written, Evidence(held.owner, held.fence, fault=fault)))

    def _report(self, held: Held, refused: Conflict | Lost, evidence: Evidence, *pieces: Insert) -> Operation[LostHold]:
        """Store what a holder found after it lost its claim, as evidence."""
        for write in (evidence_write(held.at.space, evidence), *pieces):
            yield from self.store.write(write)
        return _lost(refused.found)

    # -- by a person -----------------------------------------------------------------------------

    def settle(
        self,
        at: Address,
        settlement: Settlement,
        *,
        result: Raw = NO_RESULT,
        life: Lifetime = FOR_EVER,
        where: Sequence[str] = (),
        version: str = "",
    ) -> Operation[TakeOutcome]:
        """End a review: it happened, it did not, or it is abandoned. Refused while the claim is held.

        `where` are the command-line options that lead to this store, for the error message. `version`: refused if the
        claim has changed since.
        """
        from .acts import act_beside  # a late import: `App` is imported faster without it

        while True:
            found = yield from self.store.read(at)
            if found.record is None:
                found = yield from self.store.read(other_kind(at))
            record = _settleable(found, where)
            refuse_changed(record, version)
            act = act_beside(self.store, record, "settle", settlement.by, said=settlement.verdict, note=settlement.note)
            written = yield from self.store.write(_settled(record, settlement, result, life), *act)
            if isinstance(written, Written):
                after = yield from self.store.read(at)
                return outcome_of(after.record or record, after.now)

    def free(self, at: Address, *, force: bool = False, by: str = "", version: str = "") -> Operation[bool]:
        """Remove a key's claim. Returns False if there was none. `by`: who asked for it, for the record. `version`:
        refused if the claim has changed since.
        """
        from .acts import act_beside  # as in `settle`

        while True:
            found = yield from self.store.read(at)
            if found.record is None:
                return False
            refuse_changed(found.record, version)
            if not force and _is_live(found.record, found.now):
                raise Misuse(_still_held(found.record, found.now, "release it with --force if you know it is gone"))
            if claim_of(found.record).work:
                yield from remove_pieces(self.store, Check(at, version=found.record.version))
            resource = yield from self._resource_of(found.record)
            act = act_beside(self.store, found.record, "release", by, said="by force" if force else "")
            together = self.store.batch_limit > len(resource) + len(act)
            written = yield from self.store.write(
                Remove(at, version=found.record.version), *act, *(resource if together else ())
            )
            if isinstance(written, Written):
                for piece in () if together else resource:
                    yield from self.store.write(piece)
                return True

    def _resource_of(self, record: Record) -> Operation[tuple[Remove, ...]]:
        """Return the removal of the result kept beside the claim: without a time of its own it would never be swept."""
        spill = claim_of(record).spill
        if spill is None or not spill.ref:
            return ()
        found = yield from self.store.read(resource_address(record.at.space, spill.ref))
        return (Remove(found.record.at, version=found.record.version),) if found.record else ()


def _undo(record: Record, before: Found) -> Remove | Replace | None:
    """Return the write that undoes a take. None: it took over from a holder whose lease had lapsed; ours lapses too."""
    old = before.record
    if old is None or is_expired(old, before.now):
        return Remove(record.at, version=record.version)
    if old.state == HELD:
        return None
    due_in = None if old.due_at is None else max(0.0, old.due_at - before.now)
    return Replace(old.at, old.body, old.state, version=record.version, draw=True, queue=old.queue, due_in=due_in)


def interrupt_requested(found: Record | None, held: Held) -> TypeGuard[Record]:
    """Return whether a refused holder still holds: a new fence was drawn only to interrupt it (a cancellation)."""
    return (
        found is not None
        and found.state == HELD
        and found.fence != held.fence
        and bool(held.queue)
        and claim_of(found).owner == held.owner
    )


def _lost(found: Record | None) -> LostHold:
    return LostHold(found.state, claim_of(found).owner) if found else LostHold("", "")


def _recorded_before(found: Record | None, held: Held, state: str) -> TypeGuard[Record]:
    """Return whether the same holder has recorded the same outcome already."""
    if found is None or found.state != state:
        return False
    claim = claim_of(found)
    return (claim.owner, claim.attempt) == (held.owner, held.attempt)


def _as_written(found: Record, now: float) -> Written:
    return Written(found.version, found.fence, now)


def _is_live(record: Record, now: float) -> bool:
    return record.state == HELD and not is_lapsed(record, now)


def _still_held(record: Record, now: float, advice: str) -> str:
    left = (record.lease_until or now) - now
    return f"{claim_of(record).owner} holds this claim for another {left:.0f} s; wait, or {advice}."


def _settleable(found: Found, where: Sequence[str]) -> Record:
    record = found.record
    if record is None:
        every = suggested_command(*where, "claims", "list", "--state", "all")
        raise Misuse(f"There is no such claim; list what is there with: {every}")
    claim = claim_of(record)
    if record.state == DONE:
        tenant = () if claim.tenant == "default" or "--tenant" in where else ("--tenant", claim.tenant)
        look = suggested_command(*where, *tenant, "claims", "show", about=(claim.operation, claim.key))
        raise Misuse(f"This claim is done: there is nothing to settle. Look at it with: {look}")
    if claim.work:
        show = suggested_command(*where, "review", "show", shown_run(claim.run))
        raise Misuse(f"This is a run: its steps are settled. Look at them with: {show}")
    if _is_live(record, found.now):
        raise Misuse(_still_held(record, found.now, "stop that process first"))
    return record


def refuse_changed(record: Record, version: str) -> None:
    """Refuse a decision that was made about an earlier version; without one, about any."""
    if version and record.version != version:
        raise Misuse("This has changed since the decision was made; look at it again.")


VERDICTS: dict[str, Callable[[Settlement], tuple[str, Fault | None]]] = {
    "happened": lambda word: (DONE, None),
    "did-not-happen": lambda word: (
        FAILED,
        Fault("Settled", "it did not happen: " + word.by, retryable=True),
    ),
    "abandon": lambda word: (FAILED, Fault("Abandoned", word.note or "abandoned by " + word.by)),
}


def _settled(record: Record, settlement: Settlement, result: Raw, life: Lifetime) -> Replace:
    if settlement.verdict not in VERDICTS:
        raise Misuse(f"{settlement.verdict!r} is not a verdict; say one of {', '.join(VERDICTS)}.")
    state, fault = VERDICTS[settlement.verdict](settlement)
    queue, due_in, keep = finish_times(state, life)
    spill = Spill("", 0, reason="settled without one") if state == DONE and not result else None
    claim = structs.replace(
        claim_of(record), settled=settlement, result=result or NO_RESULT, spill=spill, fault=fault, keep=keep
    )
    return Replace(record.at, body_of(claim), state, version=record.version, draw=True, queue=queue, due_in=due_in)
