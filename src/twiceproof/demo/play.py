"""Runs the demo: sends the messages, decides what needs a person, and counts what the services recorded."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from .. import App
from ..clock import Clock, system_clock
from ..effects.webhook_client import signed_headers
from ..flows.engine.ledger import STARTED, STEP_DONE, UNKNOWN
from ..flows.history.run_view import StepShape
from .processes import DemoProcesses, EffectLog
from .scenario import LIMIT, SIDES, DemoPlan, Order
from .services import ADDRESSES, INVOICES, MAILS

__all__ = [
    "Approved",
    "Count",
    "DemoReport",
    "DemoRun",
    "DemoSettled",
    "DemoStep",
    "LastOrder",
    "Person",
    "Side",
    "count",
    "invoice_of",
    "large_orders_billed",
    "one_order_more",
    "was_mailed",
]


class Count(Struct, frozen=True):
    """The effects of one program, as the services recorded them. Each extra invoice or mail is a duplicate."""

    invoices: int
    duplicate_invoices: int
    missing_invoices: int
    overbilled_eur: int  # EUR
    mails: int
    duplicate_mails: int
    missing_mails: int
    stale_addresses: int

    @property
    def flawless(self) -> bool:
        return not (
            self.duplicate_invoices
            or self.missing_invoices
            or self.duplicate_mails
            or self.missing_mails
            or self.stale_addresses
        )


def count(place: Path, plan: DemoPlan, side: str) -> Count:
    invoices = Counter(line["order"] for line in _lines(place / INVOICES, side))
    mails = Counter(line["order"] for line in _lines(place / MAILS, side))
    return Count(
        invoices=invoices.total(),
        duplicate_invoices=_twice(invoices),
        missing_invoices=_missing(invoices, plan),
        overbilled_eur=sum((invoices[order.id] - 1) * order.total for order in plan.orders if invoices[order.id]),
        mails=mails.total(),
        duplicate_mails=_twice(mails),
        missing_mails=_missing(mails, plan),
        stale_addresses=_old_addresses(place, plan, side),
    )


def large_orders_billed(place: Path, side: str) -> int:
    return len({line["order"] for line in _lines(place / INVOICES, side) if line["total"] > LIMIT})


def invoice_of(place: Path, side: str, order: int) -> str | None:
    return next((line["invoice"] for line in _lines(place / INVOICES, side) if line["order"] == order), None)


def was_mailed(place: Path, side: str, order: int) -> bool:
    return any(line["order"] == order for line in _lines(place / MAILS, side))


def _lines(path: Path, side: str) -> list[dict[str, Any]]:
    return [line for line in EffectLog.read(path) if line["side"] == side]


def _twice(found: Counter[int]) -> int:
    return sum(times - 1 for times in found.values())


def _missing(found: Counter[int], plan: DemoPlan) -> int:
    return sum(order.id not in found for order in plan.orders)


def _old_addresses(place: Path, plan: DemoPlan, side: str) -> int:
    """Count orders whose last recorded address is not the newest one."""
    last = {line["order"]: line["version"] for line in _lines(place / ADDRESSES, side)}
    return sum(last.get(order.id, 0) != order.addresses for order in plan.orders)


SIDE = "twiceproof"
OPEN = ("held", "queued", "waiting")
MOST = 1_000
NOTE = "looked it up in the records of the service"


class Approved(Struct, frozen=True):
    """An order that was approved."""

    run: str
    order: int
    total: int


class DemoStep(Struct, frozen=True):
    """A step of a run in review: its state, and its result or the reason for the review."""

    name: str
    state: str
    detail: str


class DemoSettled(Struct, frozen=True):
    """A run whose outcome was unknown, and the verdict that the records of the services gave."""

    run: str
    order: int
    step: str
    verdict: str
    steps: list[DemoStep]


class Person:
    """Does what a person would do: approves large orders, and settles runs in review."""

    def __init__(self, app: App, place: Path) -> None:
        self._app = app
        self._place = place

    def open_runs(self) -> int:
        """Count the runs that continue by themselves: neither ended, nor waiting for an approval."""
        pending = {(approval.flow, approval.key) for approval in self._app.approvals()}
        found = [run for state in OPEN for run in self._app.runs(state=state, limit=MOST)]
        return sum((run.flow, run.key) not in pending for run in found)

    def approve(self) -> Iterator[Approved]:
        for pending in self._app.approvals():
            self._app.decide(pending.id, True, by="you", shown=pending.digest, note="a customer of many years")
            yield Approved(f"{pending.flow}/{pending.key}", pending.shown["order"], pending.shown["total"])

    def settle(self) -> Iterator[DemoSettled]:
        for reviewed in self._app.review():
            run = f"{reviewed.flow}/{reviewed.key}"
            whole = self._app.history(run)
            step = next(step for step in whole.steps if step.state in (STARTED, UNKNOWN))
            order: int = msgspec.json.decode(whole.input or b"{}")["order"]["order"]
            happened, result = self._look(step.name, order)
            if happened:
                self._app.settle_run(run, "happened", by="you", step=step.name, result=result, note=NOTE)
            else:
                self._app.settle_run(run, "did-not-happen", by="you", step=step.name, note=NOTE)
            steps = [DemoStep(each.name, each.state, _detail(each)) for each in whole.steps]
            yield DemoSettled(run, order, step.name, "happened" if happened else "did-not-happen", steps)

    def _look(self, step: str, order: int) -> tuple[bool, Any]:
        """Look up the effect in the records of the mail server or the accounting service."""
        if step == "make_invoice":
            invoice = invoice_of(self._place, SIDE, order)
            return invoice is not None, invoice
        return was_mailed(self._place, SIDE, order), None


def _detail(step: StepShape) -> str:
    if step.state == STEP_DONE and step.result:
        return str(msgspec.json.decode(step.result))
    return step.reason


LOOK_EVERY = 0.1
TIMEOUT = 60.0  # seconds for unfinished runs to end

Show = Callable[[int, int, str], None]


class Side(Struct, frozen=True):
    """The messages and faults that one program received, and its effects."""

    deliveries: int
    recognised_duplicates: int  # acknowledged as duplicates, without any work
    undelivered: int  # messages that the shop gave up on, without an acknowledgement
    kills: int
    lost_responses: int
    billed_without_approval: int
    did: Count


class DemoReport(Struct, frozen=True):
    plan: DemoPlan
    sides: dict[str, Side]
    approved: list[Approved]
    settled: list[DemoSettled]
    unresolved: int
    seconds: float

    @property
    def ok(self) -> bool:
        ours = self.sides["twiceproof"]
        return ours.did.flawless and not (ours.billed_without_approval or ours.undelivered or self.unresolved)


class DemoRun:
    """One run of the demo: call `messages`, then `approve`, then `settle`, then `report`."""

    def __init__(self, place: Path, ledger: str, plan: DemoPlan, *, clock: Clock = system_clock) -> None:
        self._place, self._plan, self._ledger, self._clock = place, plan, ledger, clock
        self._began = clock.monotonic()
        self._approved: list[Approved] = []
        self._settled: list[DemoSettled] = []
        self._billed_without_approval = dict.fromkeys(SIDES, 0)

    def __enter__(self) -> DemoRun:
        self._plan.save(self._place)
        self._app = App(self._ledger, tenant="default")
        self._person = Person(self._app, self._place)
        self._processes = DemoProcesses(self._place, self._ledger)
        return self

    def __exit__(self, *error: object) -> None:
        try:
            self._processes.__exit__(*error)  # type: ignore[arg-type]
        finally:
            self._app.close()

    def messages(self, show: Show) -> None:
        """Return when every message is acknowledged, and the runs that it started have ended."""
        total = len(SIDES) * len(self._plan.deliveries)
        show(0, total, "(starting processes)")
        self._processes.open()
        while not self._processes.finished:
            self._processes.receive(LOOK_EVERY)
            self._show(show)
        show(total, total, "(recovering interrupted runs)")
        self._wait_until_idle()
        self._billed_without_approval = {side: large_orders_billed(self._place, side) for side in SIDES}

    def approve(self) -> list[Approved]:
        self._approved = list(self._person.approve())
        self._wait_until_idle()
        return self._approved

    def settle(self) -> list[DemoSettled]:
        """Settle until no run is in review: a mail that is sent again may lose its response again."""
        while found := list(self._person.settle()):
            self._settled += found
            self._wait_until_idle()
        return self._settled

    def report(self) -> DemoReport:
        processes = self._processes
        sides = {
            side: Side(
                deliveries=processes.shop[side]["sent"],
                recognised_duplicates=processes.shop[side]["duplicates"],
                undelivered=processes.shop[side]["undelivered"],
                kills=processes.kills[side],
                lost_responses=processes.lost[side],
                billed_without_approval=self._billed_without_approval[side],
                did=count(self._place, self._plan, side),
            )
            for side in SIDES
        }
        unresolved = len(self._app.review()) + len(self._app.approvals()) + self._person.open_runs()
        seconds = round(self._clock.monotonic() - self._began, 2)
        return DemoReport(self._plan, sides, self._approved, self._settled, unresolved, seconds)

    def _show(self, show: Show) -> None:
        shop, processes = self._processes.shop, self._processes
        total = len(SIDES) * len(self._plan.deliveries)
        done = total - sum(side["open"] for side in shop.values()) if shop else 0
        show(done, total, f"({processes.kills.total()} processes killed, {processes.lost.total()} responses lost)")

    def _wait_until_idle(self) -> None:
        until = self._clock.monotonic() + TIMEOUT
        while self._person.open_runs():
            self._processes.receive(LOOK_EVERY)
            if self._clock.monotonic() > until:
                raise RuntimeError(f"the runs of the demo have not ended within {TIMEOUT:g} s")


# -- afterwards, with `--open`: one order more, whose mail server does not answer. A person settles it --

FOLDER = "afterwards"
TOTAL = 249  # EUR
DELIVERIES = 3  # of one event: the shop sends it again, as shops do


class LastOrder(Struct, frozen=True):
    """An order that gets stuck. `log`: where the mail server records what it took."""

    number: int
    log: Path
    environment: Mapping[str, str]

    def deliver(self, app: App) -> None:
        """Deliver it as the shop does. A worker carries it out."""
        data = {"order": self.number, "total": TOTAL, "mail": f"customer{self.number}@example.org"}
        body = json.dumps(data).encode()
        for _ in range(DELIVERIES):
            secret = self.environment["DEMO_SECRET"]
            headers = signed_headers(f"evt_{self.number}_placed", time.time(), body, [secret])
            app.receive("orders", body, [("content-type", "application/json"), *headers.items()])


@contextmanager
def one_order_more(place: Path, ledger: str, plan: DemoPlan) -> Iterator[LastOrder]:
    """Start the services again, beside the ledger. The mail server takes the next order's mail, and does not answer.

    What they record is in a folder of its own: the comparison is over, and its figures stay as they are.
    """
    number = len(plan.orders) + 1
    folder = place / FOLDER
    folder.mkdir()
    DemoPlan(plan.seed, [Order(number, TOTAL)], [], {}, {number: "lost"}).save(folder)
    with DemoProcesses(folder, ledger) as processes:
        environment = processes.open_services()
        os.environ |= environment  # the app reads where its services are when it is imported
        yield LastOrder(number, folder / MAILS, environment)
