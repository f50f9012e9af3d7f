"""App methods that declare what starts runs: webhook, consume, every, poll; and those that take deliveries in."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Iterable, MutableMapping
from datetime import UTC, datetime, timedelta
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any

from msgspec import structs

from ..claims.once import Once, refuse_generators
from ..claims.policy import Duration, make_policy
from ..claims.request import operation_name, refuse_bare
from ..errors import KeyRefused, Misuse
from ..flows.flow import Flow
from ..flows.runtime import Runtime
from ..flows.triggers.poll import DuePolls, Poll
from ..flows.triggers.schedule import CatchUp, DueSchedules, Overlap, Schedule, make_ticks, takes_tick
from ..inbound.admit import admit
from ..inbound.hook import (
    Hook,
    OnFailed,
    Secrets,
    operation_of,
    secret_reader,
    validate_on_failed,
    warn_if_forgotten_early,
)
from ..inbound.once_hook import OnceAdmission, OnceHook
from ..inbound.redaction import read_paths
from ..inbound.reply import Reply
from ..inbound.source import Envelope, Source, envelope
from ..inbound.sources import find_source
from ..keys.duration import seconds
from ..operations import Operation, await_, block

if TYPE_CHECKING:
    from ..inbound.queues.consumer import Consumer
    from ..inbound.queues.readers import QueueReaders

__all__ = ["Triggers", "tick_key"]


LEASE = 15.0  # an admission takes milliseconds; a sender's next try should not find a dead one's claim


class Triggers:
    """The methods of an app that declare what starts runs."""

    runtime: Runtime
    hooks: MutableMapping[str, Hook]
    flow: Any  # of Declarations
    flows: MutableMapping[str, Flow]
    schedules: DueSchedules
    polls: DuePolls
    consumers: MutableMapping[str, Consumer]
    routing: Any  # of Messaging

    # -- webhooks --------------------------------------------------------------------------------

    def webhook(
        self,
        source: str | Source,
        *,
        secret: str | Collection[str] | Secrets = (),
        start: Any = None,
        name: str | None = None,
        wait: Duration | None = None,
        keep: Duration = "30d",
        lease: Duration = LEASE,
        on_failed: OnFailed = "retry",
        redact: Collection[str] = (),
        **options: Any,
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Receive events of a sender at /hooks/NAME: each is claimed under its id, then starts a run of `start`.

        As a decorator it takes the function that makes the flow's argument from an event's payload (None: nothing to
        do), or, without `start`, the flow itself. A function under `@app.once` is called before the answer.

        Args:
            source: Who sends: a name ("stripe"), or a `Source`.
            secret: One secret, several while they are rotated, or `env("NAME")`.
            start: The flow whose runs are started, or the guarded function that is called.
            name: The webhook's name in its URL; by default the source's.
            wait: How long the answer waits for the end of the run; by default it does not.
            keep: How long an event's id is known.
            lease: How long a redelivery is put off when the process that was receiving the event has died.
            on_failed: What a redelivery of an event whose run failed does.
            redact: Fields of the payload that are not stored.
            options: Settings of the source.
        """
        refuse_bare(source, "webhook", "a source", '"stripe", secret=env("STRIPE_SECRET")')
        read_paths(redact)
        known = find_source(source, **options) if isinstance(source, str) else source
        title = name or known.name
        policy = make_policy(operation_of(title), tenant=self.runtime.tenant, repeat="safe", lease=lease, keep=keep)
        warn_if_forgotten_early(known, policy.life.keep, name=title)
        span = None if wait is None else seconds(wait, name="wait")
        declared = Hook(
            title,
            known,
            secret_reader(secret, known),
            _NOBODY,
            policy,
            None,
            span,
            validate_on_failed(on_failed),
            tuple(redact),
        )
        if start is not None:
            self._add_hook(_started(declared, start))

        def declare(function: Callable[..., Any]) -> Callable[..., Any]:
            if start is None:
                self._add_hook(_started(declared, function))
            else:
                self.hooks[title] = _started(declared, start, _plain_make(title, function))
            return function

        return declare

    def receive(
        self, name: str, body: bytes, headers: Iterable[tuple[str, str]], *, url: str = "", method: str = "POST"
    ) -> Reply:
        """Process a delivery that came in at an endpoint of your own, and return the answer to send.

        Args:
            name: The webhook's name.
            body: The request's body, exactly as it came in.
            headers: The request's headers.
            url: The URL that was called; some senders sign it.
            method: The request's method.
        """
        return block(self._admission(name, body, headers, url, method))

    async def receiving(
        self, name: str, body: bytes, headers: Iterable[tuple[str, str]], *, url: str = "", method: str = "POST"
    ) -> Reply:
        """Do the same as `receive`, awaited.

        Args:
            name: The webhook's name.
            body: The request's body, exactly as it came in.
            headers: The request's headers.
            url: The URL that was called; some senders sign it.
            method: The request's method.
        """
        return await await_(self._admission(name, body, headers, url, method))

    def admit(self, letter: Envelope) -> Operation[Reply]:
        """Process a delivery; servers call it.

        Args:
            letter: The delivery.
        """
        return admit(self.runtime, self.hooks.get(letter.source), letter)

    def _admission(
        self, name: str, body: bytes, headers: Iterable[tuple[str, str]], url: str, method: str
    ) -> Operation[Reply]:
        now = self.runtime.clock.now()
        return self.admit(
            envelope(name, body, headers, tenant=self.runtime.tenant, received_at=now, url=url, method=method)
        )

    def _add_hook(self, hook: Hook) -> None:
        known = self.hooks.get(hook.name)
        if known is not None and known.target != hook.target:
            raise Misuse(
                f"{known.target} and {hook.target} are both started by the webhook "
                f'"{hook.name}"; give one of them another name=.'
            )
        self.hooks[hook.name] = hook

    # -- queues ----------------------------------------------------------------------------------

    def consume(
        self,
        place: str,
        *,
        start: Any = None,
        key: str | Callable[..., str] | None = None,
        inline: bool = False,
        **options: Any,
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Consume a queue: a delivery is acknowledged when its claim is durable, and a redelivery is a duplicate.

        With `start` each message starts a run; without `key` the run's own key is the only claim. As a decorator it
        takes the function that makes the flow's argument from a body (None: nothing to do), the flow itself, or, with
        `inline`, the function that is called for each message under a claim and acknowledged after it has ended.

        Args:
            place: "BROKER/QUEUE", such as "main/orders".
            start: The flow whose runs are started.
            key: The key of a message: a template over `body`, `headers` and `delivery`, or a function of them. By
                default the flow's own key; inline, the id that the sender gave.
            inline: Call the decorated function here, instead of starting a run.
            options: `order` (an order key, as `key`: messages with the same one are processed one after the other),
                `name`, `prefetch`, `poison` ("ack", "reject"), `keep`, `lease`, `on_failed` ("keep", "retry"),
                `redact`, `stable`, `largest` (bytes); inline also `repeat`, `attempts`, `not_done`.
        """
        from ..inbound.queues.consumer import declared_options, inline_consumer, starting_consumer

        refuse_bare(place, "consume", "a queue", '"main/orders", start=sync_order')
        told = declared_options(key, options, inline=inline)
        if inline and start is not None:
            raise Misuse(f"{place} is consumed inline and has start=; leave one of them out.")
        if start is not None:
            self._add_consumer(starting_consumer(self.runtime, place, _flow_of(start, "consume"), told))

        def declare(function: Callable[..., Any]) -> Callable[..., Any]:
            if inline:
                refuse_generators(function)
                self._add_consumer(inline_consumer(self.runtime, place, function, told))
            elif start is None:
                self._add_consumer(starting_consumer(self.runtime, place, _flow_of(function, "consume"), told))
            else:
                make = _plain_make(place, function)
                self._add_consumer(starting_consumer(self.runtime, place, _flow_of(start, "consume"), told, make))
            return function

        return declare

    def consuming(self, names: Collection[str] = ()) -> QueueReaders:
        """Return readers of the queues, each on a thread: `.start()`, then `.drain()` and `.join(seconds)`.

        `twiceproof work` and `serve` run them beside their worker, `twiceproof consume` alone.

        Args:
            names: The consumers ("main/orders"); by default all.
        """
        from ..inbound.queues.readers import make_readers

        return make_readers(self.runtime, self.consumers, self.routing.targets, names)

    def _add_consumer(self, consumer: Consumer) -> None:
        from ..inbound.queues.consumer import refuse_namesake

        refuse_namesake(self.consumers, consumer)
        if not self.consumers:
            self.runtime.root.beside_worker.append(self.consuming)
        self.consumers[consumer.name] = consumer

    # -- schedules and polls ---------------------------------------------------------------------

    def every(
        self,
        when: str | float | timedelta,
        *,
        tz: str = "UTC",
        overlap: Overlap = "skip",
        catch_up: CatchUp = "latest",
        name: str | None = None,
        **options: Any,
    ) -> Callable[[Callable[..., Any]], Any]:
        """Start a run at each tick of a schedule: one per tick, however many workers there are.

        The function may take the tick, a datetime.

        Args:
            when: An interval ("15m"), a cron expression ("0 2 * * *"), or "@daily".
            tz: The time zone of a cron expression.
            overlap: What happens while the previous run is still under way.
            catch_up: What happens to ticks at which no worker was running.
            name: The flow's name; by default the function's own.
            options: Further settings of `app.flow`.
        """
        refuse_bare(when, "every", "a time", '"15m"')
        ticks = make_ticks(when, tz)

        def declare(function: Callable[..., Any]) -> Any:
            flow = getattr(function, "flow", None)
            if not isinstance(flow, Flow):
                options.setdefault("stable", ("key",))  # it holds the time on purpose: the tick's
                called = operation_name(function, name, "every")
                declare_flow = self.flow(key=tick_key, name=called, **options)
                function = declare_flow(_ticked(function))
                flow = self.flows[called]
            elif options or name is not None:
                given = ", ".join(f"{option}=" for option in ("name",) * (name is not None) + tuple(options))
                raise Misuse(f"{flow.name} is a flow already, with settings of its own; give {given} to @app.flow.")
            _refuse_without_place(flow)
            self.schedules.add(Schedule(flow, ticks, str(when), tz, overlap, catch_up))
            return function

        return declare

    def poll(
        self,
        *,
        every: Duration,
        start: Any,
        overlap: Duration = "10m",
        since: datetime | None = None,
        tz: str = "UTC",
        name: str | None = None,
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Call a function at intervals for everything new, and start a run of `start` per item it returns.

        The function takes `since`: the time of the last poll less `overlap`, or, if it returns
        `Polled(items, cursor)`, that cursor. The cursor moves on when all items are claimed.

        Args:
            every: How often.
            start: The flow, which takes an item.
            overlap: How far each poll reaches back before the last one.
            since: What the first poll is given.
            tz: The time zone of a cron expression.
            name: The poll's name; by default the function's own.
        """
        flow = getattr(start, "flow", None)
        if not isinstance(flow, Flow):
            raise Misuse("app.poll needs start=, a function under @app.flow that takes an item.")
        span = seconds(overlap, name="overlap", positive=False)

        def declare(function: Callable[..., Any]) -> Callable[..., Any]:
            if inspect.isasyncgenfunction(function):
                raise Misuse(f"{function.__name__} is an async generator; collect the items and return them.")
            poll = Poll(operation_name(function, name, "poll"), function, make_ticks(every, tz), flow, span, since)
            self.polls.add(poll)
            return function

        return declare


_NOBODY: Any = None  # until the decorator names the flow


def _started(hook: Hook, start: Any, make: Callable[..., Any] | None = None) -> Hook:
    """Return the hook with what it starts: runs of a flow, or calls of a guarded function."""
    once = getattr(start, "once", None)
    if not isinstance(once, Once):
        return structs.replace(hook, flow=_flow_of(start), make=make)
    if iscoroutinefunction(once.function):
        raise Misuse(f"{hook.name}: a webhook calls a plain guarded function; write it with def, or start a flow.")
    if hook.wait is not None:
        raise Misuse(f"{hook.name}: the answer waits for a guarded function in any case; leave out wait=.")
    given = {name: getattr(hook, name) for name in Hook.__struct_fields__ if name not in ("make", "admission")}
    return OnceHook(**given, make=make, admission=OnceAdmission, once=once)


def _flow_of(start: Any, method: str = "webhook") -> Flow:
    flow = getattr(start, "flow", None)
    if not isinstance(flow, Flow):
        inline = ", or say inline=True" if method == "consume" else ""
        raise Misuse(
            f"app.{method} needs a flow to start: give start=, a function under @app.flow, or decorate one{inline}."
        )
    return flow


def _plain_make(title: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that makes a flow's argument. An async one would not be awaited."""
    if isinstance(getattr(function, "flow", None), Flow):
        raise Misuse(f"{title} has start= already; decorate the function that makes what the flow is given.")
    if iscoroutinefunction(function):
        raise Misuse(f"{title} is given an async function; make it a plain one: what waits is the flow's work.")
    return function


_TICK = inspect.Signature([inspect.Parameter("tick", inspect.Parameter.POSITIONAL_OR_KEYWORD)])


def tick_key(tick: Any) -> str:
    """One text for one moment, in any zone, and as the text that comes over HTTP: it is the schedule's own tick."""
    try:
        moment = datetime.fromisoformat(tick) if isinstance(tick, str) else tick
        return (moment.astimezone(UTC) if moment.tzinfo else moment).isoformat()
    except (AttributeError, ValueError):
        raise KeyRefused(f"{tick!r:.60} is no tick; give the time of one, such as 2026-03-02T12:00:00Z.") from None


def _refuse_without_place(flow: Flow) -> None:
    """Checked at declaration: at the tick it would only show in a log."""
    try:
        inspect.signature(flow.function).bind(datetime.min)
    except TypeError:
        raise Misuse(
            f"{flow.name} cannot be called with a tick; give it one parameter for it, a datetime, and put that into "
            "its key; or leave @app.flow away, and @app.every makes a flow of the function."
        ) from None


def _ticked(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with exactly one parameter, the tick: a run's key follows from it."""
    refuse_generators(function)
    wanted = takes_tick(function)
    if inspect.iscoroutinefunction(function):

        async def awaiting(tick: datetime) -> Any:
            return await (function(tick) if wanted else function())

        return _named_like(function, awaiting)

    def blocking(tick: datetime) -> Any:
        return function(tick) if wanted else function()

    return _named_like(function, blocking)


def _named_like(function: Callable[..., Any], wrapper: Callable[..., Any]) -> Callable[..., Any]:
    functools.update_wrapper(wrapper, function)  # also leads back to it: annotations are read where it was written
    wrapper.__signature__ = _TICK  # type: ignore[attr-defined]
    returned = getattr(function, "__annotations__", {}).get("return")
    wrapper.__annotations__ = {"tick": datetime, **({"return": returned} if returned is not None else {})}
    return wrapper
