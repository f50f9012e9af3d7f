"""The flow: a function whose work is ledgered. Its calls become runs, here or on a worker."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Literal, TypeGuard, get_args

import msgspec
from msgspec import Raw, structs

from ..claims.asking import Asking
from ..claims.claim import HELD, REVIEW, Claim, claim_of, run_id, validate_name
from ..claims.hold import Hold
from ..claims.once import refuse_generators
from ..claims.outcomes import Busy, Done, Held, InReview, Mismatch, Parked, TakeOutcome
from ..claims.pieces import forget
from ..claims.policy import Policy
from ..claims.refusals import duplicate, refusal, refuse_other_fingerprint, result_not_kept, waiting
from ..claims.results import Packed, ResultType, unpack
from ..claims.states import Answer, Ask, Move, is_expired
from ..drive import Operation, await_, block, thrown
from ..errors import Misuse, NeedsReview, StepFailed, StoreUnsafe, Waiting
from ..records import Found, Record, Written
from ..shell import typed
from .correlation import correlation
from .ending import Asleep, Ended, Fell, Finished, GivenBack, Overtaken
from .handle import Handle, RunHandle
from .inputs import Inputs, lay_out, own
from .limits.limits import Entered, Full, Limits
from .limits.slots import holding
from .limits.succession import LOOK_AGAIN, must_wait
from .nap import Nap
from .nested import parent_of_new_run, patience_around
from .order.ordering import Ordering
from .order.stale import stale, stale_error
from .parts import Parts
from .run import Taken, refuse_run, run_flow
from .run_states import BeginRun, Leftover, RunAsk, decide_run, enqueue
from .session import Drive
from .undo import refuse_undone
from .waiters import wake_waiters
from .work import Work, encoded, queue_of, work_of
from .workers.postpone import postpone

__all__ = ["HIGH", "LOW", "NORMAL", "Flow", "Priority", "rank_of"]

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 0.5
Priority = Literal["high", "normal", "low"]
HIGH, NORMAL, LOW = 0, 1, 2  # which flows a worker asks for first
HERE_PATIENCE = 5.0  # a caller waits this long for a retry; longer ones are left to workers
WORKER_PATIENCE = 0.2


class Flow:
    """One declaration. Holds no state between calls: everything rests in the store."""

    def __init__(
        self,
        function: Callable[..., Any],
        parts: Parts,
        policy: Policy,
        asking: Asking,
        *,
        version: str = "1",
        accepts: tuple[str, ...] = (),
        limits: Limits | None = None,
        rank: int = NORMAL,
        order: Ordering | None = None,
    ) -> None:
        refuse_generators(function)
        self.function = function
        self.order = order
        self.limits = limits
        self.rank = rank
        self.parts = parts
        self.policy = policy
        self.name = policy.operation
        self.version = version
        self.versions = (version, *accepts)
        self.drive: Drive = await_ if inspect.iscoroutinefunction(function) else block
        self.inputs = Inputs(function, policy.operation)
        self.asking = asking
        self._views: dict[str, Flow] = {}
        self.results = ResultType(function, policy.operation)

    @property
    def queues(self) -> list[str]:
        """Where runs of this flow are found that this process can carry out."""
        return [queue_of(self.policy.tenant, self.name, version) for version in self.versions]

    def of(self, tenant: str) -> Flow:
        """The same flow for another tenant: its runs, queues and limits are apart from everybody else's."""
        if tenant == self.policy.tenant:
            return self
        view = self._views.get(tenant)
        if view is None:
            view = copy.copy(self)
            view.parts = self.parts.of(tenant)
            view.policy = structs.replace(self.policy, tenant=validate_name("tenant", tenant))
            view.asking = self.asking.of(view.policy)
            self._views[tenant] = view
        return view

    def here(self) -> Flow:
        """As the run that calls it sees it; outside of one, as it was declared."""
        return self.of(self.parts.tenant)

    # -- here ------------------------------------------------------------------------------------

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, retry: bool = False) -> Operation[Any]:
        """Run it here, or answer with what the first run returned."""
        ask, work = yield from self._request(args, kwargs, retry=retry)
        if retry:
            yield from refuse_undone(self.parts.store, ask.at.space)
        self.results.prepare()
        if self.limits is None:
            return (yield from self._call(ask, work))
        seen = self._seen(self.asking.arguments.bind(args, kwargs))
        return (yield from self._call_in_turn(ask, work, self.limits, seen))

    def _call(self, ask: Ask, work: Raw, slots: Sequence[Hold] = ()) -> Operation[Any]:
        taken = yield from self._enter(ask, work)
        if not isinstance(taken, Taken):
            return taken[0]
        taken.slots = slots if self.order is not None else ()
        ended = yield from self._run(taken)
        return self._answer(ask, ended)

    def _call_in_turn(self, ask: Ask, work: Raw, limits: Limits, arguments: dict[str, Any]) -> Operation[Any]:
        """A caller waits in place until the limits let it in; a run, only for a moment. An answer needs no turn."""
        patience, waited = patience_around(), 0.0
        while True:
            found = yield from self.parts.store.read(ask.at)
            move = decide_run(RunAsk(ask, work, self.versions), found.record, found.now)
            if isinstance(move, Answer) and not isinstance(move, Leftover) and not self._waits_for(move.outcome):
                return (yield from self._told(ask, move.outcome))
            begins = found.record is None or isinstance(move, Leftover) or claim_of(found.record).attempt == 0
            entered = yield from limits.enter(self.parts, arguments, begins=begins)
            if isinstance(entered, Entered):
                return (yield from holding(self.parts, entered.holds, self._call(ask, work, entered.holds)))
            if (entered.ours or waited >= patience) and not ask.retry:
                yield from self._leave_to_worker(ask, work)
            pause = min(entered.seconds, LONGEST_PAUSE)
            waited += pause
            yield Nap(self.parts.clock, pause)

    def _leave_to_worker(self, ask: Ask, work: Raw) -> Operation[None]:
        """The run that calls it has slots itself, and gives them back only as it lies down.

        If one of them is what it waits for, or what the run needs that has the other, it would wait for ever.
        """
        written = yield from self.parts.store.write(enqueue(ask, work, 0.0))
        found = None if isinstance(written, Written) else written.found
        if found is None or not is_expired(found, written.now):
            raise self._waiting(ask, Parked("queued", "waits for its turn", ask.run))
        yield from forget(self.parts.store, found)

    def _turn_of(self, arguments: dict[str, Any], limits: Limits) -> dict[str, Any]:
        """What is noted of it. A run that can never have its turn is refused at once."""
        seen = self._seen(arguments)
        limits.groups(seen)
        return {} if self.order is None else {"ordered": self.order.place_of(seen)}

    def _seen(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """As a worker will see them: by its annotations a caller's own objects may come back as plain data."""
        try:
            return self.inputs.typed(arguments)
        except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError):
            return arguments  # what cannot be kept or does not fit is told where it is packed and unpacked

    def _declared(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Plain data from a door as a caller in Python would give it, so that both ask by one key and fingerprint.

        Where only plain data has a key ("{order[id]}" of a dataclass), it is what callers give, too.
        """
        try:
            typed = self.inputs.typed(arguments)
            self.asking.maker.make(typed)
        except Exception:
            with suppress(Exception):
                self.asking.maker.make(arguments)
                return arguments
            raise
        return typed

    def _waits_for(self, outcome: TakeOutcome) -> TypeGuard[Busy]:
        return isinstance(outcome, Busy) and self.policy.on_duplicate == "wait"

    def _told(self, ask: Ask, outcome: Any) -> Operation[Any]:
        """What an earlier run returned. Raises what is no answer, or none yet."""
        if not isinstance(outcome, Mismatch | Parked):  # who asks for a parked one was told to
            self.parts.claims.duplicates.blocked(self.name, ask.key, tenant=ask.tenant)
        if isinstance(outcome, Done):
            return (yield from self._prior(ask, outcome))
        if isinstance(outcome, Parked):
            raise self._waiting(ask, outcome)
        if isinstance(outcome, InReview):
            raise self._in_review(ask, outcome.reason)
        error = refusal(ask, outcome)
        if isinstance(outcome, Busy):
            error.data["state"] = HELD  # a run is, as opposed to a claim: who waits for it can be woken at its end
        raise error

    def _request(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], *, retry: bool = False, heard: bool = False,
        plain: bool = False, **work: Any,
    ) -> Operation[tuple[Ask, Raw]]:  # fmt: skip
        arguments = self.asking.arguments.bind(args, kwargs)
        ask = self.asking.ask(self._declared(arguments) if plain else arguments, retry=retry)
        if self.limits is not None:
            work |= self._turn_of(arguments, self.limits)
        packed = self.inputs.pack(arguments, ask.run, self.parts.claims.room)
        if heard:
            yield from self._refuse_misfit(ask, packed)
        yield from lay_out(self.parts.claims, ask.at.space, packed)
        work = {"correlation": correlation(), "parent": parent_of_new_run(), **work}
        return ask, encoded(Work(self.version, packed.inline, packed.spill, born=ask.owner, **work))

    def _refuse_misfit(self, ask: Ask, packed: Packed) -> Operation[None]:
        """Queued, it could only fail, and the corrected call would find its key taken by another payload."""
        try:
            self.inputs.refuse_misfit(packed)
        except Misuse:
            found = yield from self.parts.store.read(ask.at)
            if found.record is None or is_expired(found.record, found.now):
                raise  # what was there before is answered, whatever the annotations say by now

    def _enter(self, ask: Ask, work: Raw) -> Operation[Taken | tuple[Any]]:
        """A run that is ours, or the answer of an earlier one (in a tuple: it may be anything)."""
        self._refuse_best_effort()
        pause = FIRST_PAUSE
        while True:
            taken = yield from self._take(RunAsk(ask, work, self.versions), HERE_PATIENCE)
            if isinstance(taken, Taken):
                return taken
            if not self._waits_for(taken):
                return ((yield from self._told(ask, taken)),)
            yield from self.parts.store.pause(ask.at.space, min(pause, taken.retry_after + 0.001))
            pause = min(pause * 2, LONGEST_PAUSE)

    def _take(self, run: RunAsk, patience: float, found: Found | None = None) -> Operation[Any]:
        latest: list[Move] = []

        def decide(ask: Ask, record: Record | None, now: float) -> Move:
            latest[:] = [decide_run(run, record, now)]
            return latest[0]

        outcome = yield from self.parts.claims.take(run.ask, decide, found)
        move = latest[0]
        if isinstance(move, Leftover):
            yield from forget(self.parts.store, move.record)
            return (yield from self._take(run, patience))
        if isinstance(outcome, Held) and isinstance(move, BeginRun):
            return Taken(Hold(run.ask, outcome), move.claim, move.before, patience, self.drive)
        return outcome

    def _run(self, taken: Taken) -> Operation[Ended]:
        ended = yield from self._read_and_run(taken)
        if not isinstance(ended, Asleep | GivenBack):
            yield from wake_waiters(self.parts.store, taken.work)
        return ended

    def _read_and_run(self, taken: Taken) -> Operation[Ended]:
        try:
            arguments = yield from self.inputs.unpack(self.parts.store, taken.hold.held.at, taken.work)
            yield from own(self.parts.store, taken.hold.held.at, taken.work)
        except (Misuse, msgspec.MsgspecError) as error:
            return (yield from refuse_run(self.parts, taken, self.policy, error))
        return (yield from self._carry_out(taken, arguments))

    def _carry_out(self, taken: Taken, arguments: dict[str, Any]) -> Operation[Ended]:
        if self.order is None:
            return run_flow(self.parts, taken, self.policy, self.results, lambda: self.inputs.call(arguments))
        return self.order.run(
            self.parts, taken, self.policy, arguments, self.inputs.call,
            lambda body: run_flow(self.parts, taken, self.policy, self.results, body),
        )  # fmt: skip

    def _answer(self, ask: Ask, ended: Ended) -> Any:
        if isinstance(ended, Finished):
            return ended.value
        if isinstance(ended, GivenBack | Overtaken):
            raise thrown(ended.error)
        if isinstance(ended, Fell):
            raise thrown(_original(ended.error))
        if isinstance(ended, Asleep):
            raise self._waiting(ask, Parked("waiting", ended.why, ask.run, ended.until))
        raise self._in_review(ask, ended.reason)

    def _in_review(self, ask: Ask, reason: str) -> NeedsReview:
        return NeedsReview(
            f"{self.name} for {ask.key!r} waits for a person: {reason.rstrip('.')}. Look at it with: "
            f"{typed(*ask.where, 'review', 'show', ask.run)}",
            operation=self.name, key=ask.key, run=ask.run, state=REVIEW, reason=reason,
        )  # fmt: skip

    def _prior(self, ask: Ask, done: Done) -> Operation[Any]:
        if (overtaken := stale(done)) is not None:
            raise stale_error(self.name, ask.key, ask.run, overtaken, ask.where)
        text = yield from unpack(self.parts.store, done.at, done.result, done.spill)
        value = self.results.restore(text) if text else None
        if self.policy.on_duplicate == "reject" and not (yield from self._is_ours(ask)):
            raise duplicate(ask, done, value)
        if not text:
            raise result_not_kept(ask, done)
        return value

    def _is_ours(self, ask: Ask) -> Operation[bool]:
        """Whether the run that asks began it: called again after a crash, it must hear what it would have heard."""
        outer = parent_of_new_run()
        record = (yield from self.parts.store.read(ask.at)).record if outer else None
        return record is not None and work_of(claim_of(record)).parent == outer

    def _waiting(self, ask: Ask, parked: Parked) -> Waiting:
        error = waiting(ask, parked)
        error.data["handle"] = RunHandle(self.handle(ask.key), self.drive)
        return error

    def _refuse_best_effort(self) -> None:
        if self.parts.store.best_effort and not self.parts.best_effort:
            raise StoreUnsafe(
                f"{self.name} keeps a ledger, but this store can lose acknowledged writes on failover; use PostgreSQL "
                "or SQLite, or accept it with App(best_effort=True)."
            )

    # -- on a worker -----------------------------------------------------------------------------

    def start(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], *, delay: float = 0.0, **work: Any
    ) -> Operation[Handle]:  # fmt: skip
        """Leave it to a worker. A second start of the same run is the first one's handle.

        `heard`: somebody is there to hear of arguments that do not fit. Where nobody is, the run fails and can be seen.
        `plain`: they come as JSON, from a door, and the flow's annotations say what they are.
        """
        return (yield from self.begin(args, kwargs, delay=delay, **work))[0]

    def begin(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], *, delay: float = 0.0, **work: Any
    ) -> Operation[tuple[Handle, bool]]:  # fmt: skip
        """The same, and whether this start was the first."""
        self._refuse_best_effort()
        ask, packed = yield from self._request(args, kwargs, **work)
        while True:
            written = yield from self.parts.store.write(enqueue(ask, packed, delay))
            found = None if isinstance(written, Written) else written.found
            if found is None or not is_expired(found, written.now):
                break
            yield from forget(self.parts.store, found)
        if found is not None:
            refuse_other_fingerprint(ask, found)
            self.parts.claims.duplicates.blocked(self.name, ask.key, tenant=ask.tenant)
        return self.handle(ask.key), found is None

    def resume(self, record: Record) -> Operation[Ended | None]:
        """Go on with a run that the store handed out as due. None: somebody else has it."""
        claim = claim_of(record)
        ask = Ask(
            record.at, self.name, claim.key, self.parts.owner(), self.policy.lease, claim.tenant, "", claim.run,
            claim.link, self.policy.repeat, where=self.policy.where,
        )  # fmt: skip
        self.results.prepare()
        if (yield from must_wait(self.parts.store, claim)):
            yield from postpone(self.parts.store, record, LOOK_AGAIN)
            return Asleep("waits for the run before it", None)
        if self.limits is None:
            return (yield from self._resume(ask, claim, record))
        try:
            arguments = yield from self._limited_by(self.limits, record, work_of(claim))
        except (Misuse, msgspec.MsgspecError):  # met again, and dealt with, when it is taken
            return (yield from self._resume(ask, claim, record))
        entered = yield from self.limits.enter(self.parts, arguments, begins=claim.attempt == 0)
        if isinstance(entered, Full):
            yield from postpone(self.parts.store, record, entered.seconds)
            return Asleep("waits for its turn", None)
        return (yield from holding(self.parts, entered.holds, self._resume(ask, claim, record, entered.holds)))

    def _limited_by(self, limits: Limits, record: Record, work: Work) -> Operation[dict[str, Any]]:
        """What its limits look at: typed, as a caller's own arguments are. A large input is read only if need be."""
        return (yield from self.inputs.unpack(self.parts.store, record.at, work)) if limits.by_key else {}

    def _resume(
        self, ask: Ask, claim: Claim, record: Record, slots: Sequence[Hold] = ()
    ) -> Operation[Ended | None]:  # fmt: skip
        run = RunAsk(ask, claim.work, self.versions, picked=record.version)
        taken = yield from self._take(run, WORKER_PATIENCE, Found(record, record.due_at or record.updated_at))
        if not isinstance(taken, Taken):
            return None
        taken.slots = slots if self.order is not None else ()
        return (yield from self._run(taken))

    def handle(self, key: str) -> Handle:
        at = self.asking.address(key)
        return Handle(self.parts, at, run_id(at.space), self.results)

    def key(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        return self.asking.key(args, kwargs)


def rank_of(priority: Priority) -> int:
    if priority not in get_args(Priority):
        raise Misuse(f"priority={priority!r} means nothing here; say one of {', '.join(get_args(Priority))}.")
    return get_args(Priority).index(priority)


def _original(error: BaseException) -> BaseException:
    """What the step itself raised, where it was raised in this process."""
    if isinstance(error, StepFailed) and error.__cause__ is not None:
        return error.__cause__
    return error
