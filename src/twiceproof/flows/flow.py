"""Flow: one declared flow; starting its runs; their input, encoded and decoded by its types."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from typing import Any, Literal, Protocol, get_args

import msgspec
from msgspec import Raw, structs

from ..claims.blobs.records import externalise
from ..claims.claim import NO_RESULT, Spill, alone, validate_name
from ..claims.error_messages import refuse_other_fingerprint, unsafe_store
from ..claims.manager import ClaimManager
from ..claims.once import refuse_generators
from ..claims.policy import Policy
from ..claims.request import ClaimRequestFactory
from ..claims.results import Packed, ResultType, declared, json_of, resource_address, unpack
from ..claims.retention import INPUT, forget
from ..claims.states import EXPIRE, ClaimRequest, first_pointer, is_expired
from ..errors import Misuse, NotDone, ValueRefused
from ..keys.models import from_model, reader
from ..operations import Operation, await_, block
from ..records import Address, Record, Replace, Written
from ..stores.base import Store
from .engine.context import correlation, origin_of_new_run
from .engine.run_states import RunState, encoded, enqueue, queue_of
from .engine.session import Drive
from .handle import Handle
from .limits import FlowLimits
from .ordering.ordered_runs import Ordering
from .runtime import Runtime

__all__ = [
    "HIGH",
    "LOW",
    "NORMAL",
    "Flow",
    "Inputs",
    "OnFailure",
    "Priority",
    "ReleasedVersions",
    "rank_of",
    "store_input",
]


MOST_INLINE = 256 * 1024
UNCLAIMED = 30 * 86_400.0  # how long an input is kept for a run that was never started
VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)

_encode = msgspec.json.Encoder(enc_hook=from_model).encode
_decode = msgspec.json.Decoder(dict[str, Raw]).decode


class Inputs:
    """Encodes and decodes by the function's annotations.

    A run sees decoded values, the first time too, as a worker does.
    """

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        self._function = function
        self._name = name
        self._parameters = inspect.signature(function).parameters
        self._positional = [p.name for p in self._parameters.values() if p.kind is inspect.Parameter.POSITIONAL_ONLY]
        self._decoders: dict[str, Callable[[Raw], Any]] = {}
        self._awaited = inspect.iscoroutinefunction(function)
        if any(p.kind in VARIADIC for p in self._parameters.values()):
            raise Misuse(f"{name} takes *args or **kwargs, which a ledger cannot name; give its parameters names.")

    def pack(self, arguments: dict[str, Any], run: str, claims: ClaimManager) -> Packed:
        """Encode a run's input. A large one is stored beside the run's claim, if `claims` has room for it."""
        try:
            encoded = json_of(arguments)
        except ValueError as error:
            raise ValueRefused(
                f"{self._name} was given something with no JSON form ({error}); pass ids and plain data, and open "
                "connections inside its steps."
            ) from None
        if len(encoded) <= MOST_INLINE:
            return Packed(inline=Raw(encoded))
        room = claims.value_limit
        if len(encoded) > room:
            raise ValueRefused(
                f"{self._name} was given {len(encoded):,} bytes of input, more than {room:,}; pass the name of a file "
                "or an object instead."
            )
        digest = sha256(encoded).hexdigest()
        return Packed(spill=Spill(digest, len(encoded), f"res://{run}/{INPUT}{digest[:16]}"), text=encoded.decode())

    def unpack(self, store: Store, at: Address, work: RunState) -> Operation[dict[str, Any]]:
        text = yield from unpack(store, at, work.input or NO_RESULT, work.spill)
        if work.spill is not None and not text:  # with its defaults alone it would do something else
            raise Misuse(f"The input of this run of {self._name} is no longer kept; start it with its arguments again.")
        given = _decode(text) if text else {}
        return {name: self._restore(name, raw) for name, raw in given.items() if name in self._parameters}

    def keep_with_run(self, store: Store, at: Address, work: RunState) -> Operation[None]:
        """From now on the input is kept as long as its run."""
        if work.spill is None:
            return
        record = (yield from store.read(resource_address(at.space, work.spill.ref))).record
        if record is not None and record.queue:
            yield from store.write(Replace(record.at, None, record.state, version=record.version))

    def refuse_misfit(self, packed: Packed) -> None:
        """Raise what `unpack` would raise, before anything is claimed."""
        for name, raw in _decode(packed.text or packed.inline).items():
            self._restore(name, raw)

    @property
    def names(self) -> list[str]:
        return list(self._parameters)

    def typed(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Plain data converted to the function's annotations."""
        known = {name: value for name, value in arguments.items() if name in self._parameters}
        return {**arguments, **{name: self._restore(name, Raw(_encode(value))) for name, value in known.items()}}

    def call(self, arguments: dict[str, Any]) -> Any:
        rest = dict(arguments)
        first = [rest.pop(name) for name in self._positional if name in rest]
        value = self._function(*first, **rest)
        if not self._awaited and inspect.iscoroutine(value):
            value.close()  # work that has not started: recorded as done, it would be lost
            raise NotDone(f"{self._name} is a def that returns a coroutine; make it an `async def`.")
        return value

    def _restore(self, name: str, raw: Raw) -> Any:
        decode = self._decoders.get(name) or self._decoder(name)
        try:
            return decode(raw)
        except msgspec.ValidationError as error:
            wanted = inspect.formatannotation(declared(self._function, name))
            raise Misuse(
                f"{self._name} declares {name}: {wanted}, but was given something else ({error}); correct the "
                "annotation or the call."
            ) from None
        except TypeError:  # a custom class, found out only now
            return msgspec.json.decode(raw)

    def _decoder(self, name: str) -> Callable[[Raw], Any]:
        """Made once: building a decoder takes longer than decoding."""
        try:
            decode = reader(declared(self._function, name))
        except TypeError:  # an annotation without a JSON form: plain values are better than none
            decode = msgspec.json.decode
        return self._decoders.setdefault(name, decode)


