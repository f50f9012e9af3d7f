"""A run in review is settled by a person's word, and goes on from there."""

from __future__ import annotations

import math
from typing import Any

import pytest
from msgspec import Raw

from tests.unit.flows.stage import Stage
from twiceproof import App, ClaimLost, Misuse, NeedsReview, PriorFailure, ValueRefused, Waiting
from twiceproof.claims.claim import Fault, address_of
from twiceproof.claims.queries import Evidence, evidence_write
from twiceproof.flows.workers.due_work import resume_run
from twiceproof.operations import block


class Shop:
    """Reserves, charges (no answer comes the first time), and ships. Everything but shipping can be undone."""

    def __init__(self, stage: Stage, app: App, *, lost: int = 1, renamed: bool = False, rest: bool = False) -> None:
        self.stage, self.app = stage, app

        @app.step
        def unreserve(order: int) -> None:
            stage.do("unreserve")

        @app.step
        def refund(result: dict[str, str]) -> None:
            stage.do(f"refund {result['id']}")

        @app.step(repeat="safe", undo=unreserve, name="book" if renamed else "reserve")
        def reserve(order: int) -> str:
            stage.do("reserve")
            return "reserved"

        @app.step(undo=refund, external="bank:{result[id]}")
        def charge(order: int) -> dict[str, str]:
            stage.do("charge")
            if stage.effects["charge"] <= lost:
                raise TimeoutError("no answer")
            return {"id": "ch_2"}

        @app.step(repeat="safe")
        def ship(charged: dict[str, str]) -> str:
            stage.do("ship")
            return charged["id"]

        @app.flow(key="order:{order}", name="buy")
        def buy(order: int) -> str:
            reserve(order)
            if rest:
                app.sleep("1h")
            return ship(charge(order))

        self.buy = buy

    def settle(self, verdict: Any, **word: Any) -> Any:
        return self.app.settle_run("buy/order:1", verdict, by="ann", **word)

    def state(self, step: str) -> str:
        return self.stage.entries("buy", "order:1")[step].state


@pytest.fixture
def shop(stage: Stage) -> Shop:
    made = Shop(stage, stage.process())
    with pytest.raises(NeedsReview):
        made.buy(1)
    return made


# -- the four verdicts -----------------------------------------------------------------------------


@pytest.mark.parametrize("result", [math.nan, {"total": math.inf}, object()])
def test_a_result_that_would_come_back_as_another_is_refused(shop: Shop, result: Any) -> None:
    with pytest.raises(ValueRefused, match="no JSON form"):
        shop.settle("happened", result=result)
    assert shop.app.attach(flow="buy", key="order:1").state == "review"


@pytest.mark.parametrize("result", [math.nan, object()])
def test_a_claims_result_that_would_come_back_as_another_is_refused_too(stage: Stage, result: Any) -> None:
    app = stage.process()

    @app.once(key="order:{order}")
    def weigh(order: int) -> float:
        raise TimeoutError

    with pytest.raises(NeedsReview):
        weigh(1)
    with pytest.raises(ValueRefused, match="no JSON form"):
        app.settle("weigh", "order:1", "happened", by="ann", result=result)
    with pytest.raises(NeedsReview):
        weigh(1)


def test_what_happened_is_recorded_with_its_result_and_the_run_goes_on(shop: Shop) -> None:
    settled = shop.settle("happened", result={"id": "ch_1"}, note="the bank's list")
    assert (settled.state, settled.step) == ("queued", "charge")
    note = shop.stage.entries("buy", "order:1")["charge"].note
    assert note.settled is not None
    assert (note.settled.verdict, note.settled.by, note.settled.note) == ("happened", "ann", "the bank's list")
    assert note.settled.at == shop.stage.clock.wall
    assert shop.buy(1) == "ch_1"
    assert shop.stage.effects == {"reserve": 1, "charge": 1, "ship": 1}


def test_what_did_not_happen_is_tried_again_from_its_first_start(shop: Shop) -> None:
    shop.settle("did-not-happen")
    entry = shop.stage.entries("buy", "order:1")["charge"]
    assert (entry.state, entry.note.starts, entry.note.not_before) == ("retry", 0, None)
    assert shop.buy(1) == "ch_2"
    assert shop.stage.effects == {"reserve": 1, "charge": 2, "ship": 1}


