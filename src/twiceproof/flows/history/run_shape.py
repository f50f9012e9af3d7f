"""A run as it is shown: the stable JSON shape, for the command line and for programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Raw, Struct, structs

from ...claims.claim import HELD, Claim, claim_of
from ...claims.states import is_lapsed
from ...records import Record
from ..entry import DONE, FAILED, UNKNOWN, Entry
from ..undo import is_undo
from ..work import work_of

__all__ = ["EvidenceShape", "MoveShape", "PieceShape", "RunShape", "StepShape", "WholeRun", "run_shape", "step_shape"]


class RunShape(Struct, frozen=True, kw_only=True):
    """One run in a list. Times are the store's, in seconds since 1970."""

    run: str
    flow: str
    version: str
    key: str
    tenant: str
    state: str
    lapsed: bool  # held, but by nobody any more: the lease ran out
    reason: str  # why it is in review, or what it waits for
    attempt: int
    owner: str
    correlation: str
    link: str
    created_at: float
    updated_at: float
    age: float
    due_at: float | None  # when it goes on by itself; null: not before something arrives, or never

    @property
    def word(self) -> str:
        return f"{self.state}, lapsed" if self.lapsed else self.state


class StepShape(Struct, frozen=True, kw_only=True):
    """One entry of a run's ledger: a step, an undo, a wait, or something drawn."""

    name: str
    state: str
    repeat: str
    starts: int
    order: int
    began_at: float | None  # null: where no start is written down
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
    """What a late holder reported. `id` is what a settlement adopts it by."""

    id: str
    step: str
    owner: str
    fence: int
    seen_at: float
    result_kept: bool
    result: Raw | None
    fault: dict[str, Any] | None


class PieceShape(Struct, frozen=True, kw_only=True):
    """Something else that lies beside a run: an arrival, an approval."""

    kind: str
    key: str
    state: str
    created_at: float
    updated_at: float
    body: Raw


class MoveShape(Struct, frozen=True):
    """What is safe to do next: in words, and what to type (after `twiceproof`)."""

    why: str
    words: tuple[str, ...] = ()


class WholeRun(Struct, frozen=True, kw_only=True):
    """One run with everything."""

    run: RunShape
    input: Raw | None
    result_kept: bool
    result: Raw | None
    fault: dict[str, Any] | None
    settled: dict[str, Any] | None
    undoing: str
    forked_from: str
    fence: int
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
        run=claim.run, flow=claim.operation, version=work.version, key=claim.key, tenant=claim.tenant,
        state=record.state, lapsed=held and is_lapsed(record, now), reason=claim.reason or _fault_text(claim),
        attempt=claim.attempt, owner=claim.owner, correlation=work.correlation, link=claim.link,
        created_at=record.created_at, updated_at=record.updated_at, age=max(0.0, now - record.created_at),
        due_at=None if held or record.state in (DONE, FAILED) else record.due_at,
    )  # fmt: skip


def _fault_text(claim: Claim) -> str:
    return f"{claim.fault.type}: {claim.fault.message}" if claim.fault else ""


def step_shape(entry: Entry, result: Raw | str) -> StepShape:
    note = entry.note
    ended = entry.state in (DONE, FAILED, UNKNOWN) and note.began_at is not None and note.settled is None
    return StepShape(
        name=entry.name, state=entry.state, repeat=note.repeat, starts=note.starts, order=note.order,
        began_at=note.began_at, recorded_at=entry.at,
        took=max(0.0, entry.at - (note.began_at or 0.0)) if ended else None, not_before=note.not_before,
        result_kept=bool(result), result=Raw(result) if result else None, spill=fields(note.spill),
        fault=fields(note.fault), reason=note.reason, settled=fields(note.settled), external=note.external,
    )  # fmt: skip


def fields(struct: Struct | None) -> dict[str, Any] | None:
    """Every field, also those that are left out where they are stored: a shape has the same keys each time."""
    return None if struct is None else structs.asdict(struct)
