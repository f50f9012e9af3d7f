"""Plays the scenario, asks the person, counts the books."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from .. import App
from ..clock import Clock, system_clock
from ..flows.engine.ledger import STARTED, STEP_DONE, UNKNOWN
from ..flows.history.run_view import StepShape
from .processes import Book, DemoProcesses
from .scenario import LIMIT, SIDES, DemoPlan
from .services import ADDRESSES, INVOICES, MAILS

__all__ = [
    "Approved",
    "Count",
    "DemoReport",
    "DemoRun",
    "DemoSettled",
    "KnownStep",
    "Person",
    "Side",
    "count",
    "invoice_of",
    "large_orders_billed",
    "was_mailed",
]


class Count(Struct, frozen=True):
    """What one program did outside. Each extra invoice or mail counts."""

    invoices: int
    invoices_twice: int
    invoices_missing: int
    billed_too_much: int  # EUR
    mails: int
    mails_twice: int
    mails_missing: int
    addresses_old: int

    @property
    def flawless(self) -> bool:
        return not (
            self.invoices_twice or self.invoices_missing or self.mails_twice or self.mails_missing or self.addresses_old
        )


def count(place: Path, plan: DemoPlan, side: str) -> Count:
    invoices = Counter(line["order"] for line in _lines(place / INVOICES, side))
    mails = Counter(line["order"] for line in _lines(place / MAILS, side))
    return Count(
        invoices=invoices.total(),
        invoices_twice=_twice(invoices),
        invoices_missing=_missing(invoices, plan),
        billed_too_much=sum((invoices[order.id] - 1) * order.total for order in plan.orders if invoices[order.id]),
        mails=mails.total(),
        mails_twice=_twice(mails),
        mails_missing=_missing(mails, plan),
        addresses_old=_old_addresses(place, plan, side),
    )


def large_orders_billed(place: Path, side: str) -> int:
    return len({line["order"] for line in _lines(place / INVOICES, side) if line["total"] > LIMIT})


def invoice_of(place: Path, side: str, order: int) -> str | None:
    return next((line["invoice"] for line in _lines(place / INVOICES, side) if line["order"] == order), None)


def was_mailed(place: Path, side: str, order: int) -> bool:
    return any(line["order"] == order for line in _lines(place / MAILS, side))


def _lines(path: Path, side: str) -> list[dict[str, Any]]:
    return [line for line in Book.read(path) if line["side"] == side]


def _twice(found: Counter[int]) -> int:
    return sum(times - 1 for times in found.values())


def _missing(found: Counter[int], plan: DemoPlan) -> int:
    return sum(order.id not in found for order in plan.orders)


def _old_addresses(place: Path, plan: DemoPlan, side: str) -> int:
    """What was written last is what the accounting service has."""
    last = {line["order"]: line["version"] for line in _lines(place / ADDRESSES, side)}
    return sum(last.get(order.id, 0) != order.addresses for order in plan.orders)


SIDE = "twiceproof"
OPEN = ("held", "queued", "waiting")
MOST = 1_000
NOTE = "looked it up in the books outside"


class Approved(Struct, frozen=True):
    """An order that waited for a yes, and got it."""

    run: str
    order: int
    total: int


class KnownStep(Struct, frozen=True):
    """What the ledger knew of a step when the person looked."""

    name: str
    state: str
    known: str


class DemoSettled(Struct, frozen=True):
    """A run whose outcome nobody knew, and what a look at the outside told."""

    run: str
    order: int
    step: str
    verdict: str
    known: list[KnownStep]


class Person:
    def __init__(self, app: App, place: Path) -> None:
        self._app = app
        self._place = place

    def open_runs(self) -> int:
        """Those that go on by themselves: neither done, nor waiting for us."""
        ours = {(approval.flow, approval.key) for approval in self._app.approvals()}
        found = [run for state in OPEN for run in self._app.runs(state=state, limit=MOST)]
        return sum((run.flow, run.key) not in ours for run in found)

    def approve(self) -> Iterator[Approved]:
        for asked in self._app.approvals():
            self._app.decide(asked.id, True, by="you", shown=asked.digest, note="a customer of many years")
            yield Approved(f"{asked.flow}/{asked.key}", asked.shown["order"], asked.shown["total"])

    def settle(self) -> Iterator[DemoSettled]:
        for waiting in self._app.review():
            run = f"{waiting.flow}/{waiting.key}"
            whole = self._app.history(run)
            step = next(step for step in whole.steps if step.state in (STARTED, UNKNOWN))
            order: int = msgspec.json.decode(whole.input or b"{}")["order"]["order"]
            happened, result = self._look(step.name, order)
            if happened:
                self._app.settle_run(run, "happened", by="you", step=step.name, result=result, note=NOTE)
            else:
                self._app.settle_run(run, "did-not-happen", by="you", step=step.name, note=NOTE)
            known = [KnownStep(each.name, each.state, _known(each)) for each in whole.steps]
            yield DemoSettled(run, order, step.name, "happened" if happened else "did-not-happen", known)

    def _look(self, step: str, order: int) -> tuple[bool, Any]:
        """Into the mail server's log, or the accounting service's books."""
        if step == "make_invoice":
            invoice = invoice_of(self._place, SIDE, order)
            return invoice is not None, invoice
        return was_mailed(self._place, SIDE, order), None


def _known(step: StepShape) -> str:
    if step.state == STEP_DONE and step.result:
        return str(msgspec.json.decode(step.result))
    return step.reason


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


class DemoReport(Struct, frozen=True):
    plan: DemoPlan
    sides: dict[str, Side]
    approved: list[Approved]
    settled: list[DemoSettled]
    waiting: int
    seconds: float

    @property
    def ok(self) -> bool:
        ours = self.sides["twiceproof"]
        return ours.did.flawless and not (ours.billed_unasked or ours.given_up or self.waiting)


class DemoRun:
    """`messages`, then `approve`, then `settle`, then `report`: each shows how far it is."""

    def __init__(self, place: Path, ledger: str, plan: DemoPlan, *, clock: Clock = system_clock) -> None:
        self._place, self._plan, self._ledger, self._clock = place, plan, ledger, clock
        self._began = clock.monotonic()
        self._approved: list[Approved] = []
        self._settled: list[DemoSettled] = []
        self._unasked = dict.fromkeys(SIDES, 0)

    def __enter__(self) -> DemoRun:
        self._plan.save(self._place)
        self._app = App(self._ledger, tenant="default")
        self._person = Person(self._app, self._place)
        self._stage = DemoProcesses(self._place, self._ledger)
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

    def settle(self) -> list[DemoSettled]:
        """Also what came in later: a mail that is tried again may get no answer again."""
        while found := list(self._person.settle()):
            self._settled += found
            self._calm()
        return self._settled

    def report(self) -> DemoReport:
        stage = self._stage
        sides = {
            side: Side(
                deliveries=stage.shop[side]["sent"],
                repeats=stage.shop[side]["repeats"],
                given_up=stage.shop[side]["given_up"],
                kills=stage.kills[side],
                answers_lost=stage.lost[side],
                billed_unasked=self._unasked[side],
                did=count(self._place, self._plan, side),
            )
            for side in SIDES
        }
        waiting = len(self._app.review()) + len(self._app.approvals()) + self._person.open_runs()
        seconds = round(self._clock.monotonic() - self._began, 2)
        return DemoReport(self._plan, sides, self._approved, self._settled, waiting, seconds)

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
