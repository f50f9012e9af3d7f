"""The ledger rebuilt from the source of truth: it only adds, and what was redelivered is not done again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from twiceproof import App, Misuse, NeedsReview, NotDone, Waiting
from twiceproof.claims.claim import address_of
from twiceproof.flows.history.review import ReviewDecision, settle_run
from twiceproof.operations import Request, block
from twiceproof.prove.clocks import ManualClock
from twiceproof.reconcile.rebuild_plan import RebuildPlan, read_plan
from twiceproof.records import Address, Record
from twiceproof.stores.grouped import GroupedStore
from twiceproof.stores.memory import MemoryEngine

KEY = "order:{reference}"


class Answered(Request[Any]):
    """A request that was answered before."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def block(self) -> Any:
        return self.answer

    async def wait(self) -> Any:
        return self.answer


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
    before = books.run(7)
    assert books.apply(books.plan()) == {"absent": 1}
    assert books.run(7) == before and books.app.findings() == []
    (piece,) = books.app.history("sync/order:7").evidence
    assert "the source does not have it" in piece.owner
    assert books.plan(whole=False).counts == {}  # half a source proves nothing


# -- what surely did not happen ------------------------------------------------------------------


def unknown(books: Books, *orders: int, guarded: bool = False) -> None:
    """Orders whose outcome is unknown, since two hours, and which did not reach the source; it has another order."""
    for order in orders:
        books.loses.add(order)
        with pytest.raises(NeedsReview):
            (books.charge if guarded else books.sync)(order)
    books.loses.clear()
    books.invoices[:] = [{"reference": 1, "id": "inv-1"}]
    books.clock.advance(7_200)


def as_of(books: Books, ago: float = 0.0) -> datetime:
    return datetime.fromtimestamp(books.clock.now() - ago, UTC)


def settled(books: Books, plan: RebuildPlan, most: int = 5) -> dict[str, int]:
    return books.app.apply_rebuild(plan, settle_absent=most).applied


def test_what_the_source_surely_lacks_is_settled_on_demand_and_done_then(books: Books) -> None:
    unknown(books, 7)
    plan = books.plan(as_of=as_of(books))
    assert settled(books, plan) == {"adopt": 1, "settle-absent": 1}
    after = books.everything()
    assert settled(books, plan) == {}
    assert books.everything() == after
    (piece,) = books.app.history("sync/order:7").evidence
    assert "the source does not have it" in piece.owner
    assert books.sync(7) == "inv-2"
    assert [row["reference"] for row in books.invoices] == [1, 7]


def test_so_is_a_guarded_function(books: Books) -> None:
    unknown(books, 2, guarded=True)
    rows = [{"reference": 1, "text": "receipt 1"}]
    plan = books.app.rebuild(books.charge, rows, key=KEY, result=lambda row: row["text"], as_of=as_of(books))
    assert settled(books, plan) == {"adopt": 1, "settle-absent": 1}
    assert books.charge(2) == "receipt 2"
    assert books.charged == [2, 2]


def test_unasked_it_is_left_to_a_person_and_may_be_settled_later(books: Books) -> None:
    unknown(books, 7)
    plan = books.plan(as_of=as_of(books))
    assert books.apply(plan) == {"absent": 1, "adopt": 1}
    assert books.run(7).state == "review"
    assert settled(books, plan) == {"settle-absent": 1}


UNSURE: dict[str, Callable[[Books], dict[str, Any]]] = {
    "nobody says when it was read": lambda books: {},
    "it was read before the run stopped": lambda books: {"as_of": as_of(books, 7_300)},
    "it was read soon after the run stopped": lambda books: {"as_of": as_of(books, 3_700)},
    "it tells of other steps": lambda books: {"as_of": as_of(books), "steps": {"mail": lambda row: row["id"]}},
}


@pytest.mark.parametrize("why", UNSURE)
def test_a_source_that_does_not_prove_it_settles_nothing(books: Books, why: str) -> None:
    unknown(books, 7)
    plan = books.plan(**UNSURE[why](books))
    assert settled(books, plan) == {"absent": 1, "adopt": 1}
    assert books.run(7).state == "review"


@pytest.mark.parametrize("rows", [[], [{"reference": 1, "id": "inv-1"}, {"id": "whose?"}]])
def test_an_empty_source_and_one_with_rows_of_nobody_settle_nothing(books: Books, rows: list[dict[str, Any]]) -> None:
    unknown(books, 7)
    books.invoices[:] = rows
    assert "settle-absent" not in settled(books, books.plan(as_of=as_of(books)))
    assert books.run(7).state == "review"


def test_what_the_source_no_longer_says_is_not_recorded(books: Books) -> None:
    unknown(books, 7)
    books.invoices += [{"reference": n, "id": f"old-{n}"} for n in (2, 3, 4)]
    plan, before = books.plan(as_of=as_of(books)), books.everything()
    books.invoices[:] = [row for row in books.invoices if row["reference"] != 2]  # voided since
    books.invoices[-1]["id"] = "new-4"  # replaced by another one
    books.invoices.append({"reference": 7, "id": "late"})  # it arrived after all
    fresh = books.plan(as_of=as_of(books))
    with pytest.raises(Misuse, match="for 3 of its keys"):
        books.app.apply_rebuild(plan, settle_absent=1, fresh=fresh, changed=2)
    assert books.everything() == before
    done = books.app.apply_rebuild(plan, settle_absent=1, fresh=fresh, changed=3)
    assert (done.applied, sorted(done.skipped)) == ({"adopt": 2}, ["order:2", "order:4", "order:7"])
    assert books.run(7).state == "review"