def test_undo_undoes_what_is_done_and_stops(shop: Shop) -> None:
    assert shop.settle("undo", did=False).state == "queued"
    with pytest.raises(Exception, match="settled by ann"):
        shop.buy(1)
    assert shop.stage.effects == {"reserve": 1, "charge": 1, "unreserve": 1}
    with pytest.raises(PriorFailure):
        shop.buy(1)


@pytest.mark.parametrize(
    ("word", "said"), [({"did": False}, "did-not-happen"), ({"did": True, "result": None}, "happened")]
)
def test_with_an_undo_the_step_keeps_what_was_said_about_it(shop: Shop, word: dict[str, Any], said: str) -> None:
    shop.settle("undo", **word)
    whole = shop.app.history("buy/order:1")
    assert whole.settled is not None and whole.settled["verdict"] == "undo"
    assert [step.settled["verdict"] for step in whole.steps if step.settled] == [said]


def test_undo_also_undoes_what_a_person_says_has_happened(shop: Shop) -> None:
    shop.settle("undo", did=True, result={"id": "ch_1"})
    with pytest.raises(Exception, match="settled by ann"):
        shop.buy(1)
    assert shop.stage.effects == {"reserve": 1, "charge": 1, "refund ch_1": 1, "unreserve": 1}


def test_no_undo_starts_while_an_outcome_is_unknown(shop: Shop) -> None:
    for word in ({}, {"step": "charge"}):
        with pytest.raises(Misuse, match="while an outcome is unknown: charge"):
            shop.settle("undo", **word)
    assert shop.app.review()[0].run == shop.app.history("buy/order:1").run.run


def test_an_abandoned_run_is_failed_and_nothing_is_undone(shop: Shop) -> None:
    assert shop.settle("abandon", note="order cancelled").state == "failed"
    with pytest.raises(PriorFailure, match="order cancelled"):
        shop.buy(1)
    assert shop.stage.effects == {"reserve": 1, "charge": 1}
    assert shop.state("charge") == "unknown"


def test_an_abandoned_run_is_kept_as_long_as_a_failure(shop: Shop) -> None:
    shop.settle("abandon")
    assert shop.stage.record("buy", "order:1").due_at == pytest.approx(shop.stage.clock.wall + 30 * 86_400)


# -- evidence --------------------------------------------------------------------------------------


def report(shop: Shop, **found: Any) -> str:
    space = address_of("default", "buy", "order:1").space
    write = evidence_write(space, Evidence("the-late-one", 7, step="charge", **found))
    shop.app.store.write(write).block()
    return write.at.key


def test_a_named_piece_of_evidence_is_adopted(shop: Shop) -> None:
    name = report(shop, result=Raw(b'{"id":"ch_late"}'))
    assert [piece.id for piece in shop.app.history("buy/order:1").evidence] == [name] == ["7:charge"]
    shop.settle("happened", evidence=name)
    assert shop.buy(1) == "ch_late"


def test_a_large_result_of_a_late_holder_is_adopted_too(stage: Stage) -> None:
    """Its lease runs out while it charges; somebody else finds the run; then the answer comes."""
    app, other = stage.process(), stage.process()

    def declare(app: App, late: bool) -> Any:
        @app.step
        def charge() -> str:
            stage.do("charge")
            if late:
                stage.lapse()
                with pytest.raises(NeedsReview):
                    again()
            return "x" * 100_000

        @app.flow(key="k", name="slow")
        def slow() -> int:
            return len(charge())

        return slow

    again = declare(other, late=False)
    with pytest.raises(ClaimLost):
        declare(app, late=True)()
    (piece,) = other.history("slow/k").evidence
    assert other.settle_run("slow/k", "happened", by="ann", evidence=piece.id).state == "queued"
    assert again() == 100_000
    assert stage.effects == {"charge": 1}


