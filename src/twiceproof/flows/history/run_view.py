"""Views of a run for people and programs, with the moves that are safe next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Raw, Struct, structs

from ...claims.claim import DONE, FAILED, HELD, QUEUED, REVIEW, WAITING, Claim, claim_of, shown_id, space_of
from ...claims.states import is_lapsed
from ...records import Address, Record
from ..engine.compensation import CANCELLED
from ..engine.ledger import STARTED, STEP_DONE, STEP_FAILED, UNKNOWN, WAITS, Entry
from ..engine.run_states import BROKE, INNER_REVIEW, NOT_AWAITED, NOT_UNDONE, work_of
from ..engine.step_identity import is_undo, undoes
from ..waits.records import APPROVAL_KIND as APPROVAL
from ..waits.records import OPEN, WAIT, approval_id

__all__ = [
    "EvidenceShape",
    "MoveShape",
    "PieceShape",
    "RunShape",
    "StepShape",
    "WholeRun",
    "next_moves",
    "run_shape",
    "step_shape",
]


class RunShape(Struct, frozen=True, kw_only=True):
    """One run in a list. Times are the store's, in seconds since 1970."""

    run: str
    flow: str
    version: str
    key: str
    tenant: str
    state: str
    lapsed: bool  # held, but its lease has run out
    reason: str  # why it is in review, or what it waits for
    attempt: int
    owner: str
    correlation: str
    link: str
    created_at: float
    updated_at: float
    age: float
    due_at: float | None  # when it continues by itself; null: only when something arrives, or never

    @property
    def word(self) -> str:
        return f"{self.state}, lapsed" if self.lapsed else self.state


class StepShape(Struct, frozen=True, kw_only=True):
    """One entry of a run's ledger: a step, an undo, a wait, or a recorded value."""

    name: str
    state: str
    repeat: str
    starts: int
    order: int
    began_at: float | None  # null where no start is recorded
    recorded_at: float
    took: float | None
    not_before: float | None
    result_kept: bool
    result: Raw | None
    spill: dict[str, Any] | None
    fault: dict[str, Any] | None
    reason: str
    settled: dict[str, Any] | None
    external: str

    @property
    def is_undo(self) -> bool:
        return is_undo(self.name)


class EvidenceShape(Struct, frozen=True, kw_only=True):
    """What a late holder reported. A settlement adopts it by its `id`."""

    id: str
    step: str
    owner: str
    fence: int
    seen_at: float
    result_kept: bool
    result: Raw | None
    fault: dict[str, Any] | None


class PieceShape(Struct, frozen=True, kw_only=True):
    """Another record beside a run: an arrival or an approval."""

    kind: str
    key: str
    state: str
    created_at: float
    updated_at: float
    body: Raw


class MoveShape(Struct, frozen=True):
    """A safe next move: in words, and as a command (after `twiceproof`)."""

    why: str
    words: tuple[str, ...] = ()

    @property
    def statement(self) -> str:
        """What a person says by choosing it. Beside a command it reads "If it happened:" or "To undo it:"."""
        text = self.why.rstrip(":").removeprefix("If ")  # a step's name may come first: its case stays
        return text[3].upper() + text[4:] if text.startswith("To ") else text


class WholeRun(Struct, frozen=True, kw_only=True):
    """One run with everything about it."""

    run: RunShape
    input: Raw | None
    result_kept: bool
    result: Raw | None
    fault: dict[str, Any] | None
    settled: dict[str, Any] | None
    undoing: str
    forked_from: str
    fence: int
    record_version: str  # changes with each write; a decision that names it is refused if the run has changed since
    lease_until: float | None
    steps: Sequence[StepShape]
    evidence: Sequence[EvidenceShape]
    pieces: Sequence[PieceShape]
    next: Sequence[MoveShape] = ()


def run_shape(record: Record, now: float) -> RunShape:
    claim = claim_of(record)
    work = work_of(claim)
    held = record.state == HELD
    return RunShape(
        run=shown_id(record.at),
        flow=claim.operation,
        version=work.version,
        key=claim.key,
        tenant=claim.tenant,
        state=record.state,
        lapsed=held and is_lapsed(record, now),
        reason=claim.reason or _fault_text(claim),
        attempt=claim.attempt,
        owner=claim.owner,
        correlation=work.correlation,
        link=claim.link,
        created_at=record.created_at,
        updated_at=record.updated_at,
        age=max(0.0, now - record.created_at),
        due_at=None if held or record.state in (STEP_DONE, STEP_FAILED) else record.due_at,
    )


