"""An engine that kills its process at a named boundary: before a commit, before its answer, or after that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from tests.acceptance.children import die
from tests.acceptance.wrappers import Wrapped
from twiceproof.records import Batch, Write, Written

__all__ = ["AFTER", "BEFORE", "LANDED", "LATE", "POSITIONS", "Deadly", "Orders", "Point"]

BEFORE, LANDED, AFTER = POSITIONS = ("before it", "landed unheard", "after it")

LATE = "late"  # recorded instead of a space: how many batches of a zombie were accepted

Meant = Callable[[Write], bool]
Noted = Callable[[str, int], None]


class Point(Struct, frozen=True):
    """A boundary: the commit that has such a write in it, or a moment in the user's own work."""

    name: str
    meant: Meant | None = None  # None: a moment, which the scene passes by calling `Orders.pass_by`


class Orders(Struct):
    """The point at which this process is to die. Set before it is forked, or by itself."""

    point: Point | None = None
    position: str = ""
    nth: int = 0  # instead of a point: the n-th commit, whatever it is
    armed: bool = False  # it has passed the point and dies at the next thing it does
    stop: Callable[[], object] = die  # the zombie continues, much later
    late: bool = False  # its commits now were decided before it was stopped

    def pass_by(self, moment: str, position: str) -> None:
        """Called in a user's work: before an effect, and after it. Dies there, or when its record is to be sent."""
        if self.point is None or self.point.meant is not None or self.point.name != moment:
            return
        if self.position == position:
            self.halt()
        self.armed = (position, self.position) == (LANDED, AFTER)

    def halt(self) -> None:
        self.stop()
        self.point, self.armed, self.late = None, False, True

    def is_here(self, batches: Sequence[Batch]) -> bool:
        if self.nth:
            self.nth -= 1
            return self.nth == 0
        if self.point is None or self.point.meant is None:
            return False
        meant = self.point.meant
        return any(meant(write) for batch in batches for write in batch.writes)


class Deadly(Wrapped):
    """Kills its process at the ordered point. Passes each drawn fence to `noted`: they must only grow."""

    def __init__(self, inner: Any, orders: Orders, noted: Noted) -> None:
        super().__init__(inner)  # type: ignore[no-untyped-call]
        self._orders = orders
        self._noted = noted

    def commit(self, batches: Sequence[Batch]) -> Any:
        orders = self._orders
        if orders.armed:
            orders.halt()
        here = orders.is_here(batches)
        if here and orders.position == BEFORE:
            orders.halt()
        answers = self.inner.commit(batches)
        if orders.late:
            self._noted(LATE, sum(isinstance(answer, Written) for answer in answers))
            orders.late = here = False
        if here and orders.position == LANDED:
            die()
        orders.armed = here and orders.position == AFTER
        for batch, answer in zip(batches, answers, strict=True):
            if isinstance(answer, Written) and _draws(batch):
                self._noted(batch.space, answer.fence)
        return answers


def _draws(batch: Batch) -> bool:
    return any(getattr(write, "draw", False) for write in batch.writes)
