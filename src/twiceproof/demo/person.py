"""The person whom Twiceproof asks: approves what waits for a yes, and finds out what no program can know."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from .. import App
from ..flows.entry import DONE, STARTED, UNKNOWN
from ..flows.history.run_shape import StepShape
from .count import invoice_of, was_mailed

__all__ = ["Approved", "KnownStep", "Person", "Settled"]

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


class Settled(Struct, frozen=True):
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

    def settle(self) -> Iterator[Settled]:
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
            yield Settled(run, order, step.name, "happened" if happened else "did-not-happen", known)

    def _look(self, step: str, order: int) -> tuple[bool, Any]:
        """Into the mail server's log, or the accounting service's books."""
        if step == "make_invoice":
            invoice = invoice_of(self._place, SIDE, order)
            return invoice is not None, invoice
        return was_mailed(self._place, SIDE, order), None


def _known(step: StepShape) -> str:
    if step.state == DONE and step.result:
        return str(msgspec.json.decode(step.result))
    return step.reason
