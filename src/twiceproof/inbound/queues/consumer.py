"""One declared consumer: the queue it reads, the key of its messages, and what they start."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from inspect import iscoroutinefunction
from typing import Any, Literal, get_args

from msgspec import Struct

from ...claims.error_classification import NotDoneErrors
from ...claims.error_messages import unsafe_store
from ...claims.policy import DEFAULT_KEEP, Duration, Policy, Repeat, make_policy
from ...claims.request import Arguments
from ...errors import Misuse
from ...flows.flow import Flow, Inputs
from ...flows.runtime import Runtime
from ..hook import Hook, MakeInput, OnFailed, validate_on_failed
from ..redaction import read_paths
from ..source import Envelope, Event
from .admissions import InlineAdmission, QueueAdmission, RunAdmission
from .messages import MessageKey, QueueSource, arguments_of, refuse_changing_fields, refuse_unsteady_parameters
from .ordered_deliveries import OrderKey

__all__ = [
    "ConsumeOptions",
    "Consumer",
    "OnPoison",
    "declared_options",
    "inline_consumer",
    "refuse_namesake",
    "starting_consumer",
]


OnPoison = Literal["ack", "reject"]

LEASE, INLINE_LEASE = 15.0, 30.0  # seconds; to start a run takes milliseconds
PREFETCH, INLINE_PREFETCH = 500, 10
MOST_PREFETCH = 10_000
LARGEST = 1024 * 1024  # bytes
NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.@-]")

INLINE_ONLY = ("repeat", "attempts", "not_done")

_NO_FLOW: Any = None  # of an inline consumer


class Consumer(Hook, frozen=True):
    """A declared consumer. Each delivery is admitted like a webhook's, and then settled by its own outcome."""

    broker: str = ""
    place: str = ""
    prefetch: int = PREFETCH
    poison: OnPoison = "ack"
    function: Inputs | None = None  # of an inline consumer
    parameters: Any = None  # the same function's `Arguments`
    awaits: bool = False  # that function is an `async def`
    attempts: int = 0  # of that function, after which a message becomes a dead letter
    key_text: str = ""  # description of the key, for people
    order: OrderKey | None = None
    queue_operation: str = ""  # retention of the claims on its messages, if there are any

    @property
    def target(self) -> str:
        return self.name if self.function is not None else self.flow.name

    def arguments(self, event: Event, envelope: Envelope) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        given = event.payload if self.make is None else self.make(event.payload)
        if given is None and self.make is not None:
            return None
        inputs = self.function or self.flow.inputs
        return arguments_of(inputs.names, given, envelope)


class ConsumeOptions(Struct, frozen=True, kw_only=True):
    """The options of `app.consume`, as they were given."""

    key: str | Callable[..., str] | None = None
    order: str | Callable[..., str] | None = None
    name: str | None = None
    prefetch: int | None = None
    poison: OnPoison = "ack"
    keep: Duration | None = None
    lease: Duration | None = None
    repeat: Repeat = "never"
    attempts: int = 10
    on_failed: OnFailed = "keep"
    redact: Collection[str] = ()
    stable: Collection[str] = ()
    largest: int = LARGEST
    not_done: NotDoneErrors = ()


def starting_consumer(
    runtime: Runtime, at: str, flow: Flow, told: ConsumeOptions, make: MakeInput | None = None
) -> Consumer:
    """Return a consumer whose messages start runs. Without `key=` a message has one claim, its run's."""
    named = _named(at, told)
    title = named.title
    if told.key is None and (told.keep is not None or told.lease is not None):
        raise Misuse(
            f"{title} has no key=, so that its messages are remembered by the runs of {flow.name}; give keep= and "
            "lease= to @app.flow, or give key=."
        )
    claim_requests, version_in = flow.claim_requests, "" if flow.order is None else flow.order.version_argument
    refuse_changing_fields(
        title, [field for field in claim_requests.maker.fields if field.name in ("headers", "delivery")]
    )
    refuse_unsteady_parameters(title, claim_requests.arguments, flow.policy.ignore, version_in)
    key, order = _key(runtime, title, told), _order(title, told)
    headers = ("",) if "headers" in flow.inputs.names else ()
    return Consumer(
        title,
        QueueSource(key, native=False, largest=told.largest, needs=headers, order=order),
        lambda: (),
        flow,
        _policy(runtime, named.operation, told, LEASE, "safe") if key else flow.policy,
        make,
        on_failed=validate_on_failed(told.on_failed),
        admission=QueueAdmission if key else RunAdmission,
        **_shared(named, told, PREFETCH),
        key_text=_key_text(told) or f"the key of {flow.name}",
        order=order,
    )


