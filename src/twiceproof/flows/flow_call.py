"""A call of a flow: it runs here and now, or is answered with what an earlier run returned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeGuard

from msgspec import Raw

from ..claims.claim import HELD, REVIEW, alone, claim_of
from ..claims.hold import Hold
from ..claims.outcomes import Busy, Done, InReview, Mismatch, Parked, TakeOutcome
from ..claims.pieces import forget
from ..claims.refusals import duplicate, no_longer_fits, refusal, result_not_kept, waiting
from ..claims.results import Misfit, unpack
from ..claims.states import Answer, Ask, is_expired
from ..drive import Operation, thrown
from ..errors import NeedsReview, StepFailed, Waiting
from ..records import Written
from ..shell import typed
from .ending import Asleep, Ended, Fell, Finished, GivenBack, Overtaken
from .flow import Flow
from .handle import handle_for
from .limits.limits import Entered, Limits
from .limits.slots import holding
from .nap import Nap
from .nested import parent_of_new_run, patience_around
from .order.stale import stale, stale_error
from .run import Taken
from .run_states import Leftover, RunAsk, decide_run, enqueue
from .undo import refuse_undone
from .work import work_of

__all__ = ["call"]

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 0.5
PATIENCE = 5.0  # a caller waits this long for a retry; longer ones are left to workers


def call(flow: Flow, args: tuple[Any, ...], kwargs: dict[str, Any], *, retry: bool = False) -> Operation[Any]:
    """Run it here, or answer with what the first run returned."""
    ask, work = yield from flow.request(args, kwargs, retry=retry)
    if retry:
        yield from refuse_undone(flow.parts.store, ask.at, ask.where)
    flow.results.prepare()
    called = FlowCall(flow, ask, work)
    if flow.limits is None:
        return (yield from called.result())
    return (yield from called.result_in_turn(flow.limits, flow.seen(flow.asking.arguments.bind(args, kwargs))))


class FlowCall:
    """One caller, who waits for one run."""

    def __init__(self, flow: Flow, ask: Ask, work: Raw) -> None:
        self._flow = flow
        self._parts = flow.parts
        self._ask = ask
        self._work = work

    def result(self, slots: Sequence[Hold] = ()) -> Operation[Any]:
        taken = yield from self._enter()
        if not isinstance(taken, Taken):
            return taken[0]
        taken.slots = slots if self._flow.order is not None else ()
        return self._answer((yield from self._flow.run(taken)))

    def result_in_turn(self, limits: Limits, arguments: dict[str, Any]) -> Operation[Any]:
        """A caller waits in place until the limits let it in; a run, only for a moment. An answer needs no turn."""
        patience, waited = patience_around(), 0.0
        while True:
            found = yield from self._parts.store.read(self._ask.at)
            move = decide_run(self._run_ask(), found.record, found.now)
            if isinstance(move, Answer) and not isinstance(move, Leftover) and not self._waits_for(move.outcome):
                return (yield from self._told(move.outcome))
            begins = found.record is None or isinstance(move, Leftover) or claim_of(found.record).attempt == 0
            entered = yield from limits.enter(self._parts, arguments, begins=begins)
            if isinstance(entered, Entered):
                return (yield from holding(self._parts, entered.holds, self.result(entered.holds)))
            if (entered.ours or waited >= patience) and not self._ask.retry:
                yield from self._leave_to_worker()
            pause = min(entered.seconds, LONGEST_PAUSE)
            waited += pause
            yield Nap(self._parts.clock, pause)

    def _run_ask(self) -> RunAsk:
        return RunAsk(self._ask, self._work, self._flow.versions)

    def _leave_to_worker(self) -> Operation[None]:
        """The run that calls it has slots itself, and gives them back only as it lies down.

        If one of them is what it waits for, or what the run needs that has the other, it would wait for ever.
        """
        insert = enqueue(self._ask, self._work, 0.0)
        written = yield from self._parts.store.write(insert, *alone(insert))
        found = None if isinstance(written, Written) else written.found
        if found is None or not is_expired(found, written.now):
            raise self._waiting(Parked("queued", "waits for its turn", self._ask.run))
        yield from forget(self._parts.store, found)

    def _enter(self) -> Operation[Taken | tuple[Any]]:
        """A run that is ours, or the answer of an earlier one (in a tuple: it may be anything)."""
        self._flow.refuse_best_effort()
        pause = FIRST_PAUSE
        while True:
            taken = yield from self._flow.take(self._run_ask(), PATIENCE)
            if isinstance(taken, Taken):
                return taken
            if not self._waits_for(taken):
                return ((yield from self._told(taken)),)
            yield from self._parts.store.pause(self._ask.at.space, min(pause, taken.retry_after + 0.001))
            pause = min(pause * 2, LONGEST_PAUSE)

    def _waits_for(self, outcome: TakeOutcome) -> TypeGuard[Busy]:
        return isinstance(outcome, Busy) and self._flow.policy.on_duplicate == "wait"

    # -- by an earlier run -----------------------------------------------------------------------

    def _told(self, outcome: Any) -> Operation[Any]:
        """What an earlier run returned. Raises what is no answer, or none yet."""
        ask = self._ask
        if not isinstance(outcome, Mismatch | Parked):  # who asks for a parked one was told to
            self._parts.claims.duplicates.blocked(self._flow.name, ask.key, tenant=ask.tenant)
        if isinstance(outcome, Done):
            return (yield from self._prior(outcome))
        if isinstance(outcome, Parked):
            raise self._waiting(outcome)
        if isinstance(outcome, InReview):
            raise self._in_review(outcome.reason)
        error = refusal(ask, outcome)
        if isinstance(outcome, Busy):
            error.data["state"] = HELD  # a run is, as opposed to a claim: who waits for it can be woken at its end
        raise error

    def _prior(self, done: Done) -> Operation[Any]:
        flow, ask = self._flow, self._ask
        if (overtaken := stale(done)) is not None:
            raise stale_error(flow.name, ask.key, ask.run, overtaken, ask.where)
        text = yield from unpack(self._parts.store, done.at, done.result, done.spill)
        try:
            value = flow.results.restore(text, loose=done.loose) if text else None
        except Misfit as misfit:
            raise no_longer_fits(ask, done, str(misfit)) from None
        if flow.policy.on_duplicate == "reject" and not (yield from self._is_ours()):
            raise duplicate(ask, done, value)
        if not text:
            raise result_not_kept(ask, done)
        return value

    def _is_ours(self) -> Operation[bool]:
        """Whether the run that asks began it: called again after a crash, it must hear what it would have heard."""
        outer = parent_of_new_run()
        record = (yield from self._parts.store.read(self._ask.at)).record if outer else None
        return record is not None and work_of(claim_of(record)).parent == outer

    # -- by a run of our own ---------------------------------------------------------------------

    def _answer(self, ended: Ended) -> Any:
        if isinstance(ended, Finished):
            return ended.value
        if isinstance(ended, GivenBack | Overtaken):
            raise thrown(ended.error)
        if isinstance(ended, Fell):
            raise thrown(_original(ended.error))
        if isinstance(ended, Asleep):
            raise self._waiting(Parked("waiting", ended.why, self._ask.run, ended.until))
        raise self._in_review(ended.reason) from ended.error

    def _in_review(self, reason: str) -> NeedsReview:
        name, ask = self._flow.name, self._ask
        return NeedsReview(
            f"{name} for {ask.key!r} waits for a person: {reason.rstrip('.')}. Look at it with: "
            f"{typed(*ask.where, 'review', 'show', ask.run)}",
            operation=name, key=ask.key, run=ask.run, state=REVIEW, reason=reason,
        )  # fmt: skip

    def _waiting(self, parked: Parked) -> Waiting:
        error = waiting(self._ask, parked)
        error.data["handle"] = handle_for(self._flow.handle(self._ask.key), self._flow.drive)
        return error


def _original(error: BaseException) -> BaseException:
    """What the step itself raised, where it was raised in this process."""
    if isinstance(error, StepFailed) and error.__cause__ is not None:
        return error.__cause__
    return error
