"""Settle a run in review, or retry a failed one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from msgspec import Raw, Struct, structs

from ...claims.acts import act_beside
from ...claims.claim import (
    FAILED,
    NO_RESULT,
    QUEUED,
    REVIEW,
    Claim,
    Fault,
    Settlement,
    Spill,
    body_of,
    claim_of,
    shown_id,
    shown_run,
)
from ...claims.manager import FOR_EVER, refuse_changed
from ...claims.queries import EVIDENCE_KIND as EVIDENCE
from ...claims.queries import read_evidence
from ...claims.results import unpack
from ...claims.states import Lifetime, finish_times
from ...errors import Misuse
from ...operations import Operation
from ...records import Address, Check, Record, Replace, Written
from ...safe_text import suggested_command
from ...stores.base import Store
from ..engine.compensation import refuse_cancelled
from ..engine.ledger import RETRY, STARTED, STEP_DONE, STEP_FAILED, UNKNOWN, Entry, entries_in, entry_write, tried_anew
from ..engine.run_dependencies import wake_waiters
from ..engine.run_states import queue_of, with_work, work_of
from ..engine.step_identity import is_undo, undoes
from .queries import read_run, require_run

__all__ = [
    "ReviewDecision",
    "SettledRun",
    "Verdict",
    "lacks_result",
    "queued",
    "refuse_retry",
    "retry_run",
    "settle_run",
    "without_undo",
]


Verdict = Literal["happened", "did-not-happen", "retry", "undo", "abandon"]


class ReviewDecision(Struct, frozen=True):
    """A person's decision. "retry" means that the cause is repaired. With "undo", `did` says whether the unknown step
    happened.
    """

    verdict: Verdict
    by: str
    note: str = ""
    step: str = ""  # the step; "": the only unknown one
    result: Raw = NO_RESULT  # what the step returned, if it happened
    evidence: str = ""  # or: adopt the result of this piece of evidence
    did: bool | None = None

    @property
    def happened(self) -> bool | None:
        """Whether the unknown step happened; None if the decision does not say."""
        return {"happened": True, "did-not-happen": False}.get(self.verdict, self.did)


class SettledRun(Struct, frozen=True):
    """The result of a settlement: the run's new state, and the step it was about."""

    run: str
    state: str
    verdict: str
    step: str = ""


def settle_run(
    store: Store,
    at: Address,
    word: ReviewDecision,
    *,
    life: Lifetime = FOR_EVER,
    where: Sequence[str] = (),
    version: str = "",
) -> Operation[SettledRun]:
    """Settle step and run in one write, conditional on both being unchanged. Draws a new fence.

    `version`: the run's, as it was when the decision was made; one that has changed since is refused.
    """
    if word.verdict not in get_args(Verdict):
        raise Misuse(f"{word.verdict!r} is not a verdict; say one of {', '.join(get_args(Verdict))}.")
    sent: Settlement | None = None
    while True:
        found = yield from read_run(store, at)
        record = require_run(found)
        claim = claim_of(record)
        if sent is not None and claim.settled == sent:  # the write landed; only its acknowledgement was lost
            if record.state == FAILED:
                yield from _wake_waiting_runs(store, claim)
            return SettledRun(shown_run(claim.run), record.state, word.verdict, word.step)
        _refuse_unless_in_review(record, claim, where)
        refuse_changed(record, version)
        entries = yield from entries_in(store, at.space)
        if word.verdict == "retry":
            refuse_retry(record, entries, where)
        entry = _step_in_question(word, entries, claim.reason)
        sent = Settlement(word.verdict, word.by, found.now, word.note)
        settled = yield from _settled_entry(store, at, word, sent, entry, entries, where)
        rest = [other for other in entries if settled is None or other is not entry]
        write = _claim_write(record, structs.replace(claim, settled=sent), word, rest, life)
        entry_writes = [] if settled is None else [entry_write(at.space, settled)]
        name = entry.name if entry else ""
        act = act_beside(store, record, "settle", word.by, said=word.verdict, step=name, note=word.note)
        if isinstance((yield from store.write(write, *entry_writes, *act)), Written):
            if write.state == FAILED:
                yield from _wake_waiting_runs(store, claim)
            return SettledRun(shown_run(claim.run), write.state, word.verdict, name)


def _wake_waiting_runs(store: Store, claim: Claim) -> Operation[None]:
    """Wake the runs that wait for this one: their answer is known now."""
    return wake_waiters(store, work_of(claim))


def _refuse_unless_in_review(record: Record, claim: Claim, where: Sequence[str]) -> None:
    if record.state != REVIEW:
        raise Misuse(
            f"This run is {record.state}, not in review: there is nothing to settle. Look at it with: "
            f"{suggested_command(*where, 'runs', 'show', shown_run(claim.run))}"
        )