def _fault_text(claim: Claim) -> str:
    return f"{claim.fault.type}: {claim.fault.message}" if claim.fault else ""


def step_shape(entry: Entry, result: Raw | str) -> StepShape:
    note = entry.note
    ended = entry.state in (STEP_DONE, STEP_FAILED, UNKNOWN) and note.began_at is not None and note.settled is None
    return StepShape(
        name=entry.name,
        state=entry.state,
        repeat=note.repeat,
        starts=note.starts,
        order=note.order,
        began_at=note.began_at,
        recorded_at=entry.at,
        took=max(0.0, entry.at - (note.began_at or 0.0)) if ended else None,
        not_before=note.not_before,
        result_kept=bool(result),
        result=Raw(result) if result else None,
        spill=fields(note.spill),
        fault=fields(note.fault),
        reason=note.reason,
        settled=fields(note.settled),
        external=note.external,
    )


def fields(struct: Struct | None) -> dict[str, Any] | None:
    """Every field, also those omitted in storage: a view has the same keys each time."""
    return None if struct is None else structs.asdict(struct)


# Recorded answers: a retry with the same code meets them again.
ANSWERED = {"WaitTimedOut": "What it waited for did not come in time", "Rejected": "It was rejected"}


def next_moves(whole: WholeRun) -> WholeRun:
    return structs.replace(whole, next=tuple(_moves(whole)))


def _moves(whole: WholeRun) -> Iterator[MoveShape]:
    run = whole.run
    name = f"{run.flow}/{run.key}"
    if run.state == REVIEW:
        yield from _of_review(whole, name)
    elif run.state == FAILED:
        yield from _of_failure(whole, name)
    elif run.state == QUEUED:
        yield MoveShape("A worker goes on with it, or the next call; see that one runs: twiceproof work MODULE:APP")
        yield MoveShape("To stop it and undo what was done:", ("runs", "cancel", name))
    elif run.state == WAITING:
        yield from _of_wait(whole, name)
    elif run.state == HELD:
        who = "Its lease has run out; a worker or the next call continues it" if run.lapsed else "It is running"
        yield MoveShape(f"{who}. To stop it before its next step:", ("runs", "cancel", name))
    elif run.state == DONE:
        yield MoveShape("To do it again, as something new:", ("runs", "fork", name, "--key", "KEY"))


def _of_wait(whole: WholeRun, name: str) -> Iterator[MoveShape]:
    """A run that waits for a person does not continue by itself; it can only time out."""
    asked = [piece.key for piece in whole.pieces if piece.kind == APPROVAL and piece.state == OPEN]
    for approval in asked:
        id_ = approval_id(Address(space_of(whole.run.tenant, whole.run.flow, whole.run.key), APPROVAL, approval))
        yield MoveShape(f"It waits for the approval of {approval}. See what it shows:", ("approvals", "show", id_))
    awaited = any(step.state == WAITS and step.name.startswith(WAIT) for step in whole.steps)
    by_itself = whole.run.due_at is not None and not asked and not awaited
    until = "by itself" if by_itself else "when what it waits for has arrived"
    late = ", or its time is over" if whole.run.due_at is not None and not by_itself else ""
    yield MoveShape(f"It goes on {until}{late}. To stop it and undo what was done:", ("runs", "cancel", name))


def _of_review(whole: WholeRun, name: str) -> Iterator[MoveShape]:
    settle = ("review", "settle", name)
    unknown = [step for step in whole.steps if step.state == UNKNOWN]
    asked = unknown or [step for step in whole.steps if step.state == STARTED and not step.is_undo]
    begun = _was_undone(whole)
    half_way = not unknown and (begun or whole.run.reason.startswith(NOT_UNDONE))
    lacking = next((step for step in whole.steps if _lacks_result(step, whole.run.reason)), None)
    once = f"Once {_in_its_way(whole.run.reason, lacking)},"
    if half_way:
        yield MoveShape(f"{once} undo what is done, and stop:", (*settle, "--undo"))
    if lacking is not None:
        yield from _of_lacking(lacking, settle)
    lost = lacking is not None and not lacking.result_kept  # no code change brings it back
    if (
        not unknown and not begun and not lost and whole.undoing != CANCELLED
    ):  # a run that is partly undone cannot continue
        why = "To go on with it instead of undoing it:" if half_way else f"{once} go on:"
        yield MoveShape(why, ("runs", "retry", name))
    for step in asked:
        yield from _of_unknown(whole, step, (*settle, "--step", step.name) if len(asked) > 1 else settle)
    if not begun and not half_way:
        yield from _of_undo(asked, settle)
    yield MoveShape("To leave it as it is, failed and not undone:", (*settle, "--abandon"))


