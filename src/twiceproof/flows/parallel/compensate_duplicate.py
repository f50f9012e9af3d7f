"""Undo a duplicate: an effect found to have happened twice. The recorded one is not touched."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

import msgspec
from msgspec import Raw, Struct, structs

from ...claims.claim import Claim, Done, Held, LostHold, Settlement, claim_of, run_address, shown_run
from ...claims.error_messages import BEFORE, claim_lost, refusal
from ...claims.held_claim import INHERITED, ClaimScope
from ...claims.queries import Evidence, evidence_write
from ...claims.results import unpack
from ...claims.states import ClaimRequest
from ...errors import Misuse, NeedsReview, Waiting
from ...keys.models import from_model
from ...operations import Operation
from ...records import Address
from ..engine.compensation import COMPENSATION_KIND
from ..engine.context import Unwind
from ..engine.exits import Review, Wait
from ..engine.ledger import RETRY, STARTED, STEP_DONE, UNKNOWN, Entry
from ..engine.run_states import work_of
from ..engine.session import Drive, Session
from ..engine.step_identity import UNDO, stem_of
from ..runtime import Runtime
from ..step import Step, called_with

__all__ = ["DuplicateEffect", "compensate"]


LEASE = 30.0

_encode = msgspec.json.Encoder(order="deterministic", enc_hook=from_model).encode


class DuplicateEffect(Struct, frozen=True):
    """A second effect of a step, given by its receipt: what the step would have returned for it."""

    step: Step
    receipt: Any
    arguments: Mapping[str, Any]
    by: str
    note: str = ""
    good_too: bool = False  # undo it even if it is the one that the run recorded
    undone: bool | None = None  # a person's statement about an earlier attempt with an unknown outcome

    @property
    def raw(self) -> bytes:
        """The same bytes for a dataclass and its dict, whatever the order of fields."""
        return _encode(msgspec.json.decode(_encode(self.receipt)))

    @property
    def name(self) -> str:
        """The step's name, one per receipt: this makes it happen once."""
        return f"{UNDO}{self.step.name}@{blake2b(self.raw, digest_size=8).hexdigest()}"


def compensate(runtime: Runtime, look_up: Operation[str], duplicate: DuplicateEffect, drive: Drive) -> Operation[Any]:
    """What the undo returned, now or when it was done before. `look_up` returns the space of the run."""
    space = yield from look_up
    undo = _undo_of(duplicate)
    claim = yield from _run(runtime, space)
    scope = yield from _take(runtime, space, claim, duplicate)
    session = Session(runtime, scope.hold, claim, work_of(claim), crashed=True, patience=LEASE, drive=drive)
    yield from scope.begin(inside=False)
    try:
        answer = yield from _under_claim(session, duplicate, undo)
    except GeneratorExit:  # generator closed, and can wait for nothing more: the claim lapses
        raise
    except BaseException:
        yield from _let_go(scope)
        raise
    finally:
        scope.end()
    yield from _let_go(scope)
    return answer


def _let_go(scope: ClaimScope) -> Operation[None]:
    if scope.hold.lost is not INHERITED:
        yield from scope.release()


def _under_claim(session: Session, duplicate: DuplicateEffect, undo: Step) -> Operation[Any]:
    yield from session.load()
    session.compensate_apart()
    yield from _refuse_recorded_effect(session, duplicate)
    yield from _record_evidence(session, duplicate)
    _apply_statement(session, duplicate)
    if _was_seen_done(session, duplicate):
        yield from session.ledger.flush()
        return None
    return (yield from _carry_out(session, duplicate, undo))


def _undo_of(duplicate: DuplicateEffect) -> Step:
    undo = duplicate.step.undo
    if undo is None:
        raise Misuse(f"{duplicate.step.name} has no undo; declare one: @app.step(undo=…).")
    given = called_with(undo.function, {**duplicate.arguments, "result": None})
    parameters = inspect.signature(undo.function).parameters.values()
    missing = [p.name for p in parameters if p.default is p.empty and p.name not in given and p.kind < p.VAR_KEYWORD]
    if missing:
        raise Misuse(f"{duplicate.step.name}'s undo needs {', '.join(missing)}; pass them in arguments={{…}}.")
    return undo


def _run(runtime: Runtime, space: str) -> Operation[Claim]:
    record = (yield from runtime.store.read(run_address(space))).record
    if record is None:
        raise Misuse("There is no such run; list them with: twiceproof runs list")
    return claim_of(record)


def _take(runtime: Runtime, space: str, claim: Claim, duplicate: DuplicateEffect) -> Operation[ClaimScope]:
    """A claim of its own in the run's space: the run may be over, or held."""
    request = ClaimRequest(
        at=Address(space, COMPENSATION_KIND, duplicate.name),
        operation=claim.operation,
        key=claim.key,
        owner=runtime.owner(),
        lease=LEASE,
        tenant=claim.tenant,
        run=claim.run,
        repeat="safe",
        where=runtime.where,
    )
    scope = ClaimScope(runtime.claims, runtime.heartbeat, request)
    taken = yield from scope.enter()
    if isinstance(taken, Held):
        return scope
    if isinstance(taken, LostHold):
        raise claim_lost(scope.hold, taken, BEFORE)
    assert not isinstance(taken, Done)  # noqa: S101 - it is released when its work is over, never completed
    raise refusal(request, taken)


