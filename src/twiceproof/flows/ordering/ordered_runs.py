"""Ordered flows: one run at a time per object; stale and overtaken runs are dropped."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
from msgspec import Raw, Struct, structs

from ...claims.claim import HELD, WAITING, Done, Mismatch, Spill, claim_of, run_address, shown_run, space_of_run
from ...claims.error_classification import fault_of
from ...claims.error_messages import refusal
from ...claims.policy import Policy
from ...claims.request import ClaimRequestFactory
from ...claims.results import Packed
from ...errors import Misuse, Stale
from ...keys import KeyMaker, stage
from ...operations import Operation, await_, block
from ...records import Address, Insert, Record, Replace, Written
from ...safe_text import suggested_command
from ..engine.context import current_session
from ..engine.exits import (
    Ended,
    Reviewed,
    RunFailed,
    Superseded,
    Suspended,
    Wait,
    as_done,
    as_failed,
    as_review,
    as_waiting,
)
from ..engine.ledger import RETRY, STARTED, UNKNOWN, Entry, Ledger
from ..engine.run_states import with_work, work_of
from ..engine.runner import TakenRun, cancelled
from ..engine.step_identity import is_aside, undoes
from ..runtime import Runtime
from ..step import called_with
from .declaration import By, OrderFields, Version
from .high_water_mark import (
    ApplyDecision,
    ClashDecision,
    DropDecision,
    GoDecision,
    Mark,
    MixedDecision,
    OrderedEvent,
    ParkDecision,
    decide,
    mark_at,
    mark_of,
    mark_write,
)

__all__ = [
    "Dropped",
    "Ordering",
    "ambiguous_steps",
    "dropped",
    "ledger_of",
    "make_claim_requests",
    "one_run_per_object",
    "packed",
    "park_ambiguous",
    "stale",
    "stale_error",
]


ASKED = ("never", "check", "keyed")  # whether these happened must be known; the others may stay open


def ledger_of(runtime: Runtime, taken: TakenRun) -> Operation[Ledger]:
    """What the run has done so far. One that has just begun has done nothing."""
    ledger = Ledger(runtime.claims, taken.hold, runtime.flusher)
    if taken.claim.attempt > 1:
        yield from ledger.load()
    return ledger


def ambiguous_steps(entries: Mapping[str, Entry]) -> list[Entry]:
    """Steps that may have happened and will not be probed any more."""
    return [entry for entry in entries.values() if _is_open(entry) and not is_aside(entry.name, entries)]


def _is_open(entry: Entry) -> bool:
    begun = entry.state == STARTED or (entry.state == RETRY and entry.note.ambiguous)
    return entry.state == UNKNOWN or (begun and entry.note.repeat in ASKED)


def park_ambiguous(ledger: Ledger, taken: TakenRun, doubts: list[Entry], why: str) -> Operation[Ended]:
    """Leave them to a person, who says of each whether it happened. Then the run is dropped."""
    for entry in doubts:
        if entry.state != UNKNOWN:
            note = structs.replace(entry.note, reason=f"{why}; whether it was done is unknown")
            ledger.note(structs.replace(entry, state=UNKNOWN, note=note))
    reason = f"{why}, but the outcome of {', '.join(sorted(entry.name for entry in doubts))} is unknown"
    yield from ledger.flush(end=as_review(taken.hold.held.at, taken.claim, reason))
    return Reviewed(reason)


STALE = "stale"  # beside the result of a dropped run; a flow's own result never has it


class Dropped(Struct, frozen=True):
    """The result of a dropped run, for people and programs."""

    stale: bool
    object: str
    version: str
    newest: str
    applied_by: str  # the run that applied a newer version
    why: str


def dropped(thing: str, version: Version, drop: DropDecision) -> Dropped:
    newest, run = drop.mark.version, drop.mark.run
    why = f"version {newest} of {thing} was let through before"
    if drop.same:
        why = f"version {newest} of {thing} was let through before, with the same payload or as part of a newer state"
    return Dropped(True, thing, version.text, newest, run, why)


def packed(what: Dropped) -> Packed:
    return Packed(inline=Raw(msgspec.json.encode(what)), spill=Spill("", 0, reason=STALE))


def stale(done: Done) -> Dropped | None:
    """The reason why a finished run was dropped, if it was."""
    if done.spill is None or done.spill.reason != STALE or not done.result:
        return None
    return msgspec.json.decode(done.result, type=Dropped)


def stale_error(operation: str, key: str, run: str, what: Dropped, where: Sequence[str]) -> Stale:
    newest = shown_run(what.applied_by)
    return Stale(
        f"{operation} for {key!r} is stale: {what.why}. There is nothing to do; look at that run with: "
        f"{suggested_command(*where, 'runs', 'show', newest)}",
        operation=operation,
        key=key,
        run=shown_run(run),
        object=what.object,
        version=what.version,
        newest=what.newest,
        applied_by=newest,
    )


MISSING = "waits for version "  # prefix of the reason of a run that waits for a missing version

Body = Callable[[], Any]


class OrderedRequests(ClaimRequestFactory):
    """Each version of an object is a run of its own: its key is the flow's key and the version."""

    def __init__(self, *args: Any, places: OrderFields, **more: Any) -> None:
        super().__init__(*args, **more)
        self.maker: KeyMaker = _OrderedMaker(self.maker, places)


