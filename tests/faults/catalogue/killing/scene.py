"""A scene: one kind of work, a process that is killed in it, others that continue, and the conditions at the end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct

from tests.acceptance.places import Place
from tests.faults.catalogue.killing.deadly import BEFORE, LANDED, Orders, Point
from tests.faults.catalogue.killing.outside import Outside
from twiceproof import App, Retry

__all__ = ["LEASE", "QUICK", "Case", "Scene", "Seen"]

LEASE = 600.0  # it lapses only when a round says so, however slow the machine
QUICK = Retry(attempts=9, first=0.001)


class Case(Struct, frozen=True):
    """One kill: the point, and the order."""

    scene: str
    point: str
    position: str
    order: int
    again: int = 0  # the recovery is killed as well, at its n-th commit
    again_at: str = ""


class Seen(Struct, frozen=True):
    """What is known of a case from outside: effects in order, the answers to the killed process, how it ended."""

    effects: Sequence[Any]
    told: Sequence[Any]  # at most one: its answer, if its work was acknowledged before it died
    ended: Any


class Scene:
    """Everything is declared before the fork; the processes only act."""

    name = ""
    points: tuple[Point, ...] = ()
    stores: tuple[str, ...] = ("sqlite", "postgres", "valkey")
    may_recover_twice = True  # with a lease's time in between
    result_at: int | None = 0  # the part of `recover`'s answer that must be the same when it is called again

    def __init__(self, app: App, outside: Outside, orders: Orders, place: Place) -> None:
        self.app = app
        self.outside = outside
        self.orders = orders
        self.place = place
        self.declare(app)

    def declare(self, app: App) -> None:
        """Flows and steps."""

    def prepare(self, case: Case) -> None:
        """Do what comes before the killed process; a lease's time passes between this and `act`."""

    def act(self, case: Case) -> Any:
        """The work of the killed process. Its answer is recorded outside, and counts as acknowledged from then on."""
        raise NotImplementedError

    def recover(self, case: Case) -> Any:
        """Finish the work, in another process, after a lease's time. Called twice: the second time changes nothing."""
        raise NotImplementedError

    def judge(self, case: Case, seen: Seen) -> Iterator[str]:
        """Return each broken promise."""
        raise NotImplementedError

    def result(self, ended: Any) -> Any:
        return ended[self.result_at] if isinstance(ended, list) and self.result_at is not None else ended

    # -- for scenes ------------------------------------------------------------------------------

    def do(self, order: int, what: str, moment: str = "") -> None:
        """Perform an effect. A process may be ordered to die before it, right after it, or before it is recorded."""
        self.orders.pass_by(moment, BEFORE)
        self.outside.note(self.name, order, "effect", what)
        self.orders.pass_by(moment, LANDED)

    def effects(self, order: int) -> list[str]:
        return list(self.outside.read("effect")[self.name, order])
