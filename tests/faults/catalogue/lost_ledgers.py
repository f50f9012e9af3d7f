"""Scenes of F22 and F23 with real SQLite ledgers of full size: compared with the books, lost, restored from a backup.

A large ledger is filled by a rebuild from the books, which is faster than running each order.
"""

from __future__ import annotations

import itertools
import random
import tempfile
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.faults.finding import Finding
from tests.faults.trial import Trial
from tests.servers.keeper import scratch
from twiceproof import App
from twiceproof.stores.copying import copy_ledger, open_bulk

ROWS = 100_000
PLANTED = 50
EVENTS = 1_000
Rows = list[dict[str, Any]]


class Books:
    """Invoices in another system, and processes of a shop that makes them. Each ledger is a file."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.rows: Rows = []
        self.made = itertools.count(1)

    def process(self, ledger: str) -> tuple[App, Any]:
        app = App(f"sqlite:///{self.directory}/{ledger}.db")

        @app.step(repeat="never", external="invoice:{result[id]}")
        def invoice(order: int) -> dict[str, str]:
            self.rows.append({"reference": order, "id": f"inv-{next(self.made)}"})
            return {"id": self.rows[-1]["id"]}

        @app.flow(key="order:{order}", name="sync", keep="forever")
        def sync(order: int) -> str:
            return invoice(order)["id"]

        @app.reconcile(grace="0s", directory=self.directory)
        def books(find: Any) -> Iterable[Any]:
            rows = find.source("books", self.rows, key="order:{reference}", id="{id}")
            yield find.disagree(find.ledger(sync, step=invoice), rows)

        return app, sync

    def sell(self, ledger: str, orders: Iterable[int]) -> list[str]:
        app, sync = self.process(ledger)
        with app:
            return [sync(order) for order in orders]

    def rebuild(self, ledger: str) -> None:
        app, sync = self.process(ledger)
        with app:
            steps = {"invoice": lambda row: {"id": row["id"]}}
            app.apply_rebuild(
                app.rebuild(sync, self.rows, key="order:{reference}", steps=steps, result=lambda row: row["id"])
            )

    def fences(self, ledger: str) -> list[int]:
        with closing(open_bulk(f"sqlite:///{self.directory}/{ledger}.db")) as bulk:
            return [record.fence for page in bulk.rows(size=EVENTS) for _, record in page]

    def copy(self, source: str, target: str) -> None:
        """Copy as `ledger backup` and `ledger restore` do."""
        one, other = (f"sqlite:///{self.directory}/{name}.db" for name in (source, target))
        with closing(open_bulk(one)) as first, closing(open_bulk(other, create=True)) as second:
            copy_ledger(first, second, in_use=True)


# -- compared ------------------------------------------------------------------------------------


def ledger_world(trial: Trial, finding: Finding) -> None:
    """Fifty discrepancies of each kind between a large ledger and the books: all are found, and nothing else.

    Its file is in memory, to avoid 100,000 waits for a disk.
    """
    rows = trial.times(ROWS, 2_000)
    with tempfile.TemporaryDirectory(prefix="prove-", dir=scratch()) as directory:
        wrong = wrong_by_ledger(Books(Path(directory)), rows, trial.dice("ledger"))
    if wrong:
        finding.violated(f"seed {trial.seed}, a ledger of {rows} runs: {len(wrong)} wrong, such as {wrong[0]}")
    finding.reach("runs of a ledger with 50 planted of each kind", rows, rows)


def wrong_by_ledger(books: Books, size: int, dice: random.Random, planted: int = PLANTED) -> list[str]:
    """Return discrepancies that were not found, and findings without a discrepancy."""
    books.rows = [{"reference": order, "id": f"inv-{order}"} for order in range(size)]
    books.rebuild("ledger")
    chosen = dice.sample(range(size), 2 * planted)
    gone, other = set(chosen[:planted]), set(chosen[planted:])
    unknown = range(size, size + planted)  # in the books, without a run in the ledger
    kept = [row for row in books.rows if row["reference"] not in gone]
    books.rows = [{**row, "id": "by-hand"} if row["reference"] in other else row for row in kept]
    books.rows += [{"reference": order, "id": f"inv-{order}"} for order in unknown]
    app, _ = books.process("ledger")
    with app:
        found = {one.key for one in app.reconcile_now("books").findings}
    there = {f"order:{order}" for order in (*gone, *other, *unknown)}
    return [*(f"not found: {one}" for one in there - found), *(f"false: {one}" for one in found - there)]


# -- lost ----------------------------------------------------------------------------------------


def lost_ledgers(trial: Trial, finding: Finding) -> None:
    """A lost ledger, and one restored to an earlier state: after a rebuild no old event does anything again."""
    events = trial.times(EVENTS, 40)
    for kind in ("lost", "restored"):
        directory = trial.directory / f"ledger-{kind}"
        directory.mkdir()
        for told in wrong_after(Books(directory), events, restored=kind == "restored"):
            finding.violated(f"a ledger that was {kind}: {told}")
        finding.hit(f"a ledger that was {kind}", events)
    finding.reach("old events after a loss", events, events)


def wrong_after(books: Books, events: int, *, restored: bool) -> list[str]:
    first = books.sell("ledger", range(events // 2))
    if restored:
        books.copy("ledger", "backup")
    first += books.sell("ledger", range(events // 2, events))
    drawn, after = books.fences("ledger"), "after"
    if restored:
        books.copy("backup", after)
    books.rebuild(after)
    again = books.sell(after, range(events))
    told = [] if len(books.rows) == events else [f"{len(books.rows)} invoices for {events} orders"]
    if again != first:
        told.append(f"other results: {[pair for pair in zip(first, again, strict=True) if pair[0] != pair[1]][:3]}")
    books.sell(after, [events])
    newest = max(books.fences(after))
    return told if newest > max(drawn) else [*told, f"fence {newest} was drawn again, after {max(drawn)}"]