def store_input(claims: ClaimManager, at: Address, packed: Packed) -> Operation[None]:
    """Stored before the run exists: a run without its input could not be carried out. Swept if no run follows."""
    for piece in (yield from externalise(claims.blobs, packed.writes(at.space, UNCLAIMED))):
        written = yield from claims.store.write(piece)  # a conflict is with itself: its address is made of its content
        if not isinstance(written, Written) and written.found is not None:
            yield from _take_from_expired(claims.store, at, written.found)


def _take_from_expired(store: Store, at: Address, piece: Record) -> Operation[None]:
    """Take over an input of an expired run, which would be deleted with that run."""
    found = yield from store.read(at)
    if not piece.queue and found.record is not None and is_expired(found.record, found.now):
        yield from store.write(
            Replace(piece.at, None, piece.state, version=piece.version, queue=EXPIRE, due_in=UNCLAIMED)
        )


OnFailure = Callable[[dict[str, Any], BaseException], None]  # given the run's arguments, and why it failed
Priority = Literal["high", "normal", "low"]
HIGH, NORMAL, LOW = 0, 1, 2


def rank_of(priority: Priority) -> int:
    if priority not in get_args(Priority):
        raise Misuse(f"priority={priority!r} is not valid; use one of {', '.join(get_args(Priority))}.")
    return get_args(Priority).index(priority)


class ReleasedVersions(Protocol):
    """Versions of a flow that are kept in the store, and not in the code of this process."""

    def live(self, flow: Flow) -> Operation[Flow]:
        """Return the flow on whose version new runs begin."""

    def is_paused(self, flow: Flow) -> Operation[bool]:
        """Return whether no run of it may begin or continue."""

    def versions(self, flow: Flow) -> tuple[str, ...]:
        """Return the versions whose runs can be carried out here. May read the store; it is called by workers."""

    def carrying(self, flow: Flow, version: str) -> Flow | None:
        """Return the flow that carries out runs of a version; None if there is no such version."""