def refuse_retry(record: Record, entries: Sequence[Entry], where: Sequence[str]) -> None:
    """Refuse to retry where another decision is needed first, or where only a new run can help."""
    run = shown_run(claim_of(record).run)
    if record.state not in (FAILED, REVIEW):
        look = suggested_command(*where, "runs", "show", run)
        raise Misuse(f"This run is {record.state}: there is nothing to try again. Look: {look}")
    refuse_cancelled(record, where)
    if undoes({entry.name for entry in entries}):
        raise Misuse(
            "What this run did was undone, or is being undone: it cannot go on. Start it as something new: "
            f"{suggested_command(*where, 'runs', 'fork', run, '--key', 'KEY')}"
        )
    unknown = sorted(entry.name for entry in entries if entry.state == UNKNOWN)
    if record.state == REVIEW and unknown:
        look = suggested_command(*where, "review", "show", run)
        raise Misuse(f"The outcome of {', '.join(unknown)} is unknown; settle it: {look}")


def without_undo(claim: Claim) -> Claim:
    """The run without an earlier decision to undo it; that decision stays recorded with the settlement."""
    return with_work(claim, undoing="", by="") if work_of(claim).undoing else claim


# -- the step ------------------------------------------------------------------------------------


def _step_in_question(word: ReviewDecision, entries: Sequence[Entry], reason: str) -> Entry | None:
    """The step that the decision is about; None if it is about the run alone."""
    unknown = [entry for entry in entries if entry.state == UNKNOWN] or _unfinished(entries)
    lacking = [entry for entry in entries if lacks_result(entry, reason)]
    if word.happened and lacking and word.step in ("", lacking[0].name) and word.verdict == "happened":
        return lacking[0]
    if word.step:
        return _named(word.step, entries)
    if word.happened is None:
        return None
    if not unknown:
        raise Misuse(
            f"No step of this run has an unknown outcome; it stopped because: {reason.rstrip('.')}. Go on with it once "
            'that is repaired ("retry"), or say "undo" or "abandon".'
        )
    if len(unknown) > 1:
        raise Misuse(f"Several outcomes are unknown; say which is meant: {', '.join(_names(unknown))}.")
    return unknown[0]


def lacks_result(entry: Entry, reason: str) -> bool:
    """Whether the run stopped because this step's result is missing or unusable: a person can supply it."""
    return entry.state == STEP_DONE and bool(entry.note.reason) and reason == f"{entry.name}: {entry.note.reason}"


def _unfinished(entries: Sequence[Entry]) -> list[Entry]:
    """Steps that were started and have no recorded end, while the run stopped for another reason."""
    return [entry for entry in entries if entry.state == STARTED and not is_undo(entry.name)]


def _named(name: str, entries: Sequence[Entry]) -> Entry:
    found = next((entry for entry in entries if entry.name == name), None)
    if found is not None and found.state == STEP_DONE and found.note.settled is not None:
        return found  # settled by a person, who may have been mistaken about the result
    if found is None or found.state not in (UNKNOWN, STARTED):
        known = "is not in the ledger" if found is None else f"is {found.state}"
        raise Misuse(f"{name} {known}; only a step with an unknown outcome is settled.")
    return found


def _settled_entry(
    store: Store,
    at: Address,
    word: ReviewDecision,
    settlement: Settlement,
    entry: Entry | None,
    entries: Sequence[Entry],
    where: Sequence[str],
) -> Operation[Entry | None]:
    if entry is None or word.happened is None:
        return None
    settlement = structs.replace(settlement, verdict="happened" if word.happened else "did-not-happen")
    if not word.happened:
        if entry.state == STEP_DONE:
            raise Misuse(f"{entry.name} is on record as done; say what it returned (--happened --result), or undo it.")
        note = structs.replace(
            entry.note,
            settled=settlement,
            starts=0,
            first_at=None,
            began_at=None,
            not_before=None,
            reason="",
            ambiguous=False,
            unclassified=False,
            final=False,
        )
        return structs.replace(entry, state=RETRY, note=note)
    result, spill = yield from _outcome(store, at, word, entry, where)
    order = entry.note.order or 1 + max(other.note.order for other in entries)  # undo runs in the reverse of this order
    note = structs.replace(
        entry.note,
        settled=settlement,
        result=result,
        spill=spill,
        fault=None,
        not_before=None,
        reason="",
        order=order,
        mistyped=False,
    )
    return structs.replace(entry, state=STEP_DONE, note=note)


