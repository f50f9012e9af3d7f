"""An operation of the core under way: stepped request by request, with a count of its unknown writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.faults.histories.tries import NOTHING_WRITTEN, Tries
from twiceproof.errors import StoreUnavailable
from twiceproof.operations import Operation, Request
from twiceproof.records import Batch, Written


class Call:
    """`request` is the next request; None: it has ended, with `value` or with `error`."""

    def __init__(self, operation: Operation[Any], invoked: int, tries: Tries) -> None:
        self.invoked = invoked
        self.value: Any = None
        self.error: StoreUnavailable | None = None
        self.extra = 0  # how often it may have taken effect in addition to its answer
        self.wrote = False
        self._operation = operation
        self._tries = tries
        self.request: Request[Any] | None = None
        self._go_on(lambda: next(operation))

    def answer_request(self) -> None:
        """Carry out the request, and continue to the next one."""
        try:
            answer = self.reach_store()
        except Exception as error:  # noqa: BLE001 - the operation decides what it means
            self._go_on(lambda error=error: self._operation.throw(error))
            return
        self.wrote |= isinstance(answer, Written)
        self._go_on(lambda: self._operation.send(answer))

    def reach_store(self) -> Any:
        """Carry out the request, and drop its answer."""
        batch = getattr(self.request, "item", None)
        answer: Any = NOTHING_WRITTEN
        try:
            answer = self.request.block()
        except StoreUnavailable as error:
            answer = error if error.unsure else NOTHING_WRITTEN
            raise
        finally:
            if isinstance(batch, Batch):
                self.extra += self._tries.extra(batch, answer)
        return answer

    def run(self) -> Call:
        while self.request is not None:
            self.answer_request()
        return self

    @property
    def perhaps(self) -> int:
        """Return how often a call that ended without an answer may have taken effect."""
        if self.error is None:
            return self.extra + 1  # its caller is dead
        return max(self.extra, int(self.wrote or self.error.unsure))

    def _go_on(self, move: Callable[[], Request[Any]]) -> None:
        try:
            self.request = move()
        except StopIteration as end:
            self.request, self.value = None, end.value
        except StoreUnavailable as error:
            self.request, self.error = None, error
