"""Flow: one declaration; starting a run."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal, get_args

import msgspec
from msgspec import Raw, structs

from ..claims.claim import Held, alone, validate_name
from ..claims.error_messages import refuse_other_fingerprint
from ..claims.held_claim import HeldClaim
from ..claims.once import refuse_generators
from ..claims.policy import Policy
from ..claims.request import ClaimRequestFactory
from ..claims.results import Packed, ResultType
from ..claims.retention import first_pointer, forget
from ..claims.states import ClaimRequest, Move, is_expired
from ..errors import Misuse, StoreUnsafe
from ..operations import Operation, await_, block
from ..records import Found, Record, Written
from .engine.context import correlation
from .engine.exits import Ended, HandedBack, Suspended
from .engine.guarded_calls import parent_of_new_run
from .engine.run_dependencies import wake_waiters
from .engine.run_states import BeginRun, Leftover, RunAsk, RunState, decide_run, encoded, enqueue, queue_of
from .engine.runner import TakenRun, refuse_run, run_flow
from .engine.session import Drive
from .handle import Handle
from .inputs import Inputs, lay_out, own
from .limits import FlowLimits
from .ordering.ordered_runs import Ordering
from .runtime import Runtime

__all__ = ["HIGH", "LOW", "NORMAL", "Flow", "Priority", "rank_of"]


Priority = Literal["high", "normal", "low"]
HIGH, NORMAL, LOW = 0, 1, 2


def rank_of(priority: Priority) -> int:
    if priority not in get_args(Priority):
        raise Misuse(f"priority={priority!r} means nothing here; say one of {', '.join(get_args(Priority))}.")
    return get_args(Priority).index(priority)


class Flow:
    """One declaration. Holds no state between calls: everything rests in the store."""

    def __init__(
        self,
        function: Callable[..., Any],
        parts: Runtime,
        policy: Policy,
        asking: ClaimRequestFactory,
        *,
        version: str = "1",
        accepts: tuple[str, ...] = (),
        limits: FlowLimits | None = None,
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

    # -- what is asked -----------------------------------------------------------------------------

    def request(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        retry: bool = False,
        heard: bool = False,
        plain: bool = False,
        **work: Any,
    ) -> Operation[tuple[ClaimRequest, Raw]]:
        """What is asked of the claim, and what a new run would keep of the call. Large inputs are laid out for it."""
        arguments = self.asking.arguments.bind(args, kwargs)
        ask = self.asking.ask(self._declared(arguments) if plain else arguments, retry=retry)
        if self.limits is not None:
            work |= self._turn_of(arguments, self.limits)
        packed = self.inputs.pack(arguments, ask.run, self.parts.claims.room)
        if heard:
            yield from self._refuse_misfit(ask, packed)
        yield from lay_out(self.parts.claims, ask.at, packed)
        work = {"correlation": correlation(), "parent": parent_of_new_run(), **work}
        return ask, encoded(RunState(self.version, packed.inline, packed.spill, born=ask.owner, **work))

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

    def _turn_of(self, arguments: dict[str, Any], limits: FlowLimits) -> dict[str, Any]:
        """What is noted of it. A run that can never have its turn is refused at once."""
        seen = self.seen(arguments)
        limits.groups(seen)
        return {} if self.order is None else {"ordered": self.order.place_of(seen)}

    def seen(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """As a worker will see them: by its annotations a caller's own objects may come back as plain data."""
        try:
            return self.inputs.typed(arguments)
        except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError):
            return arguments  # what cannot be kept or does not fit is told where it is packed and unpacked

    def _refuse_misfit(self, ask: ClaimRequest, packed: Packed) -> Operation[None]:
        """Queued, it could only fail, and the corrected call would find its key taken by another payload."""
        try:
            self.inputs.refuse_misfit(packed)
        except Misuse:
            found = yield from self.parts.store.read(ask.at)
            if found.record is None or is_expired(found.record, found.now):
                raise  # what was there before is answered, whatever the annotations say by now

    # -- a run that is ours ----------------------------------------------------------------------

    def take(self, run: RunAsk, patience: float, found: Found | None = None) -> Operation[Any]:
        """Taken, or what else there is to say of it."""
        latest: list[Move] = []

        def decide(ask: ClaimRequest, record: Record | None, now: float) -> Move:
            latest[:] = [decide_run(run, record, now)]
            return latest[0]

        outcome = yield from self.parts.claims.take(run.ask, decide, found)
        move = latest[0]
        if isinstance(move, Leftover):
            yield from forget(self.parts.store, move.record)
            return (yield from self.take(run, patience))
        if isinstance(outcome, Held) and isinstance(move, BeginRun):
            return TakenRun(HeldClaim(run.ask, outcome), move.claim, move.before, patience, self.drive)
        return outcome

    def run(self, taken: TakenRun) -> Operation[Ended]:
        ended = yield from self._read_and_run(taken)
        if not isinstance(ended, Suspended | HandedBack):
            yield from wake_waiters(self.parts.store, taken.work)
        return ended

    def _read_and_run(self, taken: TakenRun) -> Operation[Ended]:
        try:
            arguments = yield from self.inputs.unpack(self.parts.store, taken.hold.held.at, taken.work)
            yield from own(self.parts.store, taken.hold.held.at, taken.work)
        except (Misuse, msgspec.MsgspecError) as error:
            return (yield from refuse_run(self.parts, taken, self.policy, error))
        return (yield from self._carry_out(taken, arguments))

    def _carry_out(self, taken: TakenRun, arguments: dict[str, Any]) -> Operation[Ended]:
        if self.order is None:
            return run_flow(self.parts, taken, self.policy, self.results, lambda: self.inputs.call(arguments))
        return self.order.run(
            self.parts,
            taken,
            self.policy,
            arguments,
            self.inputs.call,
            lambda body: run_flow(self.parts, taken, self.policy, self.results, body),
        )

    def refuse_best_effort(self) -> None:
        if self.parts.store.best_effort and not self.parts.best_effort:
            raise StoreUnsafe(
                f"{self.name} keeps a ledger, but this store can lose acknowledged writes on failover; use PostgreSQL "
                "or SQLite, or accept it with App(best_effort=True)."
            )

    # -- left to a worker --------------------------------------------------------------------------

    def start(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], *, delay: float = 0.0, **work: Any
    ) -> Operation[Handle]:
        """Leave it to a worker. A second start of the same run is the first one's handle.

        `heard`: somebody is there to hear of arguments that do not fit. Where nobody is, the run fails and can be seen.
        `plain`: they come as JSON, from a door, and the flow's annotations say what they are.
        """
        return (yield from self.begin(args, kwargs, delay=delay, **work))[0]

    def begin(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], *, delay: float = 0.0, **work: Any
    ) -> Operation[tuple[Handle, bool]]:
        """The same, and whether this start was the first."""
        self.refuse_best_effort()
        ask, packed = yield from self.request(args, kwargs, **work)
        insert = enqueue(ask, packed, delay)
        while True:
            written = yield from self.parts.store.write(insert, *alone(insert), also=first_pointer(insert))
            found = None if isinstance(written, Written) else written.found
            if found is None or not is_expired(found, written.now):
                break
            yield from forget(self.parts.store, found)
        if found is not None:
            refuse_other_fingerprint(ask, found)
            self.parts.claims.duplicates.blocked(self.name, ask.key, tenant=ask.tenant)
        at = ask.at if found is None else found.at  # what a guarded function of this name did is not done again
        return Handle(self.parts, at, self.results), found is None

    def handle(self, key: str) -> Handle:
        return Handle(self.parts, self.asking.address(key), self.results)

    def key(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        return self.asking.key(args, kwargs)
