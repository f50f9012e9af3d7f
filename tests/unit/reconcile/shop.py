"""A shop, its books and its ledger, which a reconciliation compares; and processes that die on order."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any

from tests.unit.flows.stage import Stage
from twiceproof import App, Waiting
from twiceproof.reconcile import Cap, compensate, notify, start
from twiceproof.reconcile.reconciliation import RunReport


class Shop:
    """Orders, invoices, and what was done to them. `checks` says what is compared."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.orders: list[dict[str, Any]] = []
        self.books: list[dict[str, Any]] = []
        self.voided: Counter[str] = Counter()
        self.made = 0
        self.looks = 0
        self.void_error: Exception | None = None
        self.options: dict[str, Any] = {}

    # -- the world -------------------------------------------------------------------------------

    def order(self, number: int, total: Any = 10) -> dict[str, Any]:
        one = {"id": number, "total": total}
        self.orders.append(one)
        return one

    def invoice(self, number: int, amount: Any = 10, id_: str = "") -> str:
        self.made += 1
        id_ = id_ or f"in_{self.made}"
        self.books.append({"id": id_, "reference": number, "amount": amount})
        return id_

    def void(self, result: dict[str, Any]) -> None:
        self.voided[result["id"]] += 1
        self.books[:] = [row for row in self.books if row["id"] != result["id"]]
        if self.void_error is not None:
            raise self.void_error

    # -- a process -------------------------------------------------------------------------------

    def process(self, at: int | None = None, *, landed: bool = False, tenant: str | None = None) -> App:
        app = self.stage.process(at, landed=landed)
        return self.declare(app)

    def declare(self, app: App) -> App:
        undo = app.step(repeat=self.options.get("undo", "never"), name="void")(lambda result: self.void(result))

        @app.step(undo=undo, external="inv:{result[id]}", **{"repeat": "safe", **self.options.get("step", {})})
        def create_invoice(order: dict) -> dict:
            return {"id": self.invoice(order["id"], order["total"])}

        @app.flow(key="order:{order[id]}", keep="forever")
        def sync_order(order: dict) -> str:
            return create_invoice(order)["id"]

        @app.reconcile(every="1d", grace=self.options.get("grace", "0s"), most=self.options.get("most", 10_000))
        def invoices(find: Any) -> Iterable[Any]:
            shop = find.source(
                "shop", self.options.get("orders", self.orders), key="order:{id}", at=self.options.get("at")
            )
            books = find.source("books", self._books, key="order:{reference}", id="{id}", look=self.options.get("look"))
            cap = self.options.get("cap", Cap(20, percent=5))
            acts = self.options.get("acts", True)
            yield find.duplicates(books, then=compensate(create_invoice, cap=cap) if acts else notify)
            yield find.missing(shop, books, then=start(sync_order, cap=cap) if acts else notify)
            yield find.extra(books, shop)
            yield find.differ(shop, books, fields={"total": "amount"}, tolerance="0.01")
            if self.options.get("ledger", True):
                yield find.disagree(find.ledger(sync_order, step=create_invoice), books)

        app.sync_order, app.create_invoice = sync_order, create_invoice  # type: ignore[attr-defined]
        return app

    def _books(self) -> Iterable[dict[str, Any]]:
        reading: Callable[[list[dict[str, Any]]], Iterable[dict[str, Any]]] = self.options.get("read", list)
        return reading(self.books)

    # -- running ---------------------------------------------------------------------------------

    def sell(self, app: App, numbers: Iterable[int]) -> None:
        for number in numbers:
            app.sync_order(self.order(number))  # type: ignore[attr-defined]

    def tick(self) -> datetime:
        self.stage.clock.advance(86_400)
        return datetime.fromtimestamp(self.stage.clock.now(), UTC)

    def run(self, app: App, tick: datetime | None = None) -> RunReport:
        """Run to the end, past the grace time."""
        when = tick or self.tick()
        while True:
            try:
                return app.reconcile_now("invoices", tick=when)
            except Waiting as waiting:
                self.stage.clock.advance(max(0.0, waiting.data["until"] - self.stage.clock.now()) + 0.01)


def kinds(report: RunReport) -> Counter[str]:
    """What was found, by the kind of check."""
    return Counter(found.check.partition(":")[0] for found in report.findings)


# -- worlds of any size --------------------------------------------------------------------------


def wrong_in_seeded_world(shop: Shop, size: int, dice: random.Random, planted: int = 50) -> list[str]:
    """Plant so many of each kind among `size` rows. Return what is not found, and what is found without being there."""
    shop.options.update(acts=False, ledger=False)
    app = shop.process()
    for number in range(size):
        shop.order(number)
        shop.invoice(number)
    chosen = dice.sample(range(size), planted * 3)
    twice, changed, gone = chosen[:planted], chosen[planted : planted * 2], set(chosen[planted * 2 :])
    for number in changed:
        shop.books[number]["amount"] = 11
    for number in twice:
        shop.invoice(number)
    shop.books[:] = [row for row in shop.books if row["reference"] not in gone]
    extra = range(2 * size, 2 * size + planted)
    for number in extra:
        shop.invoice(number)
    asked = {"duplicates": twice, "differ": changed, "missing": gone, "extra": extra}
    there = {(check, f"order:{number}") for check, numbers in asked.items() for number in numbers}
    found = {(one.check.partition(":")[0], one.key) for one in shop.run(app).findings}
    return [*(f"not found: {one}" for one in there - found), *(f"false: {one}" for one in found - there)]


def wrong_symptoms(shop: Shop, size: int, dice: random.Random, planted: int = 50) -> list[str]:
    """The same for two records of one identity, two charges for one order, and two mails to one customer."""
    app, now = shop.stage.process(), datetime.fromtimestamp(shop.stage.clock.now(), UTC).isoformat()
    chosen = dice.sample(range(size), planted)
    people = [{"id": number, "email": f"u{number}@b.de"} for number in range(size)]
    people += [{"id": size + number, "email": f" U{number}@B.de"} for number in chosen]
    charges = [{"id": f"ch_{at}", "order": number} for at, number in enumerate([*range(size), *chosen])]
    mails = [{"id": at, "to": f"u{number}@b.de", "at": now} for at, number in enumerate([*range(size), *chosen])]

    @app.reconcile(every="1d", grace="0s")
    def invoices(find: Any) -> Iterable[Any]:
        yield find.same_identity(find.source("people", people, key="{id}", id="{id}"))
        yield find.charges_per_order(find.source("charges", charges, key="{id}", id="{id}"), order="{order}")
        yield find.mails_per_customer(find.source("mails", mails, key="{id}", id="{id}", at="{at}"), customer="{to}")

    found = Counter(one.check for one in shop.run(app).findings)
    keys = {one.key for one in app.findings(limit=10_000)}
    there = {f"u{number}@b.de" for number in chosen} | {str(number) for number in chosen}
    told = [f"{check}: {count} found of {planted}" for check, count in found.items() if count != planted]
    return told + ([] if len(found) == 3 and keys == there else [f"{len(keys ^ there)} keys are wrong ({set(found)})"])


def surplus_run(shop: Shop, app: App, dice: random.Random) -> RunReport:
    """Add one to three surplus invoices for each of three of thirty orders, anywhere in the books, and run."""
    for number in dice.sample(range(1, 31), 3):
        for _ in range(dice.randint(1, 3)):
            id_ = dice.choice(["a", "in", "z"]) + str(dice.random())
            shop.books.insert(dice.randrange(len(shop.books) + 1), {"id": id_, "reference": number, "amount": 10})
    return shop.run(app)
