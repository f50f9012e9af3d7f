"""`flow.start(…)` and `flow.start_many(…)`: runs that are left to workers, at once or later."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ..claims.policy import Duration
from ..drive import Operation, Raised, Request, Returned, await_, block
from ..errors import Misuse
from ..keys.duration import seconds
from .flow import Flow
from .handle import AsyncRunHandle, Handle, RunHandle
from .unawaited import as_coroutine_function, noted

__all__ = ["start_function", "start_many_function"]

MOST_AT_ONCE = 32  # their writes meet in one commit
DELAY = "delay"
Given = tuple[tuple[Any, ...], dict[str, Any]]


def start_function(flow: Flow) -> Callable[..., Any]:
    """`delay=` is ours, unless the flow has a parameter of that name."""

    def operation(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Operation[Handle]:
        delay = 0.0 if DELAY in flow.inputs.names else _seconds(kwargs.pop(DELAY, 0.0))
        return flow.here().start(args, kwargs, heard=True, delay=delay)

    if flow.drive is await_:

        async def work(args: tuple[Any, ...], kwargs: dict[str, Any]) -> AsyncRunHandle[Any]:
            return AsyncRunHandle(await await_(operation(args, kwargs)), await_)

        @as_coroutine_function
        def awaited(*args: Any, **kwargs: Any) -> Any:
            return noted(f"{flow.name}.start", lambda: work(args, kwargs))

        return awaited

    def start(*args: Any, **kwargs: Any) -> RunHandle[Any]:
        return RunHandle(block(operation(args, kwargs)), block)

    return start


def start_many_function(flow: Flow) -> Callable[..., Any]:
    if flow.drive is await_:

        async def work(items: Iterable[Any], delay: Duration) -> list[AsyncRunHandle[Any]]:
            return [AsyncRunHandle(one, await_) for one in await await_(_start_many(flow, items, delay))]

        @as_coroutine_function
        def awaited(items: Iterable[Any], *, delay: Duration = 0.0) -> Any:
            return noted(f"{flow.name}.start_many", lambda: work(items, delay))

        return awaited

    def start_many(items: Iterable[Any], *, delay: Duration = 0.0) -> list[RunHandle[Any]]:
        return [RunHandle(one, block) for one in block(_start_many(flow, items, delay))]

    return start_many


def _seconds(delay: Duration) -> float:
    return seconds(delay, name=DELAY, positive=False)


def _start_many(flow: Flow, items: Iterable[Any], delay: Duration) -> Operation[list[Handle]]:
    """Each has its key before the first is written: what can be refused at once starts nothing."""
    here, later = flow.here(), _seconds(delay)
    calls = [_spread(flow, number, item) for number, item in enumerate(items, 1)]
    findings = yield from Starts([lambda given=given: here.start(*given, heard=True, delay=later) for given in calls])  # type: ignore[misc]
    for number, finding in enumerate(findings, 1):
        if isinstance(finding, Raised):
            started = sum(isinstance(one, Returned) for one in findings)
            finding.error.add_note(
                f"This was item {number} of {len(findings)}. {started} are started; start_many again starts the others."
            )
            raise finding.error
    return [finding.value for finding in findings if isinstance(finding, Returned)]


def _spread(flow: Flow, number: int, item: Any) -> Given:
    """Passed whole to a single parameter; otherwise spread, by name or in order."""
    names = flow.inputs.names
    given: Given = ((item,), {})
    if len(names) != 1:
        if isinstance(item, Mapping):
            given = (), dict(item)
        elif isinstance(item, tuple | list):
            given = tuple(item), {}
        else:
            raise Misuse(
                f"{flow.name} takes ({', '.join(names)}), and item {number} is a {type(item).__name__}; give a dict "
                "by these names, or a tuple in this order."
            )
    try:
        flow.key(*given)
    except TypeError as error:
        raise Misuse(f"{flow.name} takes ({', '.join(names)}), and item {number} does not fit: {error}.") from None
    return given


class Starts(Request[list[Returned | Raised]]):
    """Operations beside each other, all to their ends: on threads, or as tasks of an awaiting caller."""

    __slots__ = ("_make",)

    def __init__(self, make: Sequence[Callable[[], Operation[Any]]]) -> None:
        self._make = make

    def block(self) -> list[Returned | Raised]:
        if len(self._make) <= 1:
            return [_caught(make) for make in self._make]
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(min(MOST_AT_ONCE, len(self._make)), thread_name_prefix="twiceproof-start") as threads:
            context = contextvars.copy_context()
            return list(threads.map(lambda make: context.copy().run(_caught, make), self._make))

    async def wait(self) -> list[Returned | Raised]:
        import asyncio

        turns = asyncio.Semaphore(MOST_AT_ONCE)

        async def one(make: Callable[[], Operation[Any]]) -> Returned | Raised:
            async with turns:
                try:
                    return Returned(await await_(make()))
                except Exception as error:  # noqa: BLE001 - the others are started all the same
                    return Raised(error)

        return list(await asyncio.gather(*map(one, self._make)))


def _caught(make: Callable[[], Operation[Any]]) -> Returned | Raised:
    try:
        return Returned(block(make()))
    except Exception as error:  # noqa: BLE001 - as above
        return Raised(error)
