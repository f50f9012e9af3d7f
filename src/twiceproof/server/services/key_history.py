"""Everything about one key: what came in, was done and was blocked, and what people decided, in order of time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Raw, Struct

from ...claims.acts import ActShape, acts_of
from ...claims.claim import DONE, FAILED, HELD, REVIEW, RUN, Claim, claim_of
from ...claims.duplicates import Blocked, blocked_of
from ...claims.queries import Evidence, evidence_of
from ...claims.results import unpack
from ...claims.retention import run_or_claim
from ...claims.states import is_expired, is_lapsed
from ...flows.engine.run_states import work_of
from ...flows.history.queries import look_at_run
from ...flows.history.run_view import StepShape, WholeRun
from ...inbound.hook import HOOK
from ...operations import Operation
from ...records import Address, Record
from ...stores.base import Store
from ..ui.formatting import href, span

__all__ = [
    "HistoryEntry",
    "KeyRecords",
    "history_of_acts",
    "history_of_claim",
    "history_of_repeats",
    "history_of_run",
    "in_order",
    "read_history",
    "read_key",
]

NOTHING_DONE = "answered; nothing done"
MOST_STEPS = 1_000  # of a run, in its history


class HistoryEntry(Struct, frozen=True):
    """One thing that happened to a key. `kind` tells how it is marked: came, step, said, ended."""

    at: float
    kind: str
    what: str
    state: str = ""
    detail: str = ""
    href: str = ""


def in_order(lines: Sequence[HistoryEntry]) -> list[HistoryEntry]:
    return sorted(lines, key=lambda line: line.at)


def history_of_run(whole: WholeRun, cause: tuple[str, str] | None) -> list[HistoryEntry]:
    """Return what a run did. `cause`: where it came in, and its id there."""
    run = whole.run
    source, event = cause or ("call", "")
    source = shown_source(source)
    lines = [HistoryEntry(run.created_at, "came", source, "new", event or "began the run", href("runs", run.run))]
    lines += [_step_line(step) for step in whole.steps]
    lines += [
        HistoryEntry(piece.seen_at, "said", piece.owner, "", f"reported late about {piece.step or 'the run'}")
        for piece in whole.evidence
    ]
    lines += [_word(step.settled, step.name) for step in whole.steps if step.settled]
    if whole.settled and not any(step.settled for step in whole.steps):
        lines.append(_word(whole.settled, "the run"))
    if run.state in (DONE, FAILED, REVIEW):
        lines.append(HistoryEntry(run.updated_at, "ended", "run", run.state, run.reason, href("runs", run.run)))
    return lines


def shown_source(operation: str) -> str:
    """Return the name of an entry point for people: a webhook's events are claimed under an operation of its own."""
    return f"webhook {operation.removeprefix(HOOK)}" if operation.startswith(HOOK) else operation


def _step_line(step: StepShape) -> HistoryEntry:
    at = step.began_at or step.recorded_at
    took = f"{span(step.took)}" if step.took is not None else ""
    fault = f"{step.fault['type']}: {step.fault['message']}" if step.fault else step.reason
    return HistoryEntry(
        at, "step", step.name, step.state, " · ".join(one for one in (took, step.external, fault) if one)
    )


def _word(settled: dict[str, Any], about: str) -> HistoryEntry:
    note = f": {settled['note']}" if settled["note"] else ""
    return HistoryEntry(settled["at"], "said", settled["by"], "", f"{settled['verdict']}, about {about}{note}")


