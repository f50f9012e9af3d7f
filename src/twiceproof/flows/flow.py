"""Flow: one declared flow; starting its runs."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal, get_args

import msgspec
from msgspec import Raw, structs

from ..claims.claim import alone, validate_name
from ..claims.error_messages import refuse_other_fingerprint, unsafe_store
from ..claims.once import refuse_generators
from ..claims.policy import Policy
from ..claims.request import ClaimRequestFactory
from ..claims.results import Packed, ResultType
from ..claims.retention import forget
from ..claims.states import ClaimRequest, first_pointer, is_expired
from ..errors import Misuse
from ..operations import Operation, await_, block
from ..records import Written
from .engine.context import correlation, parent_of_new_run
from .engine.run_states import RunState, encoded, enqueue, queue_of
from .engine.session import Drive
from .handle import Handle
from .inputs import Inputs, store_input
from .limits import FlowLimits
from .ordering.ordered_runs import Ordering
from .runtime import Runtime

__all__ = ["HIGH", "LOW", "NORMAL", "Flow", "Priority", "rank_of"]


Priority = Literal["high", "normal", "low"]
HIGH, NORMAL, LOW = 0, 1, 2


def rank_of(priority: Priority) -> int:
    if priority not in get_args(Priority):
        raise Misuse(f"priority={priority!r} is not valid; use one of {', '.join(get_args(Priority))}.")
    return get_args(Priority).index(priority)


class Flow:
    """One declared flow. It keeps no state between calls: the store has all of it."""

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
        """The queues of the runs of this flow that this process can run."""
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
            self._views[tenant] = view
        return view

    def here(self) -> Flow:
        """As the run that calls it sees it; outside of one, as it was declared."""
        return self.of(self.parts.tenant)

    # -- requesting a run ------------------------------------------------------------------------

    def request(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        retry: bool = False,
        validate_now: bool = False,
        from_json: bool = False,
        **work: Any,
    ) -> Operation[tuple[ClaimRequest, Raw]]:
        """Return the claim request of a call, and the state that a new run would begin with. Stores a large input."""
        arguments = self.asking.arguments.bind(args, kwargs)
        seen = self._declared(arguments) if from_json else arguments
        ask = self.asking.request(seen, tenant=self.policy.tenant, retry=retry)
        if self.limits is not None:
            work |= self._limited_state(arguments, self.limits)
        packed = self.inputs.pack(arguments, ask.run, self.parts.claims)
        if validate_now:
            yield from self._refuse_misfit(ask, packed)
        if packed.spill is not None:
            yield from store_input(self.parts.claims, ask.at, packed)
        work = {"correlation": correlation(), "parent": parent_of_new_run(), **work}
        return ask, encoded(RunState(self.version, packed.inline, packed.spill, start_id=ask.owner, **work))

    def _declared(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Convert JSON data to what a caller in Python would pass, so that both have the same key and fingerprint.

        If only plain data has a key ("{order[id]}" of a dataclass), callers pass plain data, too.
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

    def _limited_state(self, arguments: dict[str, Any], limits: FlowLimits) -> dict[str, Any]:
        """Return what the run keeps for its limits. A run that its limits can never admit is refused at once."""
        seen = self.seen(arguments)
        limits.groups(seen)
        return {} if self.order is None else {"ordered": self.order.place_of(seen)}

    def seen(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments as a worker will see them: a caller's own objects may come back as plain data."""
        try:
            return self.inputs.typed(arguments)
        except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError):
            return arguments  # what cannot be stored or does not fit is reported when it is packed and unpacked

    def _refuse_misfit(self, ask: ClaimRequest, packed: Packed) -> Operation[None]:
        """Refuse arguments that do not fit: queued, the run could only fail, and the corrected call would find its key
        taken by another payload."""
        try:
            self.inputs.refuse_misfit(packed)
        except Misuse:
            found = yield from self.parts.store.read(ask.at)
            if found.record is None or is_expired(found.record, found.now):
                raise  # an existing run is returned, whatever the annotations say now

    def refuse_best_effort(self) -> None:
        if self.parts.store.best_effort and not self.parts.best_effort:
            raise unsafe_store(f"{self.name} keeps a ledger")

    # -- starting --------------------------------------------------------------------------------

    def start(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], *, delay: float = 0.0, **work: Any
    ) -> Operation[Handle]:
        """Leave a run to a worker. A second start of the same run returns the first one's handle.

        `validate_now`: arguments that do not fit are refused here; otherwise such a run fails later, and is listed.
        `from_json`: the arguments are JSON data, to be converted by the flow's annotations.
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
        at = ask.at if found is None else found.at  # it may be the claim of a guarded function of the same name
        return Handle(self.parts, at, self.results), found is None

    def handle(self, key: str) -> Handle:
        return Handle(self.parts, self.asking.address(key, self.policy.tenant), self.results)

    def key(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        return self.asking.key(args, kwargs)
