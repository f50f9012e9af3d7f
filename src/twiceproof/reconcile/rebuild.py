"""Rebuilds the ledger from the source of truth: applies a plan that can be read first, line by line.

A rebuild only adds: claims and runs that the ledger lacks, outcomes for those in review, evidence and a finding if the
two disagree. It never changes a recorded result, and never touches what is held, queued or waiting.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct

from ..claims.claim import CLAIM, DONE, NO_RESULT, RUN, Claim, Settlement, alone, body_of, run_id
from ..claims.manager import ClaimManager
from ..claims.once import Once
from ..claims.queries import Evidence, evidence_write
from ..claims.states import finish_times
from ..errors import Misuse
from ..flows.engine.ledger import STEP_DONE, Entry, EntryNote, entry_write
from ..flows.engine.run_states import RunState, encoded
from ..flows.external_ids import pointer_to
from ..flows.flow import Flow
from ..flows.history.review import ReviewDecision, settle_run
from ..flows.step import Step
from ..operations import Operation
from ..records import Address, Insert, Written
from ..stores.base import Store
from .checks import Discrepancy
from .findings import REBUILDS, ReconcileNote, record_run
from .rebuild_plan import WRITES, RebuildLine, RebuildPlan, RebuildTarget, says_the_same

__all__ = ["Rebuilt", "apply_rebuild", "target_of"]

BY = "rebuild"
FOUND = "found in the source of truth"
SETTLED_ABSENT = "settle-absent"  # the name under which such lines are counted
TOLD = ("differs", "missing", "failed")  # as findings; those in review wait for a person already


def target_of(
    operation: Any, tenant: str, flows: Mapping[str, Flow], guarded: Mapping[str, Once], steps: Iterable[Step]
) -> RebuildTarget:
    """Return the target to rebuild, by the function or its name."""
    declared = getattr(operation, "flow", None) or getattr(operation, "once", None)
    name = str(operation if declared is None else declared.policy.operation)
    externals = {step.name: step.external for step in steps if step.external is not None}
    if name in flows:
        return RebuildTarget(tenant, name, RUN, flows[name].policy.life, flows[name].version, externals)
    if name in guarded:
        return RebuildTarget(tenant, name, CLAIM, guarded[name].policy.life)
    raise Misuse(f"{name} is neither a flow nor a guarded function of this app; name one that is declared.")


class Rebuilt(Struct, frozen=True):
    """What applying a plan did: lines by action, and those that were skipped because the ledger had changed."""

    applied: dict[str, int]
    skipped: Sequence[str]


def apply_rebuild(
    store: Store,
    claims: ClaimManager,
    target: RebuildTarget,
    plan: RebuildPlan,
    settle_absent: int = 0,
    fresh: RebuildPlan | None = None,
    changed: int = 0,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Operation[Rebuilt]:
    """Do what the plan says, each line only if the ledger is as it was. Applied twice, it writes nothing more.

    `settle_absent`: how many outcomes may be settled as not having happened. With more in the plan, nothing is applied.
    `fresh`: a plan made of the source by now; keys about which the source has changed are skipped. With more than
    `changed` of them, nothing is applied.
    """
    for one in (plan, *([] if fresh is None else [fresh])):
        _refuse_others(one, target)
    sure = sum(bool(line.not_done) for line in plan.lines)
    if settle_absent and sure > settle_absent:
        raise Misuse(
            f"The source lacks {sure:,} outcomes that are unknown, and {settle_absent:,} may be settled: nothing was "
            "applied. Look whether the source is whole; then allow as many."
        )
    applied: Counter[str] = Counter()
    skipped = [] if fresh is None else _changed_since(plan, fresh, changed)
    stale = frozenset(skipped)
    todo = [line for line in plan.lines if line.action in WRITES and line.key not in stale]
    yield from _report(store, target, [line for line in todo if line.action in TOLD])
    for number, line in enumerate(todo, 1):
        if settle_absent and line.not_done:
            done_as, is_done = SETTLED_ABSENT, (yield from _settle_absent(store, claims, target, line))
        else:
            done_as, is_done = str(line.action), (yield from _apply(store, claims, target, line))
        if is_done:
            applied[done_as] += 1
        else:
            skipped.append(line.key)
        progress(number, len(todo))
    return Rebuilt(dict(sorted(applied.items())), skipped)


def _refuse_others(plan: RebuildPlan, target: RebuildTarget) -> None:
    head = plan.head
    if (head.tenant, head.operation, head.kind) != (target.tenant, target.operation, target.kind):
        raise Misuse(f"This plan is for {head.operation} of {head.tenant}; apply it with the app that made it.")


def _changed_since(plan: RebuildPlan, fresh: RebuildPlan, most: int) -> list[str]:
    """Return the keys about which the source has changed since the plan was made."""
    now = {line.key: line for line in fresh.lines}
    found = [line.key for line in plan.lines if line.action in WRITES and not says_the_same(line, now.get(line.key))]
    if len(found) > most:
        raise Misuse(
            f"The source has changed since the plan was made: for {len(found):,} of its keys, such as {found[0]}. "
            f"At most {most:,} may be skipped, so nothing was applied. Look at the fresh plan, and apply that one."
        )
    return found


def _apply(store: Store, claims: ClaimManager, target: RebuildTarget, line: RebuildLine) -> Operation[bool]:
    at = target.address(line.key)
    if line.action == "adopt":
        return (yield from _adopt(store, target, at, line))
    found = yield from store.read(at)
    if found.record is None or found.record.version != line.version:
        return False
    if line.action != "settle":
        return (yield from _testify(store, at, line))
    try:
        yield from _settle(store, claims, target, at, line, found.now)
    except Misuse:  # it was changed meanwhile
        return False
    return True


def _settle(
    store: Store, claims: ClaimManager, target: RebuildTarget, at: Address, line: RebuildLine, now: float
) -> Operation[None]:
    """Settle what is unknown as having happened. Refused if the record has changed since the plan."""
    version = line.version
    if at.kind == CLAIM:
        word = Settlement("happened", BY, now, FOUND)
        yield from claims.settle(at, word, result=line.result, life=target.life, version=version)
    for step, receipt in line.steps.items() if at.kind == RUN else ():
        yield from settle_run(
            store, at, ReviewDecision("happened", BY, FOUND, step, receipt), life=target.life, version=version
        )
        record = (yield from store.read(at)).record
        version = "" if record is None else record.version


def _settle_absent(store: Store, claims: ClaimManager, target: RebuildTarget, line: RebuildLine) -> Operation[bool]:
    """Settle as not having happened: it is done when the run continues, or when the function is called again."""
    at, life, note = target.address(line.key), target.life, "it is not in the source of truth"
    found = yield from store.read(at)
    if found.record is None or found.record.version != line.version:
        return False
    yield from _testify(store, at, line)
    try:
        if at.kind == CLAIM:
            word = Settlement("did-not-happen", BY, found.now, note)
            yield from claims.settle(at, word, life=life, version=line.version)
        else:
            decision = ReviewDecision("did-not-happen", BY, note, line.not_done)
            yield from settle_run(store, at, decision, life=life, version=line.version)
    except Misuse:  # it was changed meanwhile
        return False
    return True


def _adopt(store: Store, target: RebuildTarget, at: Address, line: RebuildLine) -> Operation[bool]:
    """Record as done what the ledger lacks: a redelivered event is then a duplicate."""
    now = (yield from store.read(at)).now
    queue, due_in, keep = finish_times(DONE, target.life)
    claim = Claim(
        target.operation,
        line.key,
        BY,
        target.tenant,
        run=run_id(at.space),
        result=line.result or Raw(b"null"),
        settled=Settlement("happened", BY, now, FOUND),
        keep=keep,
        work=encoded(RunState(target.version)) if at.kind == RUN else NO_RESULT,
    )
    insert = Insert(at, body_of(claim), DONE, draw=True, queue=queue, due_in=due_in)
    entries = [_entry(target, line, name, number) for number, name in enumerate(line.steps, 1)]
    writes = [entry_write(at.space, entry) for entry in entries]
    written = yield from store.write(insert, *alone(insert), *writes)
    for entry in entries:
        if isinstance(written, Written) and entry.note.external:
            yield from store.write(pointer_to(at.space, claim, entry.name, entry.note.external))
    return isinstance(written, Written)


def _entry(target: RebuildTarget, line: RebuildLine, name: str, order: int) -> Entry:
    receipt = line.steps[name]
    make = target.externals.get(name)
    external = "" if make is None else make({"result": msgspec.json.decode(receipt)})
    settled = Settlement("happened", BY, 0.0)
    return Entry(name, STEP_DONE, EntryNote(result=receipt, order=order, external=external, settled=settled))


def _report(store: Store, target: RebuildTarget, lines: Sequence[RebuildLine]) -> Operation[None]:
    """Record a finding for each contradiction without evidence yet. The evidence is written after the finding, so that
    a crash loses none, and a second apply finds nothing to write.
    """
    seen = []
    for line in lines:
        at = target.address(line.key)
        found, evidence = yield from store.read_each([at, _evidence(at, line)[0].at])
        if evidence.record is None and found.record is not None and found.record.version == line.version:
            told = [{"step": step, "receipt": msgspec.json.decode(raw)} for step, raw in line.steps.items()]
            key = f"{target.operation}/{line.key}"
            seen.append(Discrepancy(f"rebuild-{line.action}", key, (), line.why, {"source": told}))
    if seen:
        now = (yield from store.read(target.address(lines[0].key))).now
        yield from record_run(store, target.tenant, ReconcileNote(REBUILDS, now), seen, (), ())


def _evidence(at: Address, line: RebuildLine) -> list[Insert]:
    """Return the source's row as evidence. Its address is fixed, so that it is stored only once."""
    told = line.steps or {"": line.result}
    return [
        evidence_write(at.space, Evidence(f"{BY}: {line.why}", 0, result=receipt, step=step or "source"))
        for step, receipt in told.items()
    ]


def _testify(store: Store, at: Address, line: RebuildLine) -> Operation[bool]:
    is_new = False
    for write in _evidence(at, line):
        is_new |= isinstance((yield from store.write(write)), Written)
    return is_new
