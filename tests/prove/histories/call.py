"""An operation of the core under way: stepped request by request, and what it leaves in doubt noticed."""

from __future__ import annotations

from typing import Any

from twiceproof.drive import Operation
from twiceproof.errors import StoreUnavailable
from twiceproof.records import Lost, Written


class Call:
    """`request` is what it needs done next; None: it has ended, with `value` or with `error`."""

    def __init__(self, operation: Operation[Any], invoked: int) -> None:
        self.invoked = invoked
        self.value: Any = None
        self.error: StoreUnavailable | None = None
        self.doubt = False  # a write of its may have landed unheard; its answer is about a later one
        self.wrote = False
        self._operation = operation
        self.request = None
        self._go_on(lambda: next(operation))

    def answer_request(self) -> None:
        """Have the request done, and go on to the next one."""
        try:
            answer = self.request.block()
        except Exception as error:  # noqa: BLE001 - the operation decides what it means
            self._go_on(lambda error=error: self._operation.throw(error))
            return
        self.doubt |= isinstance(answer, Lost)
        self.wrote |= isinstance(answer, Written)
        self._go_on(lambda: self._operation.send(answer))

    def run(self) -> Call:
        while self.request is not None:
            self.answer_request()
        return self

    @property
    def is_unsure(self) -> bool:
        """For one that ended without an answer: whether it may have changed anything."""
        return self.error is None or self.doubt or self.wrote or self.error.unsure

    def _go_on(self, move: Any) -> None:
        try:
            self.request = move()
        except StopIteration as end:
            self.request, self.value = None, end.value
        except StoreUnavailable as error:
            self.request, self.error = None, error