def _lacks_result(step: StepShape, reason: str) -> bool:
    return step.state == DONE and bool(step.reason) and reason == f"{step.name}: {step.reason}"


def _of_lacking(step: StepShape, settle: tuple[str, ...]) -> Iterator[MoveShape]:
    """The step was done; only its return value is missing. A wait needs a payload of its type, so None is no help."""
    if step.name.startswith(WAIT):
        what = f"To go on with another payload for {step.name.removeprefix(WAIT)}, said by hand:"
        yield MoveShape(what, (*settle, "--happened", "--result", "JSON"))
        return
    yield MoveShape(
        f"To go on with what {step.name} returned, said by hand:", (*settle, "--happened", "--result", "JSON")
    )
    yield MoveShape(
        f"To go on without what {step.name} returned (the flow gets None):", (*settle, "--happened", "--result", "null")
    )


def _in_its_way(reason: str, lacking: StepShape | None) -> str:
    if lacking is not None:
        returns = "" if lacking.name.startswith(WAIT) else " to return"
        return f"what {lacking.name} declares{returns} accepts what is on record"
    if NOT_AWAITED in reason:
        return "the call is awaited"
    if INNER_REVIEW in reason:
        return "what it called is settled"
    if reason.startswith(NOT_UNDONE):
        return "what kept it from being undone is repaired"
    if reason.startswith(BROKE):
        return "its code is repaired"
    return "the code that it began with is back (or accepts it)"


def _of_unknown(whole: WholeRun, step: StepShape, settle: tuple[str, ...]) -> Iterator[MoveShape]:
    for piece in whole.evidence:
        if piece.step == step.name and piece.result_kept:
            yield MoveShape(
                f"If what {piece.owner} reported about {step.name} is right:",
                (*settle, "--happened", "--evidence", piece.id),
            )
    yield MoveShape(
        f"If {step.name} happened (with what it returned; null for nothing):",
        (*settle, "--happened", "--result", "JSON"),
    )
    yield MoveShape(f"If {step.name} did not happen, and may be tried again:", (*settle, "--did-not-happen"))


def _of_undo(unknown: list[StepShape], settle: tuple[str, ...]) -> Iterator[MoveShape]:
    if not unknown:
        yield MoveShape("To undo what is done, and stop:", (*settle, "--undo"))
    elif len(unknown) == 1:
        what = unknown[0].name
        yield MoveShape(
            f"To undo what is done, and stop ({what} did not happen):", (*settle, "--undo", "--did-not-happen")
        )
        yield MoveShape(
            f"To undo what is done, {what} too, and stop:", (*settle, "--undo", "--happened", "--result", "JSON")
        )


def _of_failure(whole: WholeRun, name: str) -> Iterator[MoveShape]:
    if _was_undone(whole):
        yield MoveShape("It was undone. To do it anew, as something new:", ("runs", "fork", name, "--key", "KEY"))
    elif whole.undoing:
        why = f"It was {whole.undoing}, and stays so. To do it anew, as something new:"
        yield MoveShape(why, ("runs", "fork", name, "--key", "KEY"))
    elif whole.fault is not None and (kind := whole.fault["type"]) in ANSWERED:
        yield MoveShape(f"{ANSWERED[kind]}. To ask anew, as something new:", ("runs", "fork", name, "--key", "KEY"))
        yield MoveShape(f"Once the flow catches {kind}, go on:", ("runs", "retry", name))
    else:
        yield MoveShape("To try what failed again (what is done stays done):", ("runs", "retry", name))


def _was_undone(whole: WholeRun) -> bool:
    """Whether the run itself was undone. An undone duplicate of one of its effects does not count."""
    return undoes({step.name for step in whole.steps})
