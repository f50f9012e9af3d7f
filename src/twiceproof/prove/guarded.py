"""A function under `@app.once`, as the prover sees it: a flow whose only step is the function itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..claims.claim import FAILED, claim_of, run_id
from ..claims.once import Once
from ..claims.results import ResultType
from ..drive import Operation
from ..errors import Misuse
from ..flows.handle import Handle
from ..flows.inputs import Inputs
from ..flows.parts import Parts

__all__ = ["Guarded"]


class Guarded:
    """What a play asks of a flow. Nothing waits in it, so nothing can be started and left."""

    def __init__(self, once: Once, parts: Parts | None) -> None:
        self.once = once
        self.parts: Any = parts  # None: its app was not found, which is told before anything is played
        self.name = once.policy.operation
        self.policy = once.policy
        self.asking = once.asking
        self.inputs = Inputs(once.function, self.name)
        self._results = ResultType(once.function, self.name)

    @property
    def function(self) -> Callable[..., Any]:
        return self.once.function

    def key(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        return self.once.key(args, kwargs)

    def handle(self, key: str) -> Handle:
        at = self.once.asking.address(key)
        return GuardedHandle(self.parts, at, run_id(at.space), self._results)

    def start(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Operation[Handle]:
        raise Misuse(f"{self.name} is under @app.once, where nothing waits; leave --callback and --approve out.")


class GuardedHandle(Handle):
    """A failure that may be tried again is no end: whoever sent the event sends it once more."""

    def state(self) -> Operation[str]:
        state = yield from super().state()
        if state != FAILED:
            return state
        record = (yield from self.parts.store.read(self.at)).record
        fault = claim_of(record).fault if record is not None else None
        return "retryable" if fault is not None and fault.retryable else state