def make_claim_requests(
    function: Callable[..., Any], policy: Policy, places: OrderFields | None, **more: Any
) -> ClaimRequestFactory:
    return (
        ClaimRequestFactory(function, policy, **more)
        if places is None
        else OrderedRequests(function, policy, places=places, **more)
    )


class _OrderedMaker(KeyMaker):
    def __init__(self, inner: KeyMaker, places: OrderFields) -> None:
        self._inner = inner
        self._places = places
        self.function, self.fields, self.template = inner.function, inner.fields, inner.template

    def make(self, arguments: Any) -> str:
        self._places.object(arguments)  # refused here, before anything is written
        return stage(self._inner.make(arguments), self._places.version(arguments).text)


def one_run_per_object(per: Mapping[str, int] | None, order: By | None) -> Mapping[Any, int] | None:
    """The limits of an ordered flow: two versions of one object at the same time would have no order."""
    return per if order is None else {**(per or {}), order.object: 1}


class Ordering:
    """Ordering of one flow."""

    def __init__(self, flow: str, places: OrderFields) -> None:
        self._flow = flow
        self._places = places

    @property
    def version_argument(self) -> str:
        """The argument that has the version, and so is part of a run's key; "" if a function makes it."""
        return self._places.argument

    def place_of(self, arguments: Mapping[str, Any]) -> tuple[str, str, str]:
        """The object and the version of a call. Raises KeyRefused for a version that has no order."""
        version = self._places.version(arguments)
        return self._places.object(arguments), version.kind, version.text

    def run(
        self,
        runtime: Runtime,
        taken: TakenRun,
        policy: Policy,
        arguments: dict[str, Any],
        call: Callable[[Any], Any],
        carry: Callable[[Body], Operation[Ended]],
    ) -> Operation[Ended]:
        """Run the flow's function under `carry`, if this version may be applied."""
        thing, version = self._places.object(arguments), self._places.version(arguments)
        at = mark_at(runtime.tenant, self._flow, thing)
        event = OrderedEvent(version, taken.claim.run, taken.claim.fingerprint, forked_from=taken.work.forked_from)
        taken.newer = lambda: _newer_than(runtime, at, thing, event)
        body = partial(self._body, runtime, at, arguments, call, taken)
        if taken.work.undoing:
            return (yield from self._undo(runtime, taken, policy, at, body, carry))
        decision = yield from self._advance(runtime, at, event, work_of(taken.claim).gap_until)
        if isinstance(decision, Mark):
            ended = yield from carry(body(decision.fetched))
            yield from _wake(runtime, decision, ended)
            return ended
        if isinstance(decision, DropDecision):
            ledger = yield from ledger_of(runtime, taken)
            if undoes(ledger.entries):  # it failed: its undo is completed, whatever version came since
                return (yield from carry(body(self._has_fetched(ledger))))
            if open_ones := ambiguous_steps(ledger.entries):
                why = dropped(thing, version, decision).why
                return (yield from park_ambiguous(ledger, taken, open_ones, why))
        return (yield from self._refuse(runtime, taken, policy, decision, thing, event))

    def _advance(
        self, runtime: Runtime, at: Address, event: OrderedEvent, gap_until: float
    ) -> Operation[Mark | DropDecision | ClashDecision | MixedDecision | ParkDecision]:
        """Moved by compare-and-set before the body acts: a crash afterwards cannot admit an older version."""
        told = self._places.told
        while True:
            found = yield from runtime.store.read(at)
            event = structs.replace(event, waited=_is_over(told.patience, gap_until, found.now))
            decision = decide(
                mark_of(found.record), event, park=told.gap == "park", first=told.first, fetch=told.fetch is not None
            )
            if isinstance(decision, GoDecision):
                return decision.mark
            if not isinstance(decision, ApplyDecision | ParkDecision):
                return decision
            written = yield from runtime.store.write(self._write(at, decision.mark, found.record))
            if isinstance(written, Written):
                return decision.mark if isinstance(decision, ApplyDecision) else decision

    def _write(self, at: Address, mark: Mark, found: Record | None) -> Insert | Replace:
        return mark_write(at, mark, found, self._places.told.keep)

    # -- what is not applied ---------------------------------------------------------------------

    def _refuse(
        self,
        runtime: Runtime,
        taken: TakenRun,
        policy: Policy,
        decision: DropDecision | ClashDecision | MixedDecision | ParkDecision,
        thing: str,
        event: OrderedEvent,
    ) -> Operation[Ended]:
        held, claim = taken.hold.held, taken.claim
        if isinstance(decision, DropDecision):
            what = dropped(thing, event.version, decision)
            end = as_done(held.at, structs.replace(claim, reason=f"stale: {what.why}"), packed(what), policy.life)
            yield from runtime.store.write(end(held.fence))
            return Superseded(stale_error(claim.operation, claim.key, claim.run, what, runtime.where))
        if isinstance(decision, ParkDecision):
            return (yield from self._park(runtime, taken, decision, thing))
        error = (
            _mismatch(taken, decision)
            if isinstance(decision, ClashDecision)
            else _mixed(thing, event.version, decision)
        )
        yield from runtime.store.write(as_failed(held.at, claim, fault_of(error), policy.life)(held.fence))
        return RunFailed(error)

    def _park(self, runtime: Runtime, taken: TakenRun, decision: ParkDecision, thing: str) -> Operation[Ended]:
        held, claim = taken.hold.held, taken.claim
        until = work_of(claim).gap_until or held.taken_at + self._places.told.patience
        left = max(0.0, until - held.taken_at)
        why = f"{MISSING}{decision.missing} of {thing}"
        claim = with_work(claim, gap_until=until)
        yield from runtime.store.write(as_waiting(held.at, claim, why, held.queue, left)(held.fence))
        return Suspended(why, until)

    # -- what is undone --------------------------------------------------------------------------

    def _undo(
        self,
        runtime: Runtime,
        taken: TakenRun,
        policy: Policy,
        at: Address,
        body: Callable[[bool], Body],
        carry: Callable[[Body], Operation[Ended]],
    ) -> Operation[Ended]:
        """Undo by a person's decision, whatever version came since. The mark stays: nothing is applied."""
        mark = mark_of((yield from runtime.store.read(at)).record)
        if mark is not None and mark.run == taken.claim.run:
            ended = yield from carry(body(mark.fetched))
            yield from _wake(runtime, mark, ended)
            return ended
        ledger = yield from ledger_of(runtime, taken)
        if ledger.entries or taken.crashed:
            return (yield from carry(body(self._has_fetched(ledger))))
        error, held = cancelled(taken.work), taken.hold.held  # it was never admitted: there is nothing to undo
        yield from runtime.store.write(as_failed(held.at, taken.claim, fault_of(error), policy.life)(held.fence))
        return RunFailed(error)

    def _has_fetched(self, ledger: Ledger) -> bool:
        step = getattr(self._places.told.fetch, "step", None)
        return step is not None and step.name in ledger.entries

    # -- after a gap -----------------------------------------------------------------------------

    def _body(
        self,
        runtime: Runtime,
        at: Address,
        arguments: dict[str, Any],
        call: Callable[[Any], Any],
        taken: TakenRun,
        fetched: bool,
    ) -> Body:
        fetch = self._places.told.fetch
        if fetch is None or not fetched:
            return lambda: call(arguments)
        named = called_with(fetch, arguments)

        def blocking() -> Any:
            return call(block(self._newer(runtime, at, arguments, fetch(**named))))

        async def awaiting() -> Any:
            found = fetch(**named)
            state = await found if inspect.isawaitable(found) else found
            return await call(await await_(self._newer(runtime, at, arguments, state)))

        return awaiting if taken.drive is await_ else blocking

    def _newer(self, runtime: Runtime, at: Address, arguments: dict[str, Any], state: Any) -> Operation[dict[str, Any]]:
        """The fetched state in place of the event, unless the source is behind. The mark moves with it."""
        current = {**arguments, self._places.argument: state}
        version = self._places.version(current)
        if version.place <= self._places.version(arguments).place:
            return current if version == self._places.version(arguments) else arguments
        while True:
            found = yield from runtime.store.read(at)
            mark, session = mark_of(found.record), current_session()
            assert session is not None  # noqa: S101 - a flow's function is in a run
            if session.is_to_be_undone:
                return current  # what it was applied with; nothing is applied now
            if mark is None or mark.run != session.claim.run:
                session.stop_run(Wait("a newer version came meanwhile", 0.0))
            if mark.newest.place >= version.place:
                return current
            moved = structs.replace(mark, version=version.text)
            if isinstance((yield from runtime.store.write(self._write(at, moved, found.record))), Written):
                return current


