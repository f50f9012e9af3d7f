"""The current run, step and branch of a caller; calls that must be awaited; correlation ids.

A coroutine that is never awaited does nothing, and Python only warns. A run that ended without it would count as done,
so each call that must be awaited is known from when it is made until it begins.
"""

from __future__ import annotations

import inspect
import itertools
import math
import sys
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct

from ...claims.claim import shown_run
from ...effects.repeat import SAFE
from ...errors import Misuse
from ...keys import validate_key
from ...operations import Operation, await_
from .step_identity import effect_key

if TYPE_CHECKING:
    from .exits import Stop
    from .session import Session

__all__ = [
    "Attempt",
    "Branch",
    "BytesOrAwaitable",
    "ListOrAwaitable",
    "PendingCall",
    "PendingCalls",
    "StrOrAwaitable",
    "Unwind",
    "are_siblings",
    "as_coroutine_function",
    "attempt_var",
    "branch_var",
    "correlation",
    "current_attempt",
    "current_session",
    "driven",
    "given",
    "giving",
    "inside_flow",
    "is_interrupt",
    "is_on_loop",
    "noted",
    "origin_of_new_run",
    "parent_of_new_run",
    "patience_around",
    "plain_session",
    "session_var",
]


F = TypeVar("F", bound=Callable[..., Any])
R = TypeVar("R")
PACKAGE = __name__.partition(".")[0] + "."


# -- branches and attempts -----------------------------------------------------------------------


class Branch:
    """One branch of a gathering. Its path is the same in every replay: which gathering, and which call of it ("2.1",
    nested "2.1/1.3")."""

    __slots__ = ("alone", "gatherings", "path", "session", "stop")

    def __init__(self, session: Session, path: str, *, alone: bool = False) -> None:
        self.session = session
        self.path = path
        self.alone = alone  # it is a single step: no other call of this branch comes before it
        self.stop: Stop | None = None
        self.gatherings = 0

    @property
    def place(self) -> str:
        """The branch as the ledger records it. In a batch an item's number depends on what is left to do."""
        return f"{self.path.rpartition('.')[0]}.*" if self.alone else self.path


branch_var: ContextVar[Branch | None] = ContextVar("twiceproof_branch", default=None)


def are_siblings(one: str, other: str) -> bool:
    """Whether two branches are of the same gathering, so that their order is not defined."""
    for left, right in zip(one.split("/"), other.split("/"), strict=False):
        if left != right:
            return bool(left and right) and left.split(".")[0] == right.split(".")[0]
    return False


class Attempt(Struct, frozen=True):
    """An attempt at a step that is being carried out."""

    space: str
    step: str
    starts: int
    outgoing: list[Any] = []  # messages that are written with the step's completion
    first_at: float | None = None  # when its first attempt began, if that is recorded

    @property
    def effect_key(self) -> str:
        """Computed on demand: most steps need none."""
        return effect_key(self.space, self.step)


class Unwind(BaseException):
    """Leaves the flow's function without an end, because the run waits or needs a person. Not an `Exception`, so that
    `except Exception` does not catch it."""


def is_interrupt(error: BaseException) -> bool:
    """Whether the process or this task was told to stop."""
    return not isinstance(error, Exception | Unwind)


# -- the current run -----------------------------------------------------------------------------


session_var: ContextVar[Session | None] = ContextVar("twiceproof_run", default=None)
attempt_var: ContextVar[Attempt | None] = ContextVar("twiceproof_step", default=None)


def current_attempt() -> Attempt | None:
    return attempt_var.get()


def current_session() -> Session | None:
    """Return the run whose function is calling. None inside a step: what a step calls is part of that step."""
    session = session_var.get()
    if session is None or attempt_var.get() is not None:
        return None
    if not session.open:
        raise Misuse(
            "This run has ended or is parked, but something it started is still going on; wait for tasks and threads "
            "in the flow itself, with app.gather."
        )
    return session


def plain_session(what: str) -> Session | None:
    """The same for a `def`. Called on the event loop concurrently with awaited calls, it would deadlock: it would
    block the loop while it waits for a lock that only those calls can release."""
    session = current_session()
    if session is not None and session.ledger.open_gatherings and session.drive is await_ and is_on_loop():
        raise Misuse(
            f"{what} is a `def`, called beside others in an `async def` flow: it would hold them all up; make it an "
            f"`async def`, or call it as: await asyncio.to_thread({what}, …)."
        )
    return session


def is_on_loop() -> bool:
    if "asyncio" not in sys.modules:  # loading it takes a third of a program's start
        return False
    import asyncio

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def inside_flow(what: str) -> Session:
    session = current_session()
    if session is None:
        where = "a step" if attempt_var.get() is not None else "no flow"
        raise Misuse(f"{what} was called from {where}; call it in the body of a function under @app.flow.")
    return session


def parent_of_new_run() -> str:
    """Return the run in whose step a run is being started, or "" outside of runs."""
    session = session_var.get()
    return session.claim.run if session is not None and session.open else ""


