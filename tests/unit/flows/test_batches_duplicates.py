"""A duplicate effect that is found later is undone once, by its receipt, and the good one stays."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from tests.unit.flows.stage import Died, Stage
from twiceproof import App, Misuse, NeedsReview, NotDone, Retry, Waiting
from twiceproof.claims.queries import evidence_of
from twiceproof.operations import block

ONCE = Retry(attempts=1)
KEY = {"flow": "sync", "key": "order:1"}


class Shop:
    """An order with an invoice that can be voided."""

    def __init__(self, stage: Stage, app: App, *, repeat: Any = "never") -> None:
        self.app = app
        self.trouble: list[BaseException] = []

        @app.step(repeat=repeat, retry=ONCE, name="void")
        def void(result: dict[str, str]) -> str:
            stage.do(f"void {result['id']}")
            if self.trouble:
                raise self.trouble.pop(0)
            return "voided"

        @app.step(undo=void)
        def invoice(order: int) -> dict[str, str]:
            stage.do("invoice")
            return {"id": "inv_1"}

        @app.flow(key="order:{order}")
        def sync(order: int) -> str:
            return invoice(order)["id"]

        self.invoice, self.flow = invoice, sync

    def compensate(self, receipt: str = "inv_2", **options: Any) -> Any:
        given = {"result": {"id": receipt}, "by": "ann", **KEY, **options}
        return self.app.compensate_duplicate(self.invoice, **given)


def test_a_duplicate_is_undone_once_however_often_it_is_reported(stage: Stage) -> None:
    shop = Shop(stage, stage.process())
    shop.flow(1)
    assert shop.compensate() == "voided"
    assert shop.compensate() == "voided"
    assert Shop(stage, stage.process()).compensate() == "voided"
    assert stage.effects == {"invoice": 1, "void inv_2": 1}


@dataclass
class Invoice:
    total: str
    id: str


def test_a_receipt_is_the_same_as_an_object_and_as_the_dict_that_it_is_kept_as(stage: Stage) -> None:
    app = stage.process()

    @app.step(repeat="safe")
    def void(result: Invoice) -> None:
        stage.do(f"void {result.id}")

    @app.step(undo=void)
    def invoice(order: int) -> Invoice:
        return Invoice("9.99", "inv_1")

    @app.flow(key="order:{order}")
    def sync(order: int) -> None:
        invoice(order)

    sync(1)
    for receipt in (Invoice("9.99", "inv_2"), {"id": "inv_2", "total": "9.99"}, {"total": "9.99", "id": "inv_2"}):
        app.compensate_duplicate(invoice, result=receipt, by="ann", **KEY)
    assert stage.effects == {"void inv_2": 1}


def test_another_receipt_is_another_duplicate(stage: Stage) -> None:
    shop = Shop(stage, stage.process())
    shop.flow(1)
    shop.compensate("inv_2")
    shop.compensate("inv_3")
    assert stage.effects == {"invoice": 1, "void inv_2": 1, "void inv_3": 1}


def test_who_said_so_and_the_receipt_stay_on_record(stage: Stage) -> None:
    shop = Shop(stage, stage.process())
    shop.flow(1)
    shop.compensate(note="found in the books")
    (name,) = [name for name in stage.entries("sync", "order:1") if name.startswith("undo:invoice@")]
    settled = stage.entries("sync", "order:1")[name].note.settled
    assert settled is not None
    assert (settled.verdict, settled.by, settled.note) == ("duplicate", "ann", "found in the books")
    (evidence,) = block(evidence_of(shop.app.store, "default/sync/order:1"))
    assert (evidence.owner, bytes(evidence.result)) == ("ann", b'{"id":"inv_2"}')


def test_the_good_one_is_refused(stage: Stage) -> None:
    shop = Shop(stage, stage.process())
    shop.flow(1)
    with pytest.raises(Misuse, match="the good one"):
        shop.compensate("inv_1")
    assert stage.effects == {"invoice": 1}


def test_the_good_one_is_undone_if_that_is_said(stage: Stage) -> None:
    shop = Shop(stage, stage.process())
    shop.flow(1)
    assert shop.compensate("inv_1", good_too=True) == "voided"


def test_a_run_that_is_not_there_is_refused(stage: Stage) -> None:
    with pytest.raises(Misuse, match="no such run"):
        Shop(stage, stage.process()).compensate()


def test_a_step_without_an_undo_is_refused(stage: Stage) -> None:
    app = stage.process()

    @app.step
    def send() -> None: ...

    with pytest.raises(Misuse, match="no undo"):
        app.compensate_duplicate(send, result=None, by="ann", **KEY)


def test_arguments_that_the_undo_needs_are_asked_for_before_anything_is_done(stage: Stage) -> None:
    app = stage.process()

    @app.step(undo=lambda order, result: stage.do(f"undo {order} {result}"))
    def send(order: int) -> str:
        return "first"

    @app.flow(key="order:{order}")
    def sync(order: int) -> str:
        return send(order)

    sync(1)
    with pytest.raises(Misuse, match="needs order"):
        app.compensate_duplicate(send, result="second", by="ann", **KEY)
    app.compensate_duplicate(send, result="second", by="ann", arguments={"order": 1}, **KEY)
    assert stage.effects == {"undo 1 second": 1}


def test_an_undo_in_doubt_is_not_repeated_without_a_word(stage: Stage) -> None:
    shop = Shop(stage, stage.process())
    shop.flow(1)
    shop.trouble = [TimeoutError("no answer")]
    for _ in range(2):
        with pytest.raises(NeedsReview, match="undone="):
            shop.compensate()
    assert stage.effects["void inv_2"] == 1
    shop.compensate(undone=False)
    assert stage.effects["void inv_2"] == 2


def test_an_undo_that_a_person_saw_done_is_not_repeated(stage: Stage) -> None:
    shop = Shop(stage, stage.process())
    shop.flow(1)
    shop.trouble = [TimeoutError("no answer")]
    with pytest.raises(NeedsReview):
        shop.compensate()
    shop.compensate(undone=True)
    assert stage.effects["void inv_2"] == 1


def test_an_undo_that_was_refused_is_tried_again_when_it_is_asked_for(stage: Stage) -> None:
    shop = Shop(stage, stage.process())
    shop.flow(1)
    shop.trouble = [NotDone("closed")]
    with pytest.raises(Exception, match="closed"):
        shop.compensate()
    assert shop.compensate() == "voided"


@pytest.mark.parametrize("landed", [False, True])
def test_killed_at_every_commit_a_duplicate_is_undone_at_most_once(landed: bool) -> None:
    for at in range(1, 12):
        stage = Stage()
        try:
            Shop(stage, stage.process()).flow(1)
            Shop(stage, stage.process(at, landed=landed)).compensate()
            break
        except Died:
            stage.lapse()
            try:
                assert Shop(stage, stage.process()).compensate() == "voided"
            except NeedsReview:
                assert stage.effects["void inv_2"] <= 1
            assert stage.effects["void inv_2"] <= 1
        finally:
            stage.close()
    assert at > 3


def test_two_who_report_the_same_duplicate_at_once_do_not_both_undo_it(stage: Stage) -> None:
    other = Shop(stage, stage.process())
    app = stage.process()

    @app.step(undo=lambda result: other.compensate())
    def invoice(order: int) -> dict[str, str]:
        return {"id": "inv_1"}

    other.flow(1)
    with pytest.raises(NeedsReview, match="is being worked on"):
        app.compensate_duplicate(invoice, result={"id": "inv_2"}, by="bob", **KEY)
    assert stage.effects == {"invoice": 1}


def test_a_run_that_fails_later_is_still_undone_and_can_still_be_retried(stage: Stage) -> None:
    """The undo of a duplicate is not the undo of the run."""
    app = stage.process()
    fails = [NotDone("no"), NotDone("no")]

    @app.step(undo=lambda result: stage.do(f"undo {result}"))
    def invoice(order: int) -> str:
        return "inv_1"

    @app.step(retry=ONCE)
    def ship(order: int) -> str:
        if fails:
            raise fails.pop()
        return "shipped"

    plain = app.step(name="plain", repeat="safe")(lambda order: None)

    @app.flow(key="order:{order}")
    def sync(order: int) -> str:
        plain(order)
        if order == 1:
            invoice(order)
        return ship(order)

    with pytest.raises(NotDone):
        sync(2)
    with pytest.raises(Misuse, match="not recorded"):
        app.compensate_duplicate(invoice, result="inv_2", by="ann", flow="sync", key="order:2")
    app.compensate_duplicate(invoice, result="inv_2", by="ann", flow="sync", key="order:2", good_too=True)
    fails.clear()
    assert sync.retry(2) == "shipped"


def test_an_awaited_undo_is_awaited(stage: Stage) -> None:
    app = stage.process()

    async def void(result: str) -> None:
        stage.do(f"void {result}")

    @app.step(undo=void)
    async def invoice(order: int) -> str:
        return "inv_1"

    @app.flow(key="order:{order}")
    async def sync(order: int) -> str:
        return await invoice(order)

    async def main() -> None:
        await sync(1)
        await app.compensate_duplicate(invoice, result="inv_2", by="ann", **KEY)

    asyncio.run(main())
    assert stage.effects == {"void inv_2": 1}


def renamed(stage: Stage, name: str) -> tuple[App, Any, Any]:
    """A release in which the invoice's step has this name."""
    app = stage.process()

    @app.step(repeat="safe")
    def void(result: dict[str, str]) -> None:
        stage.do(f"void {result['id']}")

    @app.step(undo=void, name=name)
    def invoice(order: int) -> dict[str, str]:
        return {"id": "inv_1"}

    @app.flow(key="order:{order}")
    def sync(order: int) -> str:
        invoice(order)
        app.sleep("10s")
        return "ok"

    return app, sync, invoice


