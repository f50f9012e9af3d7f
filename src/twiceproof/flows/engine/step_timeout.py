"""A step's time-out: awaited work is cancelled; a thread cannot be, so it is no longer waited for.

Such a thread may act at any later moment. It is registered here until it ends, so that this process begins no second
attempt that could do the same again.
"""

from __future__ import annotations

import contextvars
import inspect
import threading
import time
from collections.abc import Callable
from typing import Any

from ...operations import Raised, Request, Returned

__all__ = ["Outlive", "Overdue", "Place", "limited", "overdue_at", "overdue_of"]


OVERDUE = "_twiceproof_overdue"  # the attribute of an error that holds the attempt which ran out of time

Place = tuple[str, str, str]  # the run's start id, its space, and the step: the same for every app of this process

_overdue: dict[Place, list[Overdue]] = {}
_mutex = threading.Lock()


class Overdue:
    """An attempt on a thread of its own, which may outlive its time-out."""

    def __init__(self, work: Callable[[], Any], place: Place) -> None:
        self._work = work
        self.place = place
        self._context = contextvars.copy_context()
        self._then: Callable[[Returned | Raised], None] | None = None
        self._thread = threading.Thread(target=self._run, name="twiceproof-step", daemon=True)
        self.finding: Returned | Raised | None = None

    def start(self) -> None:
        """Register it before it begins: a caller that is interrupted while it waits must find it again."""
        with _mutex:
            _overdue.setdefault(self.place, []).append(self)
        try:
            self._thread.start()
        except BaseException:
            self._forget()
            raise

    def join(self, seconds: float | None) -> Returned | Raised | None:
        self._thread.join(None if seconds is None else max(0.0, seconds))
        return self.finding

    @property
    def is_at_work(self) -> bool:
        """False in a forked child: the thread exists only in its parent."""
        return self._thread.is_alive()

    def when_over(self, then: Callable[[Returned | Raised], None]) -> None:
        """Stop waiting for it: `then` is called with its end, on its own thread."""
        with _mutex:
            self._then = then
            finding = self.finding
        if finding is not None:
            then(finding)

    def _run(self) -> None:
        try:
            finding = _caught(self._context, self._work)
            with _mutex:
                self.finding, then = finding, self._then
            if then is not None:
                then(finding)
        finally:
            self._forget()

    def _forget(self) -> None:
        with _mutex:
            left = [each for each in _overdue.get(self.place, ()) if each is not self]
            if left:
                _overdue[self.place] = left
            else:
                _overdue.pop(self.place, None)


def overdue_of(finding: object, place: Place) -> Overdue | None:
    """Return the attempt at this step that was given up with this error; it may have ended since.

    The error of a flow that the step called may hold an attempt of that flow's step, whose result is not this one's.
    """
    attempt = vars(finding.error).get(OVERDUE) if isinstance(finding, Raised) else None
    return attempt if isinstance(attempt, Overdue) and attempt.place == place else None


def overdue_at(place: Place) -> list[Overdue]:
    """Return earlier attempts at this step that are still at work in this process."""
    with _mutex:
        return [each for each in _overdue.get(place, ()) if each.is_at_work]


class Outlive(Request[Returned | Raised | None]):
    """Waits so many seconds for attempts to end, and returns the end of the latest. None: one is still at work."""

    __slots__ = ("_attempts", "_seconds")

    def __init__(self, attempts: list[Overdue], seconds: float) -> None:
        self._attempts = attempts
        self._seconds = seconds

    def block(self) -> Returned | Raised | None:
        until = time.monotonic() + self._seconds  # real time, as the time-out itself: threads wait by no other clock
        findings = [each.join(until - time.monotonic()) for each in self._attempts]
        return None if None in findings else findings[-1]

    async def wait(self) -> Returned | Raised | None:
        import asyncio

        return await asyncio.to_thread(self.block)


def limited(
    function: Callable[..., Any],
    seconds: float | None,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    place: Place,
    *,
    blocking: Callable[..., Any] | None = None,
) -> Callable[[], Any]:
    """Return the call of a step, which ends after so many seconds. `blocking`: what an awaited one does on a thread,
    which goes on when it is cancelled, with a time-out or without."""
    if blocking is not None:
        import asyncio

        return lambda: asyncio.to_thread(_watched, lambda: blocking(*args, **kwargs), seconds, place)
    if inspect.iscoroutinefunction(function) and seconds is not None:
        return lambda: _awaited(function(*args, **kwargs), seconds)
    return lambda: _watched(lambda: function(*args, **kwargs), seconds, place)


async def _awaited(work: Any, seconds: float) -> Any:
    import asyncio

    async with asyncio.timeout(seconds):
        return await work


def _watched(work: Callable[[], Any], seconds: float | None, place: Place) -> Any:
    """Run it on a thread of its own. After the time-out its outcome is unknown."""
    attempt = Overdue(work, place)
    attempt.start()
    finding = attempt.join(seconds)
    if finding is None:
        error = TimeoutError(f"no answer within {seconds:g} s; the call may still be going on")
        vars(error)[OVERDUE] = attempt
        raise error
    if isinstance(finding, Raised):
        raise finding.error
    return finding.value


def _caught(context: contextvars.Context, work: Callable[[], Any]) -> Returned | Raised:
    try:
        return Returned(context.run(work))
    except BaseException as error:  # noqa: BLE001 - it is raised again where it is waited for
        return Raised(error)
