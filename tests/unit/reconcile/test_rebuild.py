"""The ledger rebuilt from the source of truth: it only adds, and what was redelivered is not done again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from twiceproof import App, Misuse, NeedsReview, NotDone, Waiting
from twiceproof.claims.claim import address_of
from twiceproof.prove.clocks import ManualClock
from twiceproof.reconcile.rebuild import RebuildPlan, read_plan
from twiceproof.records import Record
from twiceproof.stores.grouped import GroupedStore
from twiceproof.stores.memory import MemoryEngine

KEY = "order:{reference}"


class Books:
    """A shop whose invoices are in another system, which is the source of truth."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.engine = MemoryEngine(self.clock)
        self.invoices: list[dict[str, Any]] = []
        self.charged: list[int] = []
        self.loses: set[int] = set()
        self.refuses: set[int] = set()
        self.app = self.process()

    def process(self) -> App:
        app = App(GroupedStore(self.engine, clock=self.clock), clock=self.clock)

        @app.step(repeat="never", external="invoice:{result[id]}")
        def invoice(order: int) -> dict[str, Any]:
            if order in self.refuses:
                raise NotDone("no such customer", final=True)
            self.invoices.append({"reference": order, "id": f"inv-{len(self.invoices) + 1}"})
            if order in self.loses:
                raise TimeoutError("no answer")
            return {"id": self.invoices[-1]["id"]}

        @app.flow(key="order:{order}")
        def sync(order: int) -> str:
            found = invoice(order)
            if order == 9:
                app.sleep("1d")
            return str(found["id"])

        @app.once(key="order:{order}")
        def charge(order: int) -> str:
            self.charged.append(order)
            if order in self.loses:
                raise TimeoutError("no answer")
            return f"receipt {order}"

        self.sync, self.charge = sync, charge
        return app

    def plan(self, **options: Any) -> RebuildPlan:
        given: dict[str, Any] = {
            "key": KEY,
            "result": lambda row: row["id"],
            "steps": {"invoice": lambda row: {"id": row["id"]}},
        }
        return self.app.rebuild(self.sync, self.invoices, **(given | options))

    def apply(self, plan: RebuildPlan) -> dict[str, int]:
        return self.app.apply_rebuild(plan).applied

    def everything(self) -> list[Record]:
        return sorted(self.engine._records.values(), key=lambda record: str(record.at))

    def run(self, order: int) -> Record:
        record = self.app.store.read(address_of("default", "sync", f"order:{order}", "run")).block().record
        assert record is not None
        return record


@pytest.fixture
def books() -> Iterator[Books]:
    made = Books()
    yield made
    made.app.close()


def actions(plan: RebuildPlan) -> dict[str, str]:
    return {line.key: line.action for line in plan.lines}


def test_a_plan_writes_nothing(books: Books) -> None:
    books.sync(1)
    before = books.everything()
    books.invoices.append({"reference": 2, "id": "inv-9"})
    assert books.plan().counts == {"adopt": 1, "unchanged": 1}
    assert books.everything() == before


def test_what_the_ledger_lacks_is_adopted_and_not_done_again(books: Books) -> None:
    books.invoices += [{"reference": n, "id": f"old-{n}"} for n in range(1, 51)]
    assert books.apply(books.plan()) == {"adopt": 50}
    assert [books.sync(n) for n in (1, 50)] == ["old-1", "old-50"]
    assert len(books.invoices) == 50
    (link,) = books.app.ids("invoice:old-7")
    assert (link.key, link.step) == ("order:7", "invoice")


def test_applied_twice_it_writes_nothing_more(books: Books) -> None:
    books.invoices += [{"reference": n, "id": f"old-{n}"} for n in range(5)]
    books.loses.add(7)
    with pytest.raises(NeedsReview):
        books.sync(7)
    plan = books.plan()
    assert books.apply(plan) == {"adopt": 5, "settle": 1}
    after = books.everything()
    again = books.app.apply_rebuild(plan)
    assert (again.applied, len(again.skipped)) == ({}, 6)
    assert books.everything() == after


@pytest.mark.parametrize("whole", [True, False])
def test_an_unknown_outcome_that_the_source_has_is_settled(books: Books, whole: bool) -> None:
    books.loses.add(7)
    with pytest.raises(NeedsReview):
        books.sync(7)
    assert books.apply(books.plan(whole=whole)) == {"settle": 1}
    assert books.sync(7) == "inv-1"
    assert len(books.invoices) == 1


def test_one_that_the_source_lacks_is_left_to_a_person(books: Books) -> None:
    books.loses.add(7)
    with pytest.raises(NeedsReview):
        books.sync(7)
    books.invoices.clear()
    assert actions(books.plan()) == {"order:7": "absent"}
    assert books.apply(books.plan()) == {}
    assert books.plan(whole=False).counts == {}  # half a source proves nothing


def test_another_receipt_is_evidence_and_the_result_stays(books: Books) -> None:
    assert books.sync(1) == "inv-1"
    books.invoices[0]["id"] = "inv-2"
    plan = books.plan()
    assert actions(plan) == {"order:1": "differs"}
    before = books.run(1)
    assert books.apply(plan) == {"differs": 1}
    assert books.run(1) == before
    assert books.sync(1) == "inv-1"
    (piece,) = books.app.history("sync/order:1").evidence
    assert "another one is on record" in piece.owner