def test_evidence_without_a_result_is_not_adopted(shop: Shop) -> None:
    name = report(shop, fault=Fault("TimeoutError"))
    with pytest.raises(Misuse, match="no result to adopt"):
        shop.settle("happened", evidence=name)


def test_evidence_about_another_step_is_not_adopted(shop: Shop) -> None:
    space = address_of("default", "buy", "order:1").space
    write = evidence_write(space, Evidence("the-late-one", 7, Raw(b"1"), step="reserve"))
    shop.app.store.write(write).block()
    with pytest.raises(Misuse, match="no evidence '7:reserve' about charge"):
        shop.settle("happened", evidence="7:reserve")


def test_evidence_that_is_not_there_is_refused(shop: Shop) -> None:
    with pytest.raises(Misuse, match="no evidence '9:charge' about charge"):
        shop.settle("happened", evidence="9:charge")


# -- refusals --------------------------------------------------------------------------------------


def test_what_happened_must_have_a_result_and_null_is_one(shop: Shop) -> None:
    with pytest.raises(Misuse, match="Say what charge returned"):
        shop.settle("happened")
    assert shop.settle("happened", result=None).state == "queued"


def test_a_run_that_is_not_in_review_is_not_settled(shop: Shop) -> None:
    shop.settle("happened", result={"id": "ch_1"})
    with pytest.raises(Misuse, match="queued, not in review"):
        shop.settle("abandon")


def test_an_unknown_verdict_is_refused(shop: Shop) -> None:
    with pytest.raises(Misuse, match="is not a verdict"):
        shop.settle("perhaps")


def test_a_step_that_is_done_is_not_settled(shop: Shop) -> None:
    with pytest.raises(Misuse, match="reserve is done"):
        shop.settle("happened", step="reserve", result=1)
    with pytest.raises(Misuse, match="nobody is not in the ledger"):
        shop.settle("happened", step="nobody", result=1)


def test_a_guarded_functions_claim_is_not_settled_as_a_run_and_a_run_not_as_a_claim(shop: Shop) -> None:
    once = shop.app.once(key="k", name="once")(lambda: 1)
    once()
    with pytest.raises(Misuse, match="not a run"):
        shop.app.settle_run("once/k", "abandon", by="ann")
    with pytest.raises(Misuse, match="This is a run"):
        shop.app.settle("buy", "order:1", "abandon", by="ann")


def test_a_second_person_who_settles_at_the_same_time_is_told(shop: Shop) -> None:
    """The first word lands between the second one's look and its write."""
    write = shop.app.store.write

    def first_comes_another(*writes: Any) -> Any:
        shop.app.store.write = write  # type: ignore[method-assign]
        shop.settle("did-not-happen")
        return write(*writes)

    shop.app.store.write = first_comes_another  # type: ignore[method-assign]
    with pytest.raises(Misuse, match="not in review"):
        shop.settle("happened", result={"id": "ch_1"})
    assert shop.state("charge") == "retry"


# -- several, and none -----------------------------------------------------------------------------


def two_unknown(stage: Stage) -> App:
    """Two steps were under way at once when no answer came."""
    app = stage.process()

    @app.step(id="{n}")
    def pay(n: int) -> None:
        stage.do(f"pay {n}")
        raise TimeoutError("no answer")

    @app.flow(key="order:{order}", name="both")
    async def both(order: int) -> list[Any]:
        return list(await app.gather(pay_async(1), pay_async(2)))

    @app.step(id="{n}", name="pay")
    async def pay_async(n: int) -> None:
        raise TimeoutError("no answer")

    import asyncio

    with pytest.raises(NeedsReview):
        asyncio.run(both(1))
    return app


def test_of_several_unknown_steps_each_needs_its_own_word(stage: Stage) -> None:
    if not hasattr(App, "gather"):
        pytest.skip("no gather yet")
    app = two_unknown(stage)
    with pytest.raises(Misuse, match=r"say which is meant: pay\[1\], pay\[2\]"):
        app.settle_run("both/order:1", "happened", by="ann", result=1)
    assert app.settle_run("both/order:1", "happened", by="ann", result=1, step="pay[1]").state == "review"
    assert app.history("both/order:1").run.reason == "the outcome of pay[2] is unknown too"
    assert app.settle_run("both/order:1", "did-not-happen", by="ann").state == "queued"