def words_of(app: App) -> list[tuple[str, ...]]:
    return [move.words for move in app.history("sync/order:1").next]


def test_a_run_whose_flow_changed_goes_on_after_a_duplicate_was_undone(stage: Stage) -> None:
    app, sync, invoice = renamed(stage, "invoice")
    with pytest.raises(Waiting):
        sync(1)
    stage.clock.advance(11)
    with pytest.raises(NeedsReview):
        renamed(stage, "bill")[1](1)
    before = words_of(app)
    app.compensate_duplicate(invoice, result={"id": "inv_2"}, by="ann", **KEY)
    assert words_of(app) == before
    assert ("review", "settle", "sync/order:1", "--undo") in before
    assert app.retry_run("sync/order:1") == "queued"
    assert sync(1) == "ok"
    assert stage.effects == {"void inv_2": 1}


def test_a_run_that_was_given_up_can_be_tried_again_after_a_duplicate_was_undone(stage: Stage) -> None:
    app, sync, invoice = renamed(stage, "invoice")
    with pytest.raises(Waiting):
        sync(1)
    stage.clock.advance(11)
    with pytest.raises(NeedsReview):
        renamed(stage, "bill")[1](1)
    app.compensate_duplicate(invoice, result={"id": "inv_2"}, by="ann", **KEY)
    app.settle_run("sync/order:1", "abandon", by="ann")
    assert words_of(app) == [("runs", "retry", "sync/order:1")]
    assert app.retry_run("sync/order:1") == "queued"
