"""Fork a run: start the same input under a new key. Its effects are new ones, with effect keys of their own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

from msgspec import Struct, structs

from ...claims.acts import act_beside
from ...claims.blobs.records import copy_blob
from ...claims.claim import (
    DONE,
    FAILED,
    NO_RESULT,
    REVIEW,
    WAITING,
    Claim,
    Spill,
    alone,
    body_of,
    claim_of,
    run_id,
    shown_run,
    space_of,
)
from ...claims.results import resource_address, unpack
from ...claims.retention import forget
from ...claims.states import first_pointer
from ...errors import Misuse
from ...keys import validate_key
from ...operations import Operation
from ...records import Address, Check, Insert, Record, Written
from ...stores.base import Store
from ..engine.ledger import STEP_DONE, Entry, entries_in
from ..engine.ledger import STEP_KIND as STEP
from ..engine.run_states import RunState, encoded, work_of
from ..engine.step_identity import UNDO, is_undo
from ..ordering.declaration import Compare, Version
from ..ordering.high_water_mark import DropDecision, OrderedEvent, decide, mark_at, mark_of
from ..waits.waiting import wait_name
from .queries import TOKENS, read_run, require_run
from .review import queued

__all__ = ["Forked", "fork_run", "plan_fork"]


BEING_FORKED = "is being forked"


class Forked(Struct, frozen=True):
    """What a fork copies from the first run, and which of its steps it runs again."""

    run: str
    key: str
    kept: tuple[str, ...]
    again: tuple[str, ...]


def plan_fork(store: Store, at: Address, key: str, step: str = "") -> Operation[Forked]:
    """Return what `fork_run` would do. Writes nothing."""
    record = require_run((yield from read_run(store, at)))
    entries = yield from entries_in(store, at.space)
    plan = _plan(record, entries, key, step)
    yield from _refuse_overtaken(store, claim_of(record), plan.run)
    return _shown(plan)


def fork_run(
    store: Store, at: Address, key: str, step: str = "", *, by: str = "", starter: str = ""
) -> Operation[Forked]:
    """Start the run again under `key`. With `step`, everything completed before that step counts as done.

    `by`: who asked for it, for the record. `starter`: the same, where it is known for sure: that person may not approve
    what the new run asks for. By default it is who started the first run.
    """
    found = yield from read_run(store, at)
    record = require_run(found)
    entries = yield from entries_in(store, at.space)
    plan = _plan(record, entries, key, step)
    yield from _refuse_overtaken(store, claim_of(record), plan.run)
    claim = yield from _new_claim(store, record, plan, found.now, starter)
    copies = [entry for entry in entries if entry.name in plan.kept]
    # Parked until everything is copied: a worker that took it earlier would run the missing steps again.
    new = Insert(_place(record, key), body_of(claim), WAITING, draw=True)
    # In the new run's space, where it is written: the first run is not changed.
    source = structs.replace(record, at=new.at)
    act = act_beside(store, source, "fork", by, said=f"from {claim_of(record).key}", step=step)
    written = yield from store.write(new, *alone(new), *act, also=first_pointer(new))
    while not isinstance(written, Written):
        if written.found is None or not _is_half_made(written.found, claim):
            raise Misuse(f"{claim.operation} for {key!r} is there already; choose another key.")
        yield from forget(store, written.found)
        written = yield from store.write(new, *alone(new), also=first_pointer(new))
    ours = Check(new.at, fence=written.fence)
    for piece in (yield from _beside(store, at, new.at, work_of(claim).spill)):
        yield from store.write(ours, piece)
    yield from _copy(store, at, ours, copies)
    parked = (yield from store.read(new.at)).record
    if parked is not None and parked.state == WAITING and parked.fence == written.fence:
        yield from store.write(queued(parked, claim))
    return _shown(plan)


def _shown(plan: Forked) -> Forked:
    return structs.replace(plan, run=shown_run(plan.run))


def _is_half_made(found: Record, claim: Claim) -> bool:
    """Whether this is a half-made fork of the same run, left by a process killed while copying.

    No worker would take it.
    """
    other = claim_of(found)
    same = bool(other.work) and work_of(other).forked_from == work_of(claim).forked_from
    return same and found.state == WAITING and other.reason == BEING_FORKED


def _place(record: Record, key: str) -> Address:
    claim = claim_of(record)
    return structs.replace(record.at, space=space_of(claim.tenant, claim.operation, key))


def _plan(record: Record, entries: Sequence[Entry], key: str, step: str) -> Forked:
    if record.state not in (DONE, FAILED, REVIEW):
        raise Misuse(f"This run is {record.state}; wait until it has ended, or cancel it first: twiceproof runs cancel")
    kept = _before(entries, step) if step else []
    space = _place(record, validate_key(key)).space
    again = [entry.name for entry in entries if entry.note.repeat and entry not in kept and not is_undo(entry.name)]
    return Forked(run_id(space), key, tuple(entry.name for entry in kept), tuple(again))


def _refuse_overtaken(store: Store, claim: Claim, fork: str) -> Operation[None]:
    """Refuse to fork an older version: it would be dropped as stale, or write an older state over a newer one."""
    ordered = work_of(claim).ordered
    if ordered is None:
        return
    thing, kind, text = ordered
    mark = mark_of((yield from store.read(mark_at(claim.tenant, claim.operation, thing))).record)
    event = OrderedEvent(
        Version(cast(Compare, kind), text), fork, claim.fingerprint, waited=True, forked_from=claim.run
    )
    if mark is not None and isinstance(decide(mark, event, park=False, first=None), DropDecision):
        raise Misuse(
            f"Version {text} of {thing} was overtaken by {mark.version}, so its fork would be dropped as stale; fork "
            f"the newest one ({shown_run(mark.run)}), or send this state as a newer version."
        )


def _before(entries: Sequence[Entry], step: str) -> list[Entry]:
    """The entries that were completed before this step."""
    found = next((entry for entry in entries if entry.name == step), None)
    if found is None:
        names = ", ".join(entry.name for entry in entries) or "none"
        raise Misuse(f"{step} is not in this run's ledger; there are: {names}.")
    limit = found.note.order or math.inf  # not the number of entries: a retried entry was completed more than once
    kept = [entry for entry in entries if entry.state == STEP_DONE and entry.note.order < limit and entry is not found]
    undone = {entry.name for entry in entries} & {UNDO + entry.name for entry in kept}
    if undone:
        raise Misuse(f"What came before {step} was undone ({', '.join(sorted(undone))}); fork it without --from.")
    _refuse_loose_urls({entry.name for entry in kept})
    return kept


def _refuse_loose_urls(kept: set[str]) -> None:
    """Refuse callback URLs that belong to the first run: the fork would wait for a callback it never receives."""
    names = (name.removeprefix(TOKENS) for name in kept if name.startswith(TOKENS))
    loose = sorted(TOKENS + name for name in names if wait_name(name) not in kept)
    if loose:
        raise Misuse(f"The URL of {loose[0]} is the first run's, and still waited for; fork it with --from {loose[0]}.")


def _new_claim(store: Store, record: Record, plan: Forked, now: float, starter: str) -> Operation[Claim]:
    claim = claim_of(record)
    work = work_of(claim)
    given = yield from unpack(store, record.at, work.input, work.spill)
    if not given:
        raise Misuse("The input of this run is no longer kept; start it with its arguments instead.")
    new = RunState(
        work.version,
        work.input,
        work.spill,
        correlation=work.correlation,
        start_id=f"{plan.run}@{now}",
        forked_from=claim.run,
        ordered=work.ordered,
        starter=starter or work.starter,
    )
    return Claim(
        claim.operation,
        plan.key,
        "",
        claim.tenant,
        claim.fingerprint,
        0,
        plan.run,
        claim.link,
        result=NO_RESULT,
        reason=BEING_FORKED,
        work=encoded(new),
    )


def _copy(store: Store, old: Address, ours: Check, entries: Sequence[Entry]) -> Operation[None]:
    """Copied one by one: entries are few, and a large result needs a write of its own."""
    for entry in entries:
        beside = yield from _beside(store, old, ours.at, entry.note.spill)
        note = structs.replace(entry.note, began_at=None)  # not copied: the fork's own times count
        copy = Insert(Address(ours.at.space, STEP, entry.name), body_of(note), entry.state)
        yield from store.write(ours, copy, *beside)


def _beside(store: Store, old: Address, new: Address, spill: Spill | None) -> Operation[list[Insert]]:
    """A large value, copied for the new run to own."""
    if spill is None or not spill.ref:
        return []
    large = (yield from store.read(resource_address(old.space, spill.ref))).record
    return [] if large is None else [(yield from copy_blob(large, resource_address(new.space, spill.ref)))]
