"""Engines for races: one that lets another caller act in the middle of an operation, and one that ignores versions."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from msgspec import Struct, structs

from tests.acceptance.wrappers import Wrapped
from twiceproof.records import Remove, Replace

__all__ = ["Interrupted", "Moment", "VersionBlind", "moments"]


class Moment(Struct, frozen=True):
    """A moment in an operation: before or after its n-th call of this kind."""

    kind: str
    nth: int
    after: bool

    def __str__(self) -> str:
        return f"{'after' if self.after else 'before'} {self.kind} {self.nth}"


def moments(kinds: tuple[str, ...], nth: int) -> list[Moment]:
    return [Moment(kind, at, after) for at in range(1, nth + 1) for kind in kinds for after in (False, True)]


class Interrupted(Wrapped):
    """Before or after its n-th call of a kind, something else happens from its beginning to its end."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self._left = 0
        self._kind = ""
        self._after = False
        self._act: Callable[[], object] | None = None

    def interrupt(self, moment: Moment, act: Callable[[], object]) -> None:
        self._kind, self._left, self._after, self._act = moment.kind, moment.nth, moment.after, act

    def finish(self) -> bool:
        """Return whether the moment came. If not, the interruption happens now, after everything else."""
        act, self._act = self._act, None
        if act is not None:
            apart(act)
        return act is None

    def _around(self, kind: str, *given: Any) -> Any:
        call = getattr(self.inner, kind)
        self._left -= kind == self._kind
        act = self._act if kind == self._kind and self._left == 0 else None
        if act is None:
            return call(*given)
        self._act = None
        if not self._after:
            apart(act)
        answer = call(*given)
        if self._after:
            apart(act)
        return answer

    def commit(self, batches: Any) -> Any:
        return self._around("commit", batches)

    def fetch(self, addresses: Any) -> Any:
        return self._around("fetch", addresses)

    def scan(self, *given: Any) -> Any:
        return self._around("scan", *given)

    def due(self, *given: Any) -> Any:
        return self._around("due", *given)

    def beside(self, *given: Any) -> Any:
        return self._around("beside", *given)


def apart(act: Callable[[], object]) -> None:
    """Run on a thread of its own, so that it is not part of what it interrupts."""
    thread = threading.Thread(target=act)
    thread.start()
    thread.join()


class VersionBlind(Wrapped):
    """The protection taken away: removes and rewrites succeed whatever happened to the record meanwhile."""

    def commit(self, batches: Any) -> Any:
        return self.inner.commit([structs.replace(batch, writes=self._blind(batch)) for batch in batches])

    def _blind(self, batch: Any) -> list[Any]:
        return [self._seen_now(write) if isinstance(write, Remove | Replace) else write for write in batch.writes]

    def _seen_now(self, write: Any) -> Any:
        found = self.inner.fetch([write.at])[0].record if write.version else None
        return structs.replace(write, version=found.version) if found else write
