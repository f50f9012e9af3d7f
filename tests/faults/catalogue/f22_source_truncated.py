"""F22: a source is cut off, empty, shrunk or repeats itself: nothing is reported as missing, undone or resolved because
of it.

Also reconciliations of full size: discrepancies planted among many rows, random surplus, and runs that are killed.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import Any
from unittest import mock

from tests.faults.catalogue.lost_ledgers import ledger_world
from tests.faults.catalogue.reconcile_scenes import killed_runs, random_worlds, seeded_worlds
from tests.faults.finding import Finding
from tests.faults.trial import Trial
from twiceproof import App
from twiceproof.prove.clocks import ManualClock
from twiceproof.reconcile import Cap, compensate, start
from twiceproof.reconcile.reconciliation import RunReport

TITLE = "a source of a reconciliation is cut off"
TIMES = 300
ORDERS, SURPLUS, CAP = 40, 6, 20

Rows = list[dict[str, Any]]
Read = Callable[[Rows], Iterable[dict[str, Any]]]


def broken(rows: Rows, dice: random.Random) -> Iterator[dict[str, Any]]:
    yield from rows[: dice.randrange(len(rows))]
    raise OSError("connection reset")


def shrunk(rows: Rows, dice: random.Random) -> Iterator[dict[str, Any]]:
    return iter(dice.sample(rows, int(len(rows) * dice.uniform(0.1, 0.78))))


def repeated(rows: Rows, dice: random.Random) -> Iterator[dict[str, Any]]:
    page = rows[: dice.randint(1, len(rows) // 2)]
    return iter([*page, *rows[: len(rows) - len(page)]])


WAYS: dict[str, Callable[[Rows, random.Random], Iterable[dict[str, Any]]]] = {
    "broken off": broken,
    "empty": lambda rows, dice: [],
    "shrunk": shrunk,
    "a page twice": repeated,
}


class World:
    """Orders, and books that hold an invoice for each, and for some a second one."""

    def __init__(self, dice: random.Random, surplus: int) -> None:
        self.dice = dice
        self.clock = ManualClock()
        self.app = App("memory://", clock=self.clock)
        self.orders: Rows = []
        self.books: Rows = []
        self.voided: Counter[str] = Counter()
        self.read: Read = list
        self._declare()
        for number in range(ORDERS):
            self.orders.append({"id": number})
            self.sync({"id": number})
        self.recorded = {row["id"] for row in self.books}
        for number in dice.sample(range(ORDERS), surplus):
            place = dice.randrange(len(self.books) + 1)
            self.books.insert(place, {"id": f"{dice.choice('az')}{dice.random()}", "order": number})

    def _declare(self) -> None:
        app = self.app

        def void(result: dict) -> None:
            self.voided[result["id"]] += 1
            self.books[:] = [row for row in self.books if row["id"] != result["id"]]

        @app.step(repeat="safe", undo=void)
        def create(order: dict) -> dict:
            self.books.append({"id": f"in_{order['id']}", "order": order["id"]})
            return {"id": f"in_{order['id']}"}

        @app.flow(key="order:{order[id]}", name="sync", keep="forever")
        def sync(order: dict) -> dict:
            return create(order)

        @app.reconcile(every="1d", grace="0s")
        def invoices(find: Any) -> Iterator[Any]:
            shop = find.source("shop", lambda: list(self.orders), key="order:{id}")
            books = find.source("books", lambda: self.read(self.books), key="order:{order}", id="{id}")
            yield find.duplicates(books, then=compensate(create, cap=Cap(CAP, percent=None)))
            yield find.missing(shop, books, then=start(sync, cap=Cap(None, None)))
            yield find.extra(books, shop)
            yield find.disagree(find.ledger(sync, step=create), books)

        self.sync = sync

    def run(self) -> RunReport:
        self.clock.advance(86_400)
        return self.app.reconcile_now("invoices", tick=datetime.fromtimestamp(self.clock.now(), UTC))


def run(trial: Trial, finding: Finding) -> None:
    times = trial.times(TIMES, len(WAYS))
    for number in range(times):
        way = list(WAYS)[number % len(WAYS)]
        said = play(trial.dice("F22", number), way)
        finding.hit(way)
        for what in said:
            finding.violated(f"seed {trial.seed}, number {number}, {way}: {what}")
    finding.reach("readings of a source that is not whole", times, times)
    over_the_cap(trial, finding)
    seeded_worlds(trial, finding)
    ledger_world(trial, finding)
    random_worlds(trial, finding)
    killed_runs(trial, finding)
    control(trial, finding)


def play(dice: random.Random, way: str) -> list[str]:
    """Three runs: a whole one, one with the fault, and a whole one again."""
    world = World(dice, SURPLUS)
    try:
        return list(_said(world, way))
    finally:
        world.app.close()


def _said(world: World, way: str) -> Iterator[str]:
    lost = world.dice.randrange(ORDERS)
    world.books[:] = [row for row in world.books if row["order"] != lost]
    first = world.run()
    open_before = {one.id for one in world.app.findings()}
    if not first.complete or len(world.voided) > SURPLUS:
        yield f"the first run was {first.complete=}, and voided {world.voided}"
    voided = Counter(world.voided)
    world.read = lambda rows: WAYS[way](list(rows), world.dice)
    second = world.run()
    world.read = list
    absent = [
        (one.check, one.key) for one in second.findings if one.check.split(":")[0] in ("missing", "extra", "disagree")
    ]
    if absent:
        yield f"by half a source, {len(absent)} are called {absent[0]}"
    if "source-incomplete" not in {one.check for one in second.findings}:
        yield "the source is not called incomplete"
    if second.outcomes or world.voided != voided:
        yield f"something was done: {second.outcomes[:1]}"
    if not open_before <= {one.id for one in world.app.findings()}:
        yield "a finding was resolved"
    third = world.run()
    if third.new:
        yield f"{third.new} findings are called new, and were known before"
    if not world.recorded - {f"in_{lost}"} <= {row["id"] for row in world.books}:
        yield "what the ledger recorded was undone"


def over_the_cap(trial: Trial, finding: Finding) -> None:
    """With one action more than the cap, none is done."""
    for number in range(trial.times(30, 3)):
        world = World(trial.dice("cap", number), CAP + 1)
        report = world.run()
        world.app.close()
        finding.hit("over the cap")
        if world.voided or not any(plan["over"] for plan in report.plans):
            finding.violated(f"seed {trial.seed}, cap {number}: {sum(world.voided.values())} were undone of {CAP + 1}")


def control(trial: Trial, finding: Finding) -> None:
    """The control: a source always counts as whole, so rows that were not read are missing."""
    from twiceproof.reconcile import looking, run, sources

    trusting = whole(sources.read_source)
    with mock.patch.object(run, "read_source", trusting), mock.patch.object(looking, "read_source", trusting):
        said = play(trial.dice("control"), "shrunk")
    finding.control("a source is always whole", "; ".join(said))


def whole(read: Callable[..., Any]) -> Callable[..., Any]:
    from msgspec import structs

    return lambda *given: structs.replace(read(*given), whole=True, why="")