def _is_over(patience: float, gap_until: float, now: float) -> bool:
    return patience == 0 or (gap_until > 0 and now >= gap_until)


def _newer_than(runtime: Runtime, at: Address, thing: str, event: OrderedEvent) -> Operation[str]:
    """What is newer, in words; empty if nothing newer was admitted."""
    mark = mark_of((yield from runtime.store.read(at)).record)
    if mark is None or mark.run == event.run or mark.kind != event.version.kind:
        return ""
    return f"version {mark.version} of {thing}" if mark.newest.place > event.version.place else ""


def _wake(runtime: Runtime, mark: Mark, ended: Ended) -> Operation[None]:
    """Wake the runs that waited for this version: the gap is closed."""
    number = mark.newest.number
    run = mark.parked.get(str(number + 1)) if number is not None else None
    if run is None or isinstance(ended, Suspended):
        return
    record = (yield from runtime.store.read(run_address(space_of_run(run)))).record
    if record is not None and record.state == WAITING and claim_of(record).reason.startswith(MISSING):
        again = Replace(record.at, None, WAITING, version=record.version, queue=record.queue, due_in=0.0)
        yield from runtime.store.write(again)


def _mismatch(taken: TakenRun, clash: ClashDecision) -> Exception:
    request = structs.replace(taken.hold.request, key=taken.claim.key)
    return refusal(request, Mismatch(clash.mark.fingerprint, taken.claim.fingerprint, HELD, clash.mark.run))


def _mixed(thing: str, version: Version, mixed: MixedDecision) -> Misuse:
    return Misuse(
        f"version {version.text} of {thing} is {_a(version.kind)}, but its versions so far were {_a(mixed.mark.kind)} "
        f"({mixed.mark.version}), and the two have no order between them; send one kind, or declare it with compare=."
    )


def _a(kind: str) -> str:
    return f"an {kind}" if kind == "integer" else f"a {kind}"
