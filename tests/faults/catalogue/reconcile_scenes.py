"""Scenes of F22 with a shop, its books and its ledger: worlds of full size, random surplus, and killed runs."""

from __future__ import annotations

import contextlib
import random

from tests.faults.finding import Finding
from tests.faults.trial import Trial
from tests.unit.flows.stage import Died, Stage
from tests.unit.reconcile.shop import Shop, surplus_run, wrong_in_seeded_world, wrong_symptoms
from twiceproof import TwiceproofError
from twiceproof.reconcile import Cap

ROWS = 100_000
WORLDS = 1_000
EACH = 50  # worlds that one ledger sees
KILLS = 500
MOST_COMMITS = 40


def seeded_worlds(trial: Trial, finding: Finding) -> None:
    """Fifty discrepancies of each kind among many rows: all are found, and nothing else."""
    rows = trial.times(ROWS, 2_000)
    for name, play in (("differences", wrong_in_seeded_world), ("symptoms", wrong_symptoms)):
        with contextlib.closing(Stage()) as stage:
            wrong = play(Shop(stage), rows, trial.dice("seeded", name))
        if wrong:
            finding.violated(f"seed {trial.seed}, {name} among {rows} rows: {len(wrong)} wrong, such as {wrong[0]}")
    finding.reach("rows with 50 planted of each kind", rows, rows)


def random_worlds(trial: Trial, finding: Finding) -> None:
    """Surplus invoices anywhere: the recorded one stays, and each other one is voided once."""
    worlds = trial.times(WORLDS, EACH)
    for first in range(0, worlds, EACH):
        with contextlib.closing(Stage()) as stage:
            shop, dice = Shop(stage), trial.dice("worlds", first)
            shop.options["cap"] = Cap(None, None)
            app = shop.process()
            shop.sell(app, range(1, 31))
            recorded = {row["id"] for row in shop.books}
            for number in range(first, first + EACH):
                surplus_run(shop, app, dice)
                if {row["id"] for row in shop.books} != recorded or set(shop.voided.values()) != {1}:
                    finding.violated(f"seed {trial.seed}, world {number}: a recorded one is gone, or voided twice")
                    break
    finding.reach("worlds with surplus", worlds, worlds)


def killed_runs(trial: Trial, finding: Finding) -> None:
    """A run that dies at a commit and is continued finds and does the same as an uninterrupted one."""
    kills = trial.times(KILLS, 20)
    for number in range(kills):
        dice = trial.dice("killed", number)
        with contextlib.closing(Stage()) as stage:
            for told in _killed(Shop(stage), dice, finding):
                finding.violated(f"seed {trial.seed}, kill {number}: {told}")
    finding.reach("runs killed and taken up", kills, kills)


def _killed(shop: Shop, dice: random.Random, finding: Finding) -> list[str]:
    shop.options["undo"] = "safe"
    shop.sell(shop.process(), range(1, 41))
    shop.invoice(7, id_="surplus")
    shop.order(500)
    tick = shop.tick()
    dying = shop.process(dice.randint(1, MOST_COMMITS), landed=dice.random() < 0.5)
    try:
        shop.run(dying, tick)
    except (Died, TwiceproofError):
        finding.hit("killed at a commit of a run")
    shop.stage.lapse()
    app = shop.process()
    report = shop.run(app, tick)
    app.worker().run(until_idle=True)
    found = sorted((one.check.partition(":")[0], one.key) for one in report.findings)
    invoices = sum(row["reference"] == 500 for row in shop.books)
    told = [] if found == [("duplicates", "order:7"), ("missing", "order:500")] else [f"it found {found}"]
    if shop.voided != {"surplus": 1} or invoices != 1:
        told.append(f"voided {dict(shop.voided)}, {invoices} invoices for the missing order")
    return told
