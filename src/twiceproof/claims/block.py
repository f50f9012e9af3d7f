"""`with app.claim(…)`: a claim around a few lines, blocking or awaiting."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from ..drive import Carried, Operation, Raised, Returned, await_, block
from ..errors import Misuse
from .guard import Guard, Prior
from .hold import Hold, enclosing
from .refusals import refuse_other_payload
from .results import ResultType
from .states import Ask

__all__ = ["ClaimBlock"]


def _plain() -> object:
    """An inline claim has nowhere to declare a result type: what was stored comes back as plain JSON."""


class ClaimBlock:
    """Inside it, `held` says whether the work is ours. What is assigned to `result` is recorded at the end."""

    def __init__(self, guard: Guard, ask: Ask) -> None:
        self._guard = guard
        self._ask = ask
        self._results = ResultType(_plain, ask.operation)
        self._hold: Hold | None = None
        self._entered = False
        self._nested = False
        self.result: Any = None

    @property
    def held(self) -> bool:
        return self._hold is not None or self._nested

    @property
    def key(self) -> str:
        return self._ask.key

    @property
    def run(self) -> str:
        return self._ask.run

    @property
    def lost(self) -> bool:
        """Whether the claim may no longer be ours: time to stop before the next effect.

        A heartbeat has found so, or its time is over and no heartbeat came through: nobody could say so then.
        """
        hold = self._hold
        if hold is None or hold.lost is not None:
            return hold is not None
        return hold.active and self._guard.claims.clock.monotonic() >= hold.held.deadline

    @property
    def attempt(self) -> int:
        return self._hold.held.attempt if self._hold else 0

    def __enter__(self) -> ClaimBlock:
        return block(self._enter())

    async def __aenter__(self) -> ClaimBlock:
        return await await_(self._enter())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        block(self._leave(error))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, GeneratorExit):  # the coroutine is being thrown away and cannot wait: the lease lapses
            if self._hold is not None:
                self._guard.end(self._hold)
            return
        await await_(self._leave(error))

    def _enter(self) -> Operation[ClaimBlock]:
        if self._entered:
            raise Misuse("A claim is entered once; ask for a new one with app.claim(…).")
        self._entered = True
        outer = enclosing(self._ask.at.space, self._guard.claims.store)
        if outer is not None and not self._ask.reentrant:  # part of the work around it, which records the result
            refuse_other_payload(outer.ask, self._ask)
            self._nested = True
            return self
        self._results.prepare()
        taken = yield from self._guard.enter(self._ask, self._results)
        if isinstance(taken, Prior):
            self.result = taken.value
            return self
        try:
            self._guard.begin(taken)
        except BaseException:
            yield from self._guard.claims.release(taken.held)
            raise
        self._hold = taken
        return self

    def _leave(self, error: BaseException | None) -> Operation[None]:
        if self._hold is None:
            return
        self._guard.end(self._hold)
        if error is None:
            self.result = yield from self._guard.leave(self._hold, Returned(self.result), self._results)
            return
        try:
            yield from self._guard.leave(self._hold, Raised(error), self._results)
        except Carried:  # the block's own error goes on by itself
            return
        except BaseException as same:
            if same is not error:
                raise
