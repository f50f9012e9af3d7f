"""A handle: one run, from any process. Asks the store, holds nothing."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from ..claims.claim import HELD, REVIEW
from ..claims.outcomes import Done, Failed, InReview
from ..claims.results import ResultType, unpack
from ..claims.states import glance, is_expired, is_lapsed
from ..drive import Operation, await_, block
from ..errors import Misuse, NeedsReview, PriorFailure, ResultNotKept
from ..records import Address, Found, Record
from ..shell import typed
from .cancel import cancel
from .order.stale import stale, stale_error
from .parts import Parts

__all__ = ["AttachedHandle", "Handle", "RunHandle"]

LONGEST_PAUSE = 1.0


class Handle:
    """The operations; `RunHandle` drives them."""

    def __init__(self, parts: Parts, at: Address, run: str, results: ResultType) -> None:
        self.parts = parts
        self.at = at
        self.id = run
        self._results = results

    def state(self) -> Operation[str]:
        """queued, held (somebody is at work), lapsed, waiting, done, failed or review; "" if there is no such run."""
        found = yield from self.parts.store.read(self.at)
        if found.record is None or is_expired(found.record, found.now):
            return ""
        lapsed = found.record.state == HELD and is_lapsed(found.record, found.now)
        return "lapsed" if lapsed else found.record.state

    def result(self, timeout: float | None = None) -> Operation[Any]:
        """What the run returns, as soon as it has."""
        clock = self.parts.clock
        until = None if timeout is None else clock.monotonic() + timeout
        while True:
            found = yield from self.parts.store.read(self.at)
            outcome = glance(self._there(found), found.now)
            if isinstance(outcome, Done):
                return (yield from self._value(outcome))
            if isinstance(outcome, Failed):
                raise self._failed(outcome)
            if isinstance(outcome, InReview):
                raise self._in_review(outcome)
            left = LONGEST_PAUSE if until is None else until - clock.monotonic()
            if left <= 0:
                raise TimeoutError(
                    f"{self.id} did not end within {timeout:g} s; ask again, or look: {self._show('runs')}"
                )
            yield from self.parts.store.pause(self.at.space, min(left, LONGEST_PAUSE))

    def cancel(self, by: str = "") -> Operation[str]:
        """Stop it before its next step, and undo what was done. Says the state it is in then."""
        return cancel(self.parts.store, self.at, by or self.parts.owner(), self.parts.life_of(self.at))

    def _there(self, found: Found) -> Record:
        if found.record is None or is_expired(found.record, found.now):
            raise Misuse(f"There is no run {self.id}; list them with: {typed(*self.parts.where, 'runs', 'list')}")
        return found.record

    def _show(self, noun: str) -> str:
        """What to type, about the ledger that this is in."""
        return typed(*self.parts.where, noun, "show", self.id)

    def _value(self, done: Done) -> Operation[Any]:
        if (overtaken := stale(done)) is not None:
            operation, key = self.at.space.split("/", 2)[1:]
            raise stale_error(operation, key, self.id, overtaken, self.parts.where)
        text = yield from unpack(self.parts.store, done.at, done.result, done.spill)
        if not text:
            raise ResultNotKept(
                f"{self.id} is done, but its result is not kept. Look: {self._show('runs')}", run=self.id
            )
        return self._results.restore(text)

    def _failed(self, failed: Failed) -> PriorFailure:
        fault = failed.fault
        return PriorFailure(
            f"{self.id} failed with {fault.type}: {fault.message}; what can be done: {self._show('runs')}",
            run=self.id, fault=fault, error=f"{fault.type}: {fault.message}",
        )  # fmt: skip

    def _in_review(self, review: InReview) -> NeedsReview:
        reason = review.reason.rstrip(".")
        return NeedsReview(
            f"{self.id} waits for a person: {reason}. Look at it with: {self._show('review')}",
            run=self.id, state=REVIEW, reason=review.reason,
        )  # fmt: skip


class RunHandle:
    """What `.start()` returns. For an `async def` flow each of these is awaited, `state` too."""

    def __init__(self, handle: Handle, drive: Any) -> None:
        self._handle = handle
        self._drive = drive

    @property
    def id(self) -> str:
        return self._handle.id

    @property
    def key(self) -> str:
        return self._handle.at.space.split("/", 2)[2]

    @property
    def state(self) -> Any:
        return self._drive(self._handle.state())

    def result(self, timeout: float | None = None) -> Any:
        return self._drive(self._handle.result(timeout))

    def cancel(self, by: str = "") -> Any:
        return self._drive(self._handle.cancel(by))

    def __repr__(self) -> str:
        return f"<run {self.id}>"


class AttachedHandle(RunHandle):
    """What `app.attach` returns. It blocks; `await app.attach(…)` is one of which each of these is awaited.

    The flow's own kind cannot tell: a `def` program may look at a run of an `async def` flow, and the other way round.
    """

    def __init__(self, handle: Handle) -> None:
        super().__init__(handle, block)

    def __await__(self) -> Generator[Any, Any, RunHandle]:
        return self._awaiting().__await__()

    async def _awaiting(self) -> RunHandle:
        return RunHandle(self._handle, await_)