def inline_consumer(runtime: Runtime, at: str, function: Callable[..., Any], told: ConsumeOptions) -> Consumer:
    """Return a consumer that calls a function for each message, under a claim on the message's key."""
    named = _named(at, told)
    title = named.title
    if told.repeat == "never" and runtime.store.best_effort and not runtime.best_effort:
        raise unsafe_store(f"{title} may never be repeated blindly", declare='repeat="safe"')
    if told.attempts < 1:
        raise Misuse(f"{title}: attempts={told.attempts} would never call the function; give one or more.")
    inputs = Inputs(function, title)
    headers = ("",) if "headers" in inputs.names else ()
    order = _order(title, told)
    return Consumer(
        title,
        QueueSource(_key(runtime, title, told), native=True, largest=told.largest, needs=headers, order=order),
        lambda: (),
        _NO_FLOW,
        _policy(runtime, named.operation, told, INLINE_LEASE, told.repeat),
        admission=InlineAdmission,
        **_shared(named, told, INLINE_PREFETCH),
        function=inputs,
        parameters=Arguments(function),
        awaits=iscoroutinefunction(function),
        attempts=told.attempts,
        key_text=_key_text(told) or "the sender's id",
        order=order,
    )


def declared_options(key: str | Callable[..., str] | None, given: Mapping[str, Any], *, inline: bool) -> ConsumeOptions:
    """Return the options, after refusing those that are not known or do nothing."""
    legal = set(ConsumeOptions.__struct_fields__) - {"key"} - (set() if inline else set(INLINE_ONLY))
    wrong = sorted(set(given) - legal)
    if wrong:
        what = "is for inline=True" if wrong[0] in INLINE_ONLY else "is not known"
        raise Misuse(f"app.consume: {wrong[0]}= {what}; it takes {', '.join(sorted(legal))}.")
    return ConsumeOptions(key=key, **given)


def refuse_namesake(known: Mapping[str, Consumer], new: Consumer) -> None:
    """Refuse a second consumer of the same name: they would answer each other's messages as duplicates."""
    for one in known.values():
        shared = one.policy.operation == new.policy.operation and new.admission is not RunAdmission
        if (one.name == new.name or shared) and one.target != new.target:
            raise Misuse(f"{one.target} and {new.target} both consume as {one.name!r}; give one of them another name=.")


class _Named(Struct, frozen=True):
    broker: str
    place: str
    title: str  # shown to people; a webhook's name has no slash

    @property
    def operation(self) -> str:
        """The operation of the claims on its messages."""
        return f"queue.{NOT_IN_NAMES.sub('.', self.title)}"


def _named(at: str, told: ConsumeOptions) -> _Named:
    broker, slash, place = at.partition("/") if isinstance(at, str) else ("", "", "")
    if not slash or not broker or not place:
        raise Misuse(f'{at!r} names no queue of a broker; write it as "BROKER/QUEUE", such as "main/orders".')
    return _Named(broker, place, f"{broker}/{told.name or place}")


def _key(runtime: Runtime, title: str, told: ConsumeOptions) -> MessageKey | None:
    return None if told.key is None else MessageKey(title, told.key, told.stable, runtime.clock)


def _order(title: str, told: ConsumeOptions) -> OrderKey | None:
    return None if told.order is None else OrderKey(title, told.order)


def _key_text(told: ConsumeOptions) -> str:
    return told.key if isinstance(told.key, str) else getattr(told.key, "__name__", "")


def _policy(runtime: Runtime, operation: str, told: ConsumeOptions, lease: float, repeat: Repeat) -> Policy:
    return make_policy(
        operation,
        tenant=runtime.tenant,
        repeat=repeat,
        lease=lease if told.lease is None else told.lease,
        keep=DEFAULT_KEEP if told.keep is None else told.keep,
        where=runtime.where,
        not_done=told.not_done,
    )


def _shared(title: _Named, told: ConsumeOptions, prefetch: int) -> dict[str, Any]:
    """What both kinds of consumers have."""
    if told.poison not in get_args(OnPoison):
        raise Misuse(f"poison={told.poison!r} is not known; use one of {', '.join(get_args(OnPoison))}.")
    most = prefetch if told.prefetch is None else told.prefetch
    if not 1 <= most <= MOST_PREFETCH:
        raise Misuse(f"{title.title}: prefetch={most} is out of range; give 1 to {MOST_PREFETCH:,}.")
    read_paths(told.redact)
    return {
        "broker": title.broker,
        "queue_operation": title.operation,
        "place": title.place,
        "prefetch": most,
        "poison": told.poison,
        "redact": tuple(told.redact),
    }