def drifted(stage: Stage) -> Shop:
    """It slept after reserving, and woke up in code that calls that step by another name."""
    first = Shop(stage, stage.process(), lost=0, rest=True)
    with pytest.raises(Waiting):
        first.buy(1)
    stage.clock.advance(3_601)
    with pytest.raises(NeedsReview, match="the flow changed"):
        Shop(stage, stage.process(), lost=0, rest=True, renamed=True).buy(1)
    return first


def test_a_run_whose_flow_changed_has_nothing_that_happened_or_not(stage: Stage) -> None:
    shop = drifted(stage)
    for verdict in ("happened", "did-not-happen"):
        with pytest.raises(Misuse, match="the flow changed under this run"):
            shop.settle(verdict, result=1)
    assert shop.settle("abandon").state == "failed"


def test_a_run_whose_flow_changed_goes_on_with_the_old_code_after_a_retry(stage: Stage) -> None:
    shop = drifted(stage)
    shop.stage.effects.clear()
    assert shop.app.retry_run("buy/order:1") == "queued"
    assert [move.words[:2] for move in shop.app.history("buy/order:1").next][-1] == ("runs", "cancel")
    assert shop.buy(1) == "ch_2"
    assert "reserve" not in shop.stage.effects


def test_a_run_whose_flow_changed_is_undone_by_the_old_code(stage: Stage) -> None:
    shop = drifted(stage)
    shop.settle("undo")
    with pytest.raises(Exception, match="settled by ann"):
        shop.buy(1)
    assert shop.stage.effects["unreserve"] == 1


def test_the_new_code_does_not_pass_over_what_it_cannot_undo(stage: Stage) -> None:
    shop = drifted(stage)
    shop.settle("undo")
    with pytest.raises(NeedsReview, match="no longer calls reserve"):
        Shop(stage, stage.process(), lost=0, rest=True, renamed=True).buy(1)
    assert shop.stage.effects["unreserve"] == 0


def test_a_step_that_was_left_open_when_the_flow_changed_can_be_settled_too(stage: Stage) -> None:
    with pytest.raises(Exception, match="killed"):
        Shop(stage, stage.process(at=3), lost=0).buy(1)
    stage.lapse()
    with pytest.raises(NeedsReview, match="the flow changed"):
        Shop(stage, stage.process(), lost=0, renamed=True).buy(1)
    shop = Shop(stage, stage.process(), lost=0)
    with pytest.raises(Misuse, match="unknown: charge"):
        shop.settle("undo")
    assert shop.settle("undo", did=True, result={"id": "ch_1"}).step == "charge"
    with pytest.raises(Exception, match="settled by ann"):
        shop.buy(1)
    assert list(stage.effects.items()) == [("reserve", 1), ("charge", 1), ("refund ch_1", 1), ("unreserve", 1)]


# -- afterwards ------------------------------------------------------------------------------------


def test_a_worker_goes_on_with_a_settled_run(shop: Shop) -> None:
    shop.settle("did-not-happen")
    flow = shop.app.flows["buy"]
    (due,) = shop.app.store.due("run", queues=flow.queues).block().records
    block(resume_run(flow, due))
    assert shop.app.attach(flow="buy", key="order:1").state == "done"


def test_what_a_person_said_has_happened_gets_its_outside_id_when_the_run_goes_on(shop: Shop) -> None:
    shop.settle("happened", result={"id": "ch_1"})
    shop.buy(1)
    (link,) = shop.app.ids("bank:ch_1")
    assert (link.key, link.step) == ("order:1", "charge")


def test_the_next_moves_name_only_what_is_accepted(shop: Shop) -> None:
    moves = [move.words for move in shop.app.history("buy/order:1").next]
    settle = ("review", "settle", "buy/order:1")
    assert moves == [
        (*settle, "--happened", "--result", "JSON"),
        (*settle, "--did-not-happen"),
        (*settle, "--undo", "--did-not-happen"),
        (*settle, "--undo", "--happened", "--result", "JSON"),
        (*settle, "--abandon"),
    ]