def history_of_claim(record: Record, claim: Claim, evidence: Sequence[Evidence]) -> list[HistoryEntry]:
    """Return the history of a claim without steps."""
    lines = [HistoryEntry(record.created_at, "came", "call", "new", claim.owner and f"by {claim.owner}")]
    lines += [
        HistoryEntry(one.seen_at, "said", one.owner, "", "reported late, after it had lost the claim")
        for one in evidence
    ]
    if claim.settled is not None:
        word = claim.settled
        lines.append(
            HistoryEntry(word.at, "said", word.by, "", f"{word.verdict}{': ' + word.note if word.note else ''}")
        )
    if record.state != HELD:
        fault = f"{claim.fault.type}: {claim.fault.message}" if claim.fault else claim.reason
        lines.append(HistoryEntry(record.updated_at, "ended", "claim", record.state, fault))
    return lines


def history_of_repeats(found: Sequence[Blocked], hook: str = "") -> list[HistoryEntry]:
    """Return the repeats by entry point: a line for each of the latest, and one for those before, which are counted.
    `hook`: the operation of the webhook that the first one came by."""
    lines = []
    for one in found:
        source = shown_source(hook if hook == HOOK + one.source else one.source) or "call"
        counted = one.count - len(one.times)
        lines += [HistoryEntry(at, "came", source, "repeat", NOTHING_DONE) for at in one.times]
        if counted:
            told = "once" if counted == 1 else f"{counted:,} times"
            at = one.times[0] if one.times else one.last_at
            lines.append(
                HistoryEntry(at, "came", source, "repeat", f"{told}{' before' if one.times else ''}, {NOTHING_DONE}")
            )
    return lines


def history_of_acts(found: Sequence[ActShape]) -> list[HistoryEntry]:
    """Return what people did by hand. A settlement is shown with its step."""
    return [
        HistoryEntry(
            one.at, "said", one.by, "", " ".join(word for word in (one.verb, one.step, one.said, one.note) if word)
        )
        for one in found
        if one.verb != "settle"
    ]


class KeyRecords(Struct, frozen=True):
    """The records of a key."""

    at: Address
    record: Record
    claim: Claim
    whole: WholeRun | None
    result: Raw | str
    evidence: Sequence[Evidence]
    now: float

    @property
    def is_lapsed(self) -> bool:
        return self.record.state == HELD and is_lapsed(self.record, self.now)

    @property
    def reason(self) -> str:
        """Return why it is in this state, if a reason was given."""
        fault = self.claim.fault
        return self.claim.reason or (f"{fault.type}: {fault.message}" if fault else "")

    @property
    def ids(self) -> list[str]:
        """Return the external ids of its steps."""
        return [step.external for step in self.whole.steps if step.external] if self.whole else []


def read_key(store: Store, at_space: str) -> Operation[KeyRecords | None]:
    found = yield from run_or_claim(store, at_space)
    record = found.record
    if record is None or is_expired(record, found.now):
        return None
    claim = claim_of(record)
    is_run = record.at.kind == RUN
    whole = (yield from look_at_run(store, record.at, most=MOST_STEPS)) if is_run else None
    result = yield from unpack(store, record.at, claim.result, claim.spill)
    evidence = [] if is_run else (yield from evidence_of(store, at_space))
    return KeyRecords(record.at, record, claim, whole, result, evidence, found.now)


def read_history(store: Store, records: KeyRecords) -> Operation[tuple[list[HistoryEntry], int]]:
    """Return what happened to a key, in order of time, and how many repeats of it are known to have been blocked."""
    claim, whole = records.claim, records.whole
    cause = work_of(claim).event if whole is not None else None
    names = {claim.key, cause[1]} if cause is not None else {claim.key}  # a webhook counts repeats under its event's id
    began = records.record.created_at
    repeats = (yield from blocked_of(store, claim.tenant, claim.operation, names, began, records.now)).rows
    if whole is not None:
        lines = history_of_run(whole, None if cause is None else (cause[0], cause[1]))
    else:
        lines = history_of_claim(records.record, claim, records.evidence)
    acts = yield from acts_of(store, records.at.space)
    hook = "" if cause is None else cause[0]
    entries = [*lines, *history_of_repeats(repeats, hook), *history_of_acts(acts)]
    return in_order(entries), sum(one.count for one in repeats)
