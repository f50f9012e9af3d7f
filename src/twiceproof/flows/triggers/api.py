"""What an app offers to things that start by themselves."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, MutableMapping
from datetime import UTC, datetime, timedelta
from typing import Any

from ...claims.named import name_of, refuse_bare
from ...claims.once import refuse_generators
from ...claims.policy import Duration
from ...errors import KeyRefused, Misuse
from ...keys.duration import seconds
from ..flow import Flow
from .poll import Poll
from .poll_duty import PollDuty
from .schedule import CatchUp, Overlap, Schedule, takes_tick
from .schedule_duty import ScheduleDuty
from .ticks import make_ticks

__all__ = ["TriggerApi"]


class TriggerApi:
    """The part of an app that is about schedules and polls."""

    flow: Any  # of FlowApi
    flows: MutableMapping[str, Flow]
    schedules: ScheduleDuty
    polls: PollDuty

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
        """Start a run at each tick: an interval ("15m"), a cron expression ("0 2 * * *") in a time zone, or "@daily".

        One run per tick, however many workers there are. `overlap` says what happens while the run before is still
        under way; `catch_up` what happens to ticks that nobody served. The function may take the tick, a datetime.
        """
        refuse_bare(when, "every", "a time", '"15m"')
        ticks = make_ticks(when, tz)

        def declare(function: Callable[..., Any]) -> Any:
            flow = getattr(function, "flow", None)
            if not isinstance(flow, Flow):
                options.setdefault("stable", ("key",))  # it holds the time on purpose: the tick's
                called = name_of(function, name, "every")
                declare_flow = self.flow(key=_tick_key, name=called, **options)
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
        """Ask a source again and again for everything since last time, and start a run of `start` per item.

        The function takes `since`: None or `since=` the first time, then the time of the last poll less `overlap`; or,
        if it returns `Polled(items, cursor)`, that cursor. The cursor moves on when all items are claimed.
        """
        flow = getattr(start, "flow", None)
        if not isinstance(flow, Flow):
            raise Misuse("app.poll needs start=, a function under @app.flow that takes an item.")
        span = seconds(overlap, name="overlap", positive=False)

        def declare(function: Callable[..., Any]) -> Callable[..., Any]:
            if inspect.isasyncgenfunction(function):
                raise Misuse(f"{function.__name__} is an async generator; collect the items and return them.")
            poll = Poll(name_of(function, name, "poll"), function, make_ticks(every, tz), flow, span, since)
            self.polls.add(poll)
            return function

        return declare


_TICK = inspect.Signature([inspect.Parameter("tick", inspect.Parameter.POSITIONAL_OR_KEYWORD)])


def _tick_key(tick: Any) -> str:
    """One text for one moment, in any zone, and as the text that comes over HTTP: it is the schedule's own tick."""
    try:
        moment = datetime.fromisoformat(tick) if isinstance(tick, str) else tick
        return (moment.astimezone(UTC) if moment.tzinfo else moment).isoformat()
    except (AttributeError, ValueError):
        raise KeyRefused(f"{tick!r:.60} is no tick; give the time of one, such as 2026-03-02T12:00:00Z.") from None


def _refuse_without_place(flow: Flow) -> None:
    """At the tick it would be too late: nobody is there to see that it never runs."""
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