def test_what_is_done_and_missing_in_the_source_is_evidence(books: Books) -> None:
    books.sync(1)
    books.invoices.clear()
    plan = books.plan()
    assert actions(plan) == {"order:1": "missing"}
    assert books.apply(plan) == {"missing": 1}
    assert books.sync(1) == "inv-1"
    assert books.invoices == []


def test_a_failure_that_the_source_contradicts_is_evidence(books: Books) -> None:
    books.refuses.add(3)
    with pytest.raises(NotDone):
        books.sync(3)
    books.invoices.append({"reference": 3, "id": "by hand"})
    assert books.apply(books.plan()) == {"failed": 1}
    assert books.run(3).state == "failed"


def test_what_is_under_way_is_left_alone(books: Books) -> None:
    with pytest.raises(Waiting):
        books.sync(9)
    books.sync.start(10)
    books.invoices.append({"reference": 10, "id": "inv-2"})
    plan = books.plan()
    assert actions(plan) == {"order:9": "left", "order:10": "left"}
    before = books.everything()
    assert books.apply(plan) == {}
    assert books.everything() == before


def test_what_changed_since_the_plan_is_skipped(books: Books) -> None:
    books.loses.add(7)
    with pytest.raises(NeedsReview):
        books.sync(7)
    books.invoices.append({"reference": 8, "id": "inv-8"})
    plan = books.plan()
    books.app.settle_run("sync/order:7", "happened", by="ada", result={"id": "ada's"})
    books.invoices.pop()
    books.sync(8)
    done = books.app.apply_rebuild(plan)
    assert (done.applied, sorted(done.skipped)) == ({}, ["order:7", "order:8"])
    assert books.sync(7) == "ada's"


def test_claims_of_a_guarded_function_are_rebuilt_too(books: Books) -> None:
    books.loses.add(2)
    with pytest.raises(NeedsReview):
        books.charge(2)
    books.charge(3)
    rows = [{"reference": n, "text": f"receipt {n}"} for n in (1, 2, 3)]
    plan = books.app.rebuild(books.charge, rows, key=KEY, result=lambda row: row["text"])
    assert actions(plan) == {"order:1": "adopt", "order:2": "settle", "order:3": "unchanged"}
    books.app.apply_rebuild(plan)
    assert [books.charge(n) for n in (1, 2, 3)] == ["receipt 1", "receipt 2", "receipt 3"]
    assert books.charged == [2, 3]


def test_what_the_source_has_twice_is_not_adopted_blindly(books: Books) -> None:
    books.sync(1)
    books.invoices += [{"reference": n, "id": f"inv-{n}-{m}"} for n in (1, 2) for m in (1, 2)]
    books.invoices += [{"reference": 3, "id": "same"}, {"reference": 3, "id": "same"}]
    plan = books.plan()
    assert actions(plan) == {"order:1": "differs", "order:2": "twice", "order:3": "adopt"}
    assert books.apply(plan) == {"adopt": 1, "differs": 1}


def test_an_unknown_outcome_that_the_source_has_twice_is_for_a_person(books: Books) -> None:
    books.loses.add(7)
    with pytest.raises(NeedsReview):
        books.sync(7)
    books.invoices.append({"reference": 7, "id": "inv-2"})
    assert actions(books.plan()) == {"order:7": "twice"}
    assert books.apply(books.plan()) == {}


def test_a_row_without_a_key_is_named(books: Books) -> None:
    books.invoices += [{"reference": None, "id": "x"}, {"id": "y"}, {"reference": 1, "id": "z"}]
    plan = books.plan()
    assert plan.counts == {"adopt": 1, "no-key": 2}
    assert "row 1" in actions(plan)


def test_a_plan_is_a_file_that_may_not_be_changed(books: Books, tmp_path: Path) -> None:
    books.invoices += [{"reference": n, "id": f"old-{n}"} for n in range(3)]
    books.plan().save(tmp_path / "plan.jsonl")
    assert read_plan(tmp_path / "plan.jsonl") == books.plan()
    changed = (tmp_path / "plan.jsonl").read_text().replace("old-1", "old-2")
    (tmp_path / "changed.jsonl").write_text(changed)
    with pytest.raises(Misuse, match="was changed"):
        books.app.apply_rebuild(tmp_path / "changed.jsonl")
    (tmp_path / "nonsense").write_text("nonsense")
    with pytest.raises(Misuse, match="is not a plan"):
        books.app.apply_rebuild(tmp_path / "nonsense")
    assert books.app.apply_rebuild(tmp_path / "plan.jsonl").applied == {"adopt": 3}


def test_a_lost_ledger_is_rebuilt_and_old_events_do_nothing(books: Books) -> None:
    for order in range(100):
        if order != 9:
            books.sync(order)
    known = len(books.invoices)
    books.app.close()
    books.engine = MemoryEngine(books.clock)
    books.app = books.process()
    books.apply(books.plan())
    for order in range(100):
        if order != 9:
            books.sync(order)
    assert len(books.invoices) == known


def test_an_operation_that_is_not_declared_is_refused(books: Books) -> None:
    with pytest.raises(Misuse, match="neither a flow nor a guarded function"):
        books.app.rebuild("ship", [], key=KEY)
