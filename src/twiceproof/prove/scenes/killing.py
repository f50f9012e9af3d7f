"""A process' own line to the store. When the process is killed it is cut for good."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from ...errors import StoreUnavailable
from ...records import Address, Batch, Due, Found, Outcome, Page
from ...stores.base import Again, Engine
from ..faulty_engine import FaultyEngine

__all__ = ["Killed", "KillingEngine"]


class Killed(StoreUnavailable):
    """What a dead process would say, if it could."""

    def __init__(self) -> None:
        super().__init__("This process was killed by the play; nothing it does reaches the store.")


class KillingEngine(FaultyEngine):
    """Tells `reached` of every write, before it and after it has landed; that may kill the process."""

    def __init__(self, inner: Engine, reached: Callable[[bool], None], is_dead: Callable[[], bool]) -> None:
        super().__init__(inner)
        self._reached = reached
        self._is_dead = is_dead

    def commit(self, batches: Sequence[Batch]) -> Sequence[Outcome | Again | Exception]:
        self._live()
        self._reached(False)
        answers = super().commit(batches)
        self._reached(True)
        return answers

    def fetch(self, addresses: Sequence[Address]) -> Sequence[Found]:
        self._live()
        return super().fetch(addresses)

    def scan(self, kind: str, space: str | None, state: str | None, after: str | None, limit: int) -> Page:
        self._live()
        return super().scan(kind, space, state, after, limit)

    def due(self, kind: str, queues: Collection[str], limit: int, hide: float) -> Due:
        self._live()
        return super().due(kind, queues, limit, hide)

    def _live(self) -> None:
        if self._is_dead():
            raise Killed()
