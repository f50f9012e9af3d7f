"""Engine calls that must be awaited: each is known from when it is made until it begins, so that none is forgotten.

A coroutine that nobody awaits does nothing, and Python only warns. A run that ended without it would count as done.
"""

from __future__ import annotations

import inspect
import itertools
import sys
from collections.abc import Callable, Coroutine, Generator, Iterable
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct

from ...operations import Operation, await_
from .context import attempt_var, session_var

if TYPE_CHECKING:
    from .session import Session

__all__ = ["Created", "ListOrAwaitable", "Made", "StrOrAwaitable", "as_coroutine_function", "driven", "noted"]


F = TypeVar("F", bound=Callable[..., Any])
R = TypeVar("R")
PACKAGE = __name__.partition(".")[0] + "."


class ListOrAwaitable(list[R]):
    """For type checkers: a list in a `def` flow, to be awaited in an `async def` flow. Never made."""

    def __await__(self) -> Generator[Any, Any, list[R]]:
        raise NotImplementedError


class StrOrAwaitable(str):
    """The same for a string."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, Any, str]:
        raise NotImplementedError


class Made(Struct, frozen=True, eq=False):
    """A call, where it was made, and what the ledger would have called it."""

    coroutine: Coroutine[Any, Any, Any]
    what: str
    names: tuple[str, ...]
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.what} ({self.file}:{self.line})"


class Created:
    """The calls of one run that have not begun."""

    def __init__(self) -> None:
        self._calls: dict[int, Made] = {}
        self._numbers = itertools.count()

    def add(self, what: str, names: Iterable[str], work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        number = next(self._numbers)
        coroutine = self._begin(number, work)
        code, line = _caller(sys._getframe(2))
        self._calls[number] = Made(coroutine, what, tuple(names), code, line)
        return coroutine

    async def _begin(self, number: int, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        self._calls.pop(number, None)
        return await work()

    def forgotten(self) -> list[Made]:
        """What was never begun, in the order in which it was made. Closed, or Python complains later, elsewhere."""
        left = [made for made in self._calls.values() if inspect.getcoroutinestate(made.coroutine) == "CORO_CREATED"]
        owned = _coroutines_of_tasks() if left else ()
        for made in left:
            if made.coroutine not in owned:
                made.coroutine.close()
        self._calls.clear()
        return left


def noted(what: str, work: Callable[[], Coroutine[Any, Any, Any]], *, names: Iterable[str] = ()) -> Any:
    """A call that is to be awaited. In the body of a flow it is remembered until it begins."""
    session = _session()
    return work() if session is None else session.created.add(what, names, work)


def driven(drive: Callable[[Operation[Any]], Any], what: str, operation: Operation[Any]) -> Any:
    """The same for an operation of the engine; a blocking caller has it done at once."""
    if drive is not await_:
        return drive(operation)
    return noted(what, lambda: await_(operation))


def as_coroutine_function(function: F) -> F:
    """A `def` that returns a coroutine, for everybody who asks whether it is to be awaited."""
    if sys.version_info >= (3, 12):
        return inspect.markcoroutinefunction(function)
    marked: Any = function  # before 3.12 there is no other sign
    marked.__code__ = marked.__code__.replace(co_flags=marked.__code__.co_flags | inspect.CO_COROUTINE)
    return function


def _session() -> Session | None:
    """None inside a step, and after the end of the run: what is called there says so when it is awaited."""
    session = session_var.get()
    return session if session is not None and session.open and attempt_var.get() is None else None


def _caller(frame: FrameType | None) -> tuple[str, int]:
    """The user's line, not one of ours."""
    found = frame
    while found is not None and found.f_globals.get("__name__", "").startswith(PACKAGE):
        found = found.f_back
    return ("?", 0) if found is None else (found.f_code.co_filename, found.f_lineno)


def _coroutines_of_tasks() -> list[Any]:
    """A task that was made and not waited for begins later, and hears then that its run has ended."""
    import asyncio

    try:
        return [task.get_coro() for task in asyncio.all_tasks()]
    except RuntimeError:  # no loop: a `def` flow
        return []