def origin_of_new_run() -> dict[str, str]:
    """Return what a run takes over from the run in whose step it is being started: who started that one may approve
    neither of them.
    """
    session = session_var.get()
    if session is None or not session.open:
        return {}
    return {"parent": session.claim.run, "starter": session.work.starter}


def patience_around() -> float:
    """Return for how long a call may hold up the run around it; without limit for a step that cannot be repeated."""
    session, attempt = session_var.get(), attempt_var.get()
    if session is None or attempt is None or not session.open:
        return math.inf
    around = session.calls.get(attempt.step)
    return session.patience if around is not None and around.step.plan.repeat is SAFE else math.inf


# -- calls that must be awaited ------------------------------------------------------------------


class ListOrAwaitable(list[R]):
    """For type checkers: a list in a `def` flow, an awaitable in an `async def` flow. Never instantiated."""

    def __await__(self) -> Generator[Any, Any, list[R]]:
        raise NotImplementedError


class StrOrAwaitable(str):
    """The same for a string."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, Any, str]:
        raise NotImplementedError


class BytesOrAwaitable(bytes):
    """The same for bytes."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, Any, bytes]:
        raise NotImplementedError


class PendingCall(Struct, frozen=True, eq=False):
    """A call that was made and has not begun: where it was made, and what the ledger would call it."""

    coroutine: Coroutine[Any, Any, Any]
    what: str
    names: tuple[str, ...]
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.what} ({self.file}:{self.line})"


class PendingCalls:
    """The calls of one run that were made and have not begun."""

    def __init__(self) -> None:
        self._calls: dict[int, PendingCall] = {}
        self._numbers = itertools.count()

    def add(self, what: str, names: Iterable[str], work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        number = next(self._numbers)
        coroutine = self._begin(number, work)
        code, line = _caller(sys._getframe(2))
        self._calls[number] = PendingCall(coroutine, what, tuple(names), code, line)
        return coroutine

    async def _begin(self, number: int, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        self._calls.pop(number, None)
        return await work()

    def forgotten(self) -> list[PendingCall]:
        """Return the calls that never began, in order. They are closed, or Python would warn about them elsewhere."""
        left = [call for call in self._calls.values() if inspect.getcoroutinestate(call.coroutine) == "CORO_CREATED"]
        owned = _coroutines_of_tasks() if left else ()
        for call in left:
            if call.coroutine not in owned:
                call.coroutine.close()
        self._calls.clear()
        return left


def noted(what: str, work: Callable[[], Coroutine[Any, Any, Any]], *, names: Iterable[str] = ()) -> Any:
    """Return the coroutine of a call that must be awaited. In the body of a flow it is remembered until it begins."""
    session = _session()
    return work() if session is None else session.pending_calls.add(what, names, work)


def driven(drive: Callable[[Operation[Any]], Any], what: str, operation: Operation[Any]) -> Any:
    """The same for an operation of the engine; for a blocking caller it is carried out at once."""
    if drive is not await_:
        return drive(operation)
    return noted(what, lambda: await_(operation))


def as_coroutine_function(function: F) -> F:
    """Mark a `def` that returns a coroutine, so that `inspect.iscoroutinefunction` is true of it."""
    if sys.version_info >= (3, 12):
        return inspect.markcoroutinefunction(function)
    marked: Any = function  # before 3.12 there is no other way
    marked.__code__ = marked.__code__.replace(co_flags=marked.__code__.co_flags | inspect.CO_COROUTINE)
    return function


def _session() -> Session | None:
    """None inside a step, and after the end of the run: a call made there reports that when it is awaited."""
    session = session_var.get()
    return session if session is not None and session.open and attempt_var.get() is None else None


def _caller(frame: FrameType | None) -> tuple[str, int]:
    """Return the file and line of the user's code, skipping this package's frames."""
    found = frame
    while found is not None and found.f_globals.get("__name__", "").startswith(PACKAGE):
        found = found.f_back
    return ("?", 0) if found is None else (found.f_code.co_filename, found.f_lineno)


def _coroutines_of_tasks() -> list[Any]:
    """A task that was created and not awaited begins later, and then raises because its run has ended."""
    import asyncio

    try:
        return [task.get_coro() for task in asyncio.all_tasks()]
    except RuntimeError:  # no loop: a `def` flow
        return []


# -- correlation ids -----------------------------------------------------------------------------


_given: ContextVar[str] = ContextVar("twiceproof_correlation", default="")


@contextmanager
def giving(correlation: str) -> Iterator[None]:
    if _of_run():
        raise Misuse("A run has its correlation id from its start; give it around the call that starts the run.")
    token = _given.set(validate_key(correlation))
    try:
        yield
    finally:
        _given.reset(token)


def given() -> str:
    """Return the id that was given around this call, if any."""
    return _given.get()


def correlation() -> str:
    """Return the calling run's id, which runs that it starts share; outside of runs, the one that was given."""
    return _of_run() or _given.get()


def _of_run() -> str:
    session = session_var.get()
    if session is None or not session.open:
        return ""
    return session.work.correlation or shown_run(session.claim.run)
