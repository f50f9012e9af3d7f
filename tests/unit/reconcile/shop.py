"""A shop, its books and its ledger, which a reconciliation compares; and processes that die on order."""

from __future__ import annotations

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

        @app.step(repeat="safe", undo=undo, external="inv:{result[id]}", **self.options.get("step", {}))
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
