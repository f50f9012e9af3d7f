"""F23: a rebuild of the ledger is killed at one of its writes, applied again, and old events are redelivered.

The ledger lacks a part of what the source of truth has: a backup was restored, or the ledger was lost. The process
dies, from the store's view, before or after a commit; the next one applies the same plan.
"""

from __future__ import annotations

import random
from typing import Any

from tests.faults.catalogue.lost_ledgers import lost_ledgers
from tests.faults.finding import Finding
from tests.faults.planted import plant_ordered
from tests.faults.trial import Trial
from tests.unit.flows.stage import Died, Stage
from twiceproof import App, NeedsReview, TwiceproofError
from twiceproof.reconcile.rebuild_plan import RebuildPlan

TITLE = "a rebuild killed and applied again"
RUNS = 500
ORDERS = 12


class Shop:
    """Invoices in another system, counted there, and a flow that makes them."""

    def __init__(self) -> None:
        self.stage = Stage()
        self.invoices: dict[int, list[str]] = {}
        self.loses: set[int] = set()

    def process(self, at: int | None = None, *, landed: bool = False) -> tuple[App, Any]:
        app = self.stage.process(at, landed=landed)

        @app.step(repeat="never", external="invoice:{result[id]}")
        def invoice(order: int) -> dict[str, str]:
            made = self.invoices.setdefault(order, [])
            made.append(f"inv-{order}-{len(made) + 1}")
            if order in self.loses:
                raise TimeoutError("no answer")
            return {"id": made[-1]}

        @app.flow(key="order:{order}", name="sync")
        def sync(order: int) -> str:
            return str(invoice(order)["id"])

        return app, sync

    def rows(self) -> list[dict[str, Any]]:
        return [{"reference": order, "id": made[0]} for order, made in self.invoices.items()]

    def plan(self, app: App, sync: Any) -> RebuildPlan:
        steps = {"invoice": lambda row: {"id": row["id"]}}
        return app.rebuild(sync, self.rows(), key="order:{reference}", steps=steps, result=lambda row: row["id"])


def run(trial: Trial, finding: Finding) -> None:
    plant_ordered()
    runs = trial.times(RUNS, 20)
    for nth in range(runs):
        for complaint in one(trial.dice("rebuild", nth), finding):
            finding.violated(f"seed {trial.seed}, run {nth}: {complaint}")
    finding.reach("rebuilds", runs, runs)
    lost_ledgers(trial, finding)
    control(finding)


def one(dice: random.Random, finding: Finding) -> list[str]:
    shop = Shop()
    try:
        recorded = _history(shop, dice)
        _applied(shop, dice, finding)
        return _wrong(shop, recorded)
    finally:
        shop.stage.close()


def _history(shop: Shop, dice: random.Random) -> dict[int, str]:
    """Some orders are in the ledger, some of these with an unknown outcome, or with another result than in the source;
    the others only in the source."""
    _, sync = shop.process()
    results = {}
    for order in range(ORDERS):
        kind = dice.choice(["known", "unknown", "lacking", "contradicted"])
        if kind == "lacking":
            shop.invoices[order] = [f"old-{order}"]
        elif kind in ("known", "contradicted"):
            results[order] = sync(order)
            if kind == "contradicted":
                shop.invoices[order] = [f"other-{order}"]
        else:
            shop.loses.add(order)
            try:
                sync(order)
            except NeedsReview:
                shop.loses.discard(order)
    return results


def _applied(shop: Shop, dice: random.Random, finding: Finding) -> None:
    """Apply one plan in processes that are killed, and finally in one that is not."""
    app, sync = shop.process()
    plan = shop.plan(app, sync)
    for at in (dice.randint(1, 12), dice.randint(1, 12), None):
        app, sync = shop.process(at, landed=dice.random() < 0.5)
        try:
            app.apply_rebuild(plan)
        except Died:
            finding.hit("killed at a write of the rebuild")
            shop.stage.lapse()


def _wrong(shop: Shop, recorded: dict[int, str]) -> list[str]:
    """Redeliver every event. Nothing may be done again, and no recorded result may have changed."""
    app, sync = shop.process()
    told = []
    for order in range(ORDERS):
        result = _redelivered(sync, order)
        if order in recorded:
            if recorded[order] != result:
                told.append(f"the recorded result of order {order} changed to {result!r}")
        elif result != shop.invoices[order][0]:
            told.append(f"order {order} has {result!r}, and the source {shop.invoices[order][0]!r}")
    told += [f"{len(made)} invoices for order {order}" for order, made in shop.invoices.items() if len(made) > 1]
    differ = sum(recorded.get(order, made[0]) != made[0] for order, made in shop.invoices.items())
    left = shop.plan(app, sync).counts
    if left != {name: count for name, count in (("differs", differ), ("unchanged", ORDERS - differ)) if count}:
        told.append(f"source and ledger still disagree: {left}")
    if len(app.findings(limit=1_000)) != differ:
        told.append(f"{len(app.findings(limit=1_000))} findings of {differ} contradictions")
    return told


def _redelivered(sync: Any, order: int) -> str:
    try:
        return str(sync(order))
    except TwiceproofError as error:
        return f"no result: {error}"


def control(finding: Finding) -> None:
    """Without the rebuild, what the ledger lacks is done again."""
    shop = Shop()
    shop.invoices[1] = ["old-1"]
    _, sync = shop.process()
    sync(1)
    again = len(shop.invoices[1])
    shop.stage.close()
    finding.control("the rebuild", f"{again} invoices for one order" if again > 1 else "")