class Flow:
    """One declared flow. It keeps no state between calls: the store has all of it."""

    def __init__(
        self,
        function: Callable[..., Any],
        runtime: Runtime,
        policy: Policy,
        claim_requests: ClaimRequestFactory,
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
        self.on_failure: OnFailure | None = None  # what follows a final failure and the undo of what was done
        self.limits = limits
        self.rank = rank
        self.runtime = runtime
        self.policy = policy
        self.name = policy.operation
        self.version = version
        self.versions = (version, *accepts)
        self.drive: Drive = await_ if inspect.iscoroutinefunction(function) else block
        self.inputs = Inputs(function, policy.operation)
        self.claim_requests = claim_requests
        self._views: dict[str, Flow] = {}
        self.results = ResultType(function, policy.operation)
        self.releases: ReleasedVersions | None = None

    @property
    def queues(self) -> list[str]:
        """The queues of the runs of this flow that this process can run."""
        versions = self.versions if self.releases is None else self.releases.versions(self)
        return [queue_of(self.policy.tenant, self.name, version) for version in versions]

    def carrying(self, queue: str) -> Flow | None:
        """Return the flow that carries out the runs of a queue: this one, or a release of it; None for other flows'."""
        owner, _, version = queue.rpartition("@")
        if owner != f"{self.policy.tenant}/{self.name}":
            return None
        if self.releases is not None:
            return self.releases.carrying(self, version)
        return self if version in self.versions else None

    def for_new_run(self) -> Operation[Flow]:
        """Return the flow that a new run begins on: what is live, if its versions are kept in the store."""
        return self if self.releases is None else (yield from self.releases.live(self))

    def of(self, tenant: str) -> Flow:
        """The same flow for another tenant: its runs, queues and limits are apart from everybody else's."""
        if tenant == self.policy.tenant:
            return self
        view = self._views.get(tenant)
        if view is None:
            view = copy.copy(self)
            view.runtime = self.runtime.of(tenant)
            view.policy = structs.replace(self.policy, tenant=validate_name("tenant", tenant))
            self._views[tenant] = view
        return view

    def here(self) -> Flow:
        """As the run that calls it sees it; outside of one, as it was declared."""
        return self.of(self.runtime.tenant)

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
        arguments = self.claim_requests.arguments.bind(args, kwargs)
        seen = self._declared(arguments) if from_json else arguments
        request = self.claim_requests.request(seen, tenant=self.policy.tenant, retry=retry)
        if self.limits is not None:
            work |= self._limited_state(arguments, self.limits)
        packed = self.inputs.pack(arguments, request.run, self.runtime.claims)
        if validate_now:
            yield from self._refuse_misfit(request, packed)
        if packed.spill is not None:
            yield from store_input(self.runtime.claims, request.at, packed)
        work = {"correlation": correlation(), **origin_of_new_run(), **work}
        return request, encoded(RunState(self.version, packed.inline, packed.spill, start_id=request.owner, **work))

    def _declared(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Convert JSON data to what a caller in Python would pass, so that both have the same key and fingerprint.

        If only plain data has a key ("{order[id]}" of a dataclass), callers pass plain data, too.
        """
        try:
            typed = self.inputs.typed(arguments)
            self.claim_requests.maker.make(typed)
        except Exception:
            with suppress(Exception):
                self.claim_requests.maker.make(arguments)
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

    def _refuse_misfit(self, request: ClaimRequest, packed: Packed) -> Operation[None]:
        """Refuse arguments that do not fit: queued, the run could only fail, and the corrected call would find its key
        taken by another payload."""
        try:
            self.inputs.refuse_misfit(packed)
        except Misuse:
            found = yield from self.runtime.store.read(request.at)
            if found.record is None or is_expired(found.record, found.now):
                raise  # an existing run is returned, whatever the annotations say now

    def refuse_best_effort(self) -> None:
        if self.runtime.store.best_effort and not self.runtime.best_effort:
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
        live = yield from self.for_new_run()
        if live is not self:
            return (yield from live.begin(args, kwargs, delay=delay, **work))
        self.refuse_best_effort()
        request, packed = yield from self.request(args, kwargs, **work)
        insert = enqueue(request, packed, delay)
        while True:
            written = yield from self.runtime.store.write(insert, *alone(insert), also=first_pointer(insert))
            found = None if isinstance(written, Written) else written.found
            if found is None or not is_expired(found, written.now):
                break
            yield from forget(self.runtime.store, found)
        if found is not None:
            refuse_other_fingerprint(request, found)
            self.runtime.claims.duplicates.blocked(self.name, request.key, tenant=request.tenant)
        at = request.at if found is None else found.at  # it may be the claim of a guarded function of the same name
        return Handle(self.runtime, at, self.results), found is None

    def handle(self, key: str) -> Handle:
        return Handle(self.runtime, self.claim_requests.address(key, self.policy.tenant), self.results)

    def key(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        return self.claim_requests.key(args, kwargs)