def _outcome(
    store: Store, at: Address, word: ReviewDecision, entry: Entry, where: Sequence[str]
) -> Operation[tuple[Raw, Spill | None]]:
    """The value that the flow continues with. Refused if missing: the flow would fail and undo everything."""
    if word.result:
        return word.result, None
    if not word.evidence:
        raise Misuse(
            f"Say what {entry.name} returned (--result, result=…): null where it returns nothing; or adopt evidence."
        )
    record = (yield from store.read(Address(at.space, EVIDENCE, word.evidence))).record
    piece = read_evidence(record) if record is not None else None
    if piece is None or piece.step != entry.name:
        shown = suggested_command(*where, "review", "show", shown_id(at))
        raise Misuse(f"There is no evidence {word.evidence!r} about {entry.name}; see what there is: {shown}")
    text = yield from unpack(store, at, piece.result, piece.spill)
    if not text:
        raise Misuse(f"Evidence {word.evidence!r} has no result to adopt; say what {entry.name} returned.")
    return piece.result, piece.spill


# -- the run -------------------------------------------------------------------------------------


def _claim_write(record: Record, claim: Claim, word: ReviewDecision, rest: Sequence[Entry], life: Lifetime) -> Replace:
    """`rest` are the entries that the decision does not mention."""
    if word.verdict == "abandon":
        return _abandoned(record, claim, life)
    if word.verdict == "undo":
        _refuse_open(rest)
        return queued(record, with_work(claim, undoing="settled", by=word.by))
    if word.verdict == "retry":
        return queued(record, without_undo(claim))
    unknown = _names([entry for entry in rest if entry.state == UNKNOWN])
    if not unknown:
        return queued(record, claim)
    body = body_of(structs.replace(claim, reason=f"the outcome of {', '.join(unknown)} is unknown too"))
    return Replace(record.at, body, REVIEW, version=record.version, draw=True)


def _refuse_open(rest: Sequence[Entry]) -> None:
    """Refuse to undo while another outcome is unknown: it could undo something that has not happened yet."""
    names = _names([entry for entry in rest if entry.state in (UNKNOWN, STARTED) and not is_undo(entry.name)])
    if names:
        raise Misuse(
            f"Nothing is undone while an outcome is unknown: {', '.join(names)}. Say whether it happened: before "
            "the undo, or together with it (--undo --happened or --undo --did-not-happen; did=…)."
        )


def _names(entries: Sequence[Entry]) -> list[str]:
    return sorted(entry.name for entry in entries)


def _abandoned(record: Record, claim: Claim, life: Lifetime) -> Replace:
    word = claim.settled
    why = "" if word is None else word.note or f"abandoned by {word.by}"
    body = body_of(structs.replace(claim, fault=Fault("Abandoned", why)))
    queue, due_in, _ = finish_times(FAILED, life)
    return Replace(record.at, body, FAILED, version=record.version, draw=True, queue=queue, due_in=due_in)


def queued(record: Record, claim: Claim) -> Replace:
    """The next worker or call continues it."""
    queue = queue_of(claim.tenant, claim.operation, work_of(claim).version)
    body = body_of(structs.replace(claim, reason="", fault=None))
    return Replace(record.at, body, QUEUED, version=record.version, draw=True, queue=queue, due_in=0.0)


def retry_run(
    store: Store, at: Address, where: Sequence[str] = (), *, version: str = "", by: str = ""
) -> Operation[str]:
    """Put a failed run, or one that stopped because its flow changed, back into the queue.

    `by`: who asked for it, for the record.
    `version`: the run's, as it was when this was decided; one that has changed since is refused.
    """
    while True:
        found = yield from read_run(store, at)
        record = require_run(found)
        refuse_changed(record, version)
        entries = yield from entries_in(store, at.space)
        refuse_retry(record, entries, where)
        if not (yield from _reopen(store, record, entries)):
            continue
        again = queued(record, without_undo(claim_of(record)))
        if isinstance((yield from store.write(again, *act_beside(store, record, "retry", by))), Written):
            return QUEUED


def _reopen(store: Store, record: Record, entries: Sequence[Entry]) -> Operation[bool]:
    """Before the run is queued: a crash in between leaves a failed run, whose failed steps are retried anyway."""
    failed = [tried_anew(entry) for entry in entries if entry.state == STEP_FAILED and record.state == FAILED]
    size = max(1, store.batch_limit - 1)
    for start in range(0, len(failed), size):
        writes = [entry_write(record.at.space, entry) for entry in failed[start : start + size]]
        written = yield from store.write(Check(record.at, version=record.version), *writes)
        if not isinstance(written, Written):
            return False
    return True