def test_what_the_ledger_got_since_is_no_change_of_the_source(books: Books) -> None:
    books.invoices += [{"reference": n, "id": f"old-{n}"} for n in (1, 2, 3)]
    plan = books.plan()
    assert books.app.apply_rebuild(plan, fresh=books.plan()).applied == {"adopt": 3}
    again = books.app.apply_rebuild(plan, fresh=books.plan())
    assert (again.applied, len(again.skipped)) == ({}, 3)


def test_over_the_cap_nothing_at_all_is_applied(books: Books) -> None:
    unknown(books, 5, 6, 7)
    plan, before = books.plan(as_of=as_of(books)), books.everything()
    with pytest.raises(Misuse, match="3 outcomes"):
        settled(books, plan, most=2)
    assert books.everything() == before
    assert settled(books, plan, most=3) == {"adopt": 1, "settle-absent": 3}


def test_what_a_person_or_a_worker_took_up_since_is_not_settled(books: Books) -> None:
    unknown(books, 6, 7)
    plan = books.plan(as_of=as_of(books))
    books.loses.add(6)
    books.app.settle_run("sync/order:6", "did-not-happen", by="ada")
    with pytest.raises(NeedsReview):
        books.sync(6)
    books.app.settle_run("sync/order:7", "happened", by="ada", result={"id": "ada's"})
    done = books.app.apply_rebuild(plan, settle_absent=5)
    assert (done.applied, sorted(done.skipped)) == ({"adopt": 1}, ["order:6", "order:7"])
    assert (books.run(6).state, books.sync(7)) == ("review", "ada's")


def test_a_run_taken_up_at_the_last_moment_is_not_settled(books: Books) -> None:
    """Between the look at its version and the write."""
    unknown(books, 7)
    run = books.run(7)
    decision = ReviewDecision("did-not-happen", "rebuild", step="invoice")
    books.app.settle_run("sync/order:7", "did-not-happen", by="ada")
    books.loses.add(7)
    with pytest.raises(NeedsReview):
        books.sync(7)
    with pytest.raises(Misuse, match="has changed"):
        block(settle_run(books.app.store, run.at, decision, version=run.version))


@pytest.mark.parametrize("kind", ["run", "claim"])
def test_what_a_person_settles_at_the_last_moment_is_skipped_and_the_rest_applied(
    books: Books, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at its version and the write: it broke off the whole apply."""
    books.loses |= {6, 7}
    call = books.sync if kind == "run" else books.charge
    for order in (6, 7):
        with pytest.raises(NeedsReview):
            call(order)
    if kind == "run":
        plan = books.plan()
        at, person = (
            books.run(6).at,
            lambda: books.app.settle_run("sync/order:6", "happened", by="ada", result={"id": 1}),
        )
    else:
        rows = [{"reference": n} for n in (6, 7)]
        plan = books.app.rebuild(books.charge, rows, key=KEY, result=lambda row: "in the books")
        at = address_of("default", "charge", "order:6", "claim")
        person = lambda: books.app.settle("charge", "order:6", "happened", by="ada", result="ada's")  # noqa: E731
    looks, read = [], books.app.store.read

    def reading(address: Address) -> Any:
        answer = read(address)
        if address == at and not looks:
            looks.append(answer.block())
            person()
            return Answered(looks[0])
        return answer

    monkeypatch.setattr(books.app.store, "read", reading)
    done = books.app.apply_rebuild(plan)
    assert looks and (done.applied, list(done.skipped)) == ({"settle": 1}, ["order:6"])


def test_a_time_to_come_or_without_a_zone_is_refused(books: Books) -> None:
    for wrong in (as_of(books, -60), as_of(books, 60).replace(tzinfo=None)):
        with pytest.raises(Misuse, match="cannot have been read at"):
            books.plan(as_of=wrong)


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


def test_a_contradiction_is_a_finding_which_a_second_apply_does_not_repeat(books: Books) -> None:
    for order in (1, 2):
        books.sync(order)
    books.refuses.add(3)
    with pytest.raises(NotDone):
        books.sync(3)
    books.invoices[:] = [{"reference": 1, "id": "other"}, {"reference": 3, "id": "inv-3"}]
    plan = books.plan()
    assert books.apply(plan) == {"differs": 1, "failed": 1, "missing": 1}
    found = {one.key: (one.check, one.seen) for one in books.app.findings(name="ledger-rebuilds")}
    assert found == {
        "sync/order:1": ("rebuild-differs", 1),
        "sync/order:2": ("rebuild-missing", 1),
        "sync/order:3": ("rebuild-failed", 1),
    }
    after = books.everything()
    assert books.apply(plan) == {}
    assert books.everything() == after


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
