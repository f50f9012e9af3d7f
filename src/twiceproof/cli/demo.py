"""`twiceproof demo`: orders delivered many times, workers killed in mid-work, every order shipped once."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import click

from .. import App
from ..clock import system_clock
from ..errors import Misuse
from .demo_crew import Crew
from .demo_plan import PLACES, Plan, make_plan
from .demo_run import Run
from .demo_worker import TENANT
from .demo_world import World
from .failures import NEGATIVE, OK
from .ledger import sqlite_url
from .output import show_json, show_table, show_text
from .progress import Progress
from .shell import program, quoted
from .target import Target, json_option

__all__ = ["demo"]

WORKERS = 4
LEDGER, BOOK = "twiceproof.db", "parcels.jsonl"

EPILOG = """\b
Examples:
  twiceproof demo
  twiceproof demo --orders 50 --seed 7 --json
Exit codes: 0 every order was shipped once, 1 one was shipped twice or not at all.
"""


@click.command(epilog=EPILOG)
@click.option("--orders", type=click.IntRange(1, 100_000), default=200, show_default=True, help="How many orders.")
@click.option("--seed", type=int, default=1, show_default=True, help="Draws the deliveries and the kills.")
@click.option(
    "--dir",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where the ledger and the parcels are written. Default: a temporary directory.",
)
@click.option("--keep/--remove", default=True, show_default=True, help="Whether to keep them afterwards.")
@json_option
@click.pass_context
def demo(ctx: click.Context, orders: int, seed: int, folder: Path | None, keep: bool) -> None:
    """See it work: many deliveries, killed workers.

    Each order is delivered 1 to 8 times to 4 workers, some of which are killed in mid-work. Shipping an order
    writes a line to a file outside the ledger. Afterwards that file is counted, not the ledger.
    """
    target = ctx.ensure_object(Target)
    place = _place(folder)
    try:
        report = run_demo(place, orders, seed, quiet=target.json)
    finally:
        if not keep:
            _remove(place, folder)
    report["ledger"] = sqlite_url(place / LEDGER) if keep else None
    if target.json:
        show_json(report)
    else:
        _show(report)
    ctx.exit(OK if report["ok"] else NEGATIVE)


def run_demo(place: Path, orders: int, seed: int, *, quiet: bool = True) -> dict[str, Any]:
    began = system_clock.monotonic()
    store, world, plan = sqlite_url(place / LEDGER), World(place / BOOK), make_plan(orders, seed)
    with (
        App(store, tenant=TENANT) as app,
        Crew(WORKERS, store, str(world.path)) as crew,
        Progress("deliveries", quiet=quiet) as progress,
    ):
        run = Run(app, crew, world, plan)
        while run.step():
            progress.show(run.delivered, run.delivered + run.open, f"({run.killed.total()} workers killed)")
    return _report(run, plan, world, orders, seed, system_clock.monotonic() - began)


def _place(folder: Path | None) -> Path:
    if folder is None:
        return Path(tempfile.mkdtemp(prefix="twiceproof-demo-"))
    folder.mkdir(parents=True, exist_ok=True)
    for name in (LEDGER, BOOK):
        if (folder / name).exists():
            # An earlier run's claims would answer this one's deliveries, and nothing would be shipped.
            raise Misuse(f"{folder / name} is there already; choose another --dir.")
    return folder.resolve()


def _remove(place: Path, folder: Path | None) -> None:
    """A directory of our own goes; in the user's, only what we made."""
    if folder is None:
        shutil.rmtree(place)
        return
    for name in (LEDGER, f"{LEDGER}-wal", f"{LEDGER}-shm", BOOK):
        (place / name).unlink(missing_ok=True)


def _report(run: Run, plan: Plan, world: World, orders: int, seed: int, seconds: float) -> dict[str, Any]:
    """Counted from the file outside; the ledger is not asked."""
    effects = Counter(parcel.order for parcel in world.parcels())
    booked = {parcel.order: parcel for parcel in world.parcels()}
    twice = sum(count - 1 for count in effects.values())
    missing = sum(order not in effects for order in range(1, orders + 1))
    wrong = sum(parcel != booked.get(parcel.order) for parcel in run.parcels)
    verdicts = Counter(run.settled.values())
    return {
        "orders": orders,
        "seed": seed,
        "workers": WORKERS,
        "planned": len(plan.deliveries),
        "deliveries": run.delivered,
        "kills": {place: run.killed[place] for place in sorted(PLACES)},
        "answers": {name: run.answers[name] for name in ("done", "replayed", "in_progress", "review", "lost")},
        "settled": {"happened": verdicts["happened"], "did_not_happen": verdicts["did-not-happen"]},
        "effects": effects.total(),
        "effects_twice": twice,
        "effects_missing": missing,
        "answers_wrong": wrong,
        "seconds": round(seconds, 2),
        "ok": twice == missing == wrong == 0,
    }


def _show(report: dict[str, Any]) -> None:
    kills, answers, settled = report["kills"], report["answers"], report["settled"]
    show_table(
        ("WHAT", "COUNT", ""),
        [
            ("orders", report["orders"], f"delivered 1 to 8 times each, to {report['workers']} processes"),
            ("deliveries", report["deliveries"], f"{report['planned']} planned, the others delivered again"),
            ("workers killed", sum(kills.values()), "with SIGKILL, in mid-work:"),
            ("  claim taken, effect not done", kills["before_effect"], ""),
            ("  effect done, not recorded", kills["after_effect"], ""),
            ("  recorded, not answered", kills["after_record"], ""),
            ("answered with new work", answers["done"], ""),
            ("duplicates replayed", answers["replayed"], "with the first one's result"),
            ("answered “in progress”", answers["in_progress"], "delivered again later"),
            (
                "answered “needs review”",
                answers["review"],
                "outcome unknown, so not repeated: a person settles each claim",
            ),
            ("  settled: it happened", settled["happened"], "the parcel was found outside"),
            ("  settled: it did not", settled["did_not_happen"], "then delivered again"),
            ("effects", report["effects"], "counted outside the ledger"),
            ("effects done twice", report["effects_twice"], ""),
            ("effects missing", report["effects_missing"], ""),
            ("answers with a wrong result", report["answers_wrong"], ""),
        ],
    )
    verdict = "Every order was shipped once." if report["ok"] else "NOT every order was shipped once: see above."
    show_text(f"\n{verdict} ({report['seconds']} s)")
    if report["ledger"]:
        show_text(
            f"The ledger is kept. Look at it:\n  {program()} --store {quoted(report['ledger'])} claims list --state all"
        )