def _refuse_recorded_effect(session: Session, duplicate: DuplicateEffect) -> Operation[None]:
    """Refuse to undo what the run recorded: nothing would be left."""
    if duplicate.good_too:
        return
    step = duplicate.step
    entries = session.ledger.entries.values()
    kept = [entry for entry in entries if entry.state == STEP_DONE and stem_of(entry.name) == step.name]
    if not kept:
        raise Misuse(
            f"{step.name} is not recorded as done in this run, so the duplicate cannot be told apart; "
            "settle the run first, or say good_too=True."
        )
    for entry in kept:
        text = yield from unpack(session.runtime.store, session.hold.held.at, entry.note.result, entry.note.spill)
        if text and _encode(msgspec.json.decode(text)) == duplicate.raw:
            raise Misuse(
                f"This is what the run itself recorded for {entry.name}: undoing it would undo the good one. Pass the "
                "duplicate's receipt, cancel the run, or say good_too=True."
            )


def _record_evidence(session: Session, duplicate: DuplicateEffect) -> Operation[None]:
    """The receipt stays recorded, whatever becomes of its undo."""
    found = Evidence(duplicate.by, 0, Raw(duplicate.raw), step=duplicate.name)
    yield from session.runtime.store.write(evidence_write(session.space, found))


def _carry_out(session: Session, duplicate: DuplicateEffect, undo: Step) -> Operation[Any]:
    result = duplicate.step.results.restore(duplicate.raw, loose=True)
    given = called_with(undo.function, {**duplicate.arguments, "result": result})
    try:
        answer = yield from session.step(undo, (), given, name=duplicate.name)
    except Unwind:
        yield from session.ledger.flush()
        raise _stopped(session, duplicate) from None
    except Exception:
        yield from session.ledger.flush()  # its failure is recorded; a new request tries again
        raise
    _record_reporter(session, duplicate)
    yield from session.ledger.flush()
    return answer


def _apply_statement(session: Session, duplicate: DuplicateEffect) -> None:
    """A failed attempt is retried on request; an ambiguous one only by a person's statement."""
    entry = session.ledger.entries.get(duplicate.name)
    if entry is None or entry.state == STEP_DONE:
        return
    if entry.state in (STARTED, UNKNOWN) and duplicate.undone is not None:
        said = Settlement("happened" if duplicate.undone else "did-not-happen", duplicate.by, _now(session))
        note = structs.replace(entry.note, result=Raw(b"null"), reason="", not_before=None, settled=said)
        if not duplicate.undone:  # counted from the beginning
            note = structs.replace(note, starts=0, first_at=None)
        state = STEP_DONE if duplicate.undone else RETRY
        session.ledger.note(Entry(entry.name, state, note, entry.version, entry.at))
    elif entry.state == "failed":
        note = structs.replace(entry.note, starts=0, first_at=None, not_before=None)
        session.ledger.entries[entry.name] = structs.replace(entry, state=RETRY, note=note)


def _was_seen_done(session: Session, duplicate: DuplicateEffect) -> bool:
    """A person's statement is not a result that the undo could have returned."""
    entry = session.ledger.entries.get(duplicate.name)
    settled = entry.note.settled if entry is not None else None
    return settled is not None and settled.verdict == "happened"


def _record_reporter(session: Session, duplicate: DuplicateEffect) -> None:
    """Record who reported the duplicate, once: a second call changes nothing."""
    entry = session.ledger.entries[duplicate.name]
    if entry.note.settled is None:
        word = Settlement("duplicate", duplicate.by, _now(session), duplicate.note)
        session.ledger.note(structs.replace(entry, note=structs.replace(entry.note, settled=word)))


def _now(session: Session) -> float:
    return session.ledger.now()


def _stopped(session: Session, duplicate: DuplicateEffect) -> Exception:
    stop, claim = session.stop, session.claim
    if isinstance(stop, Wait):
        return Waiting(
            f"The undo of a duplicate {duplicate.step.name} is put off: {stop.why}. Ask again then.",
            operation=claim.operation,
            key=claim.key,
            run=shown_run(claim.run),
            why=stop.why,
            until=_now(session) + (stop.seconds or 0.0),
        )
    reason = stop.reason if isinstance(stop, Review) else "it was stopped"
    return NeedsReview(
        f"Whether the duplicate {duplicate.step.name} was undone is unknown: {reason}. Look at its destination, then "
        "call again with undone=True or undone=False.",
        operation=claim.operation,
        key=claim.key,
        run=shown_run(claim.run),
        reason=reason,
    )
