"""The evening: all is started, the shop sends in bad weather, a person is asked, and the books are counted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from .. import App
from ..clock import Clock, system_clock
from .count import Count, count, large_orders_billed
from .person import Approved, Person, Settled
from .plan import SIDES, Plan
from .stage import Stage

__all__ = ["Evening", "Report", "Side"]

LOOK_EVERY = 0.1
PATIENCE = 60.0  # seconds for what is under way to come to its end

Show = Callable[[int, int, str], None]


class Side(Struct, frozen=True):
    """What befell one program, and what it did."""

    deliveries: int
    repeats: int  # answered as known, without doing anything
    given_up: int  # messages that the shop stopped sending without ever hearing a yes
    kills: int
    answers_lost: int
    billed_unasked: int
    did: Count


class Report(Struct, frozen=True):
    plan: Plan
    sides: dict[str, Side]
    approved: list[Approved]
    settled: list[Settled]
    waiting: int
    seconds: float

    @property
    def ok(self) -> bool:
        ours = self.sides["twiceproof"]
        return ours.did.flawless and not (ours.billed_unasked or ours.given_up or self.waiting)


class Evening:
    """`messages`, then `approve`, then `settle`, then `report`: each shows how far it is."""

    def __init__(self, place: Path, ledger: str, plan: Plan, *, clock: Clock = system_clock) -> None:
        self._place, self._plan, self._ledger, self._clock = place, plan, ledger, clock
        self._began = clock.monotonic()
        self._approved: list[Approved] = []
        self._settled: list[Settled] = []
        self._unasked = dict.fromkeys(SIDES, 0)

    def __enter__(self) -> Evening:
        self._plan.save(self._place)
        self._app = App(self._ledger, tenant="default")
        self._person = Person(self._app, self._place)
        self._stage = Stage(self._place, self._ledger)
        return self

    def __exit__(self, *error: object) -> None:
        try:
            self._stage.__exit__(*error)  # type: ignore[arg-type]
        finally:
            self._app.close()

    def messages(self, show: Show) -> None:
        """Until the shop has had a yes for everything, and what it started has come to its end."""
        total = len(SIDES) * len(self._plan.deliveries)
        show(0, total, "(everything is being started)")
        self._stage.open()
        while not self._stage.finished:
            self._stage.hear(LOOK_EVERY)
            self._show(show)
        show(total, total, "(taking up again what was cut off)")
        self._calm()
        self._unasked = {side: large_orders_billed(self._place, side) for side in SIDES}

    def approve(self) -> list[Approved]:
        self._approved = list(self._person.approve())
        self._calm()
        return self._approved

    def settle(self) -> list[Settled]:
        """Also what came in later: a mail that is tried again may get no answer again."""
        while found := list(self._person.settle()):
            self._settled += found
            self._calm()
        return self._settled

    def report(self) -> Report:
        stage = self._stage
        sides = {
            side: Side(
                deliveries=stage.shop[side]["sent"], repeats=stage.shop[side]["repeats"],
                given_up=stage.shop[side]["given_up"], kills=stage.kills[side], answers_lost=stage.lost[side],
                billed_unasked=self._unasked[side], did=count(self._place, self._plan, side),
            )
            for side in SIDES
        }  # fmt: skip
        waiting = len(self._app.review()) + len(self._app.approvals()) + self._person.open_runs()
        seconds = round(self._clock.monotonic() - self._began, 2)
        return Report(self._plan, sides, self._approved, self._settled, waiting, seconds)

    def _show(self, show: Show) -> None:
        shop, stage = self._stage.shop, self._stage
        total = len(SIDES) * len(self._plan.deliveries)
        done = total - sum(side["open"] for side in shop.values()) if shop else 0
        show(done, total, f"({stage.kills.total()} programs killed, {stage.lost.total()} answers lost)")

    def _calm(self) -> None:
        until = self._clock.monotonic() + PATIENCE
        while self._person.open_runs():
            self._stage.hear(LOOK_EVERY)
            if self._clock.monotonic() > until:
                raise RuntimeError(f"the demo's runs have not come to their end within {PATIENCE:g} s")
