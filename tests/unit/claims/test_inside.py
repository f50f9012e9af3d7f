"""Re-entrancy: a call for the same key from inside the work is part of it; a task left behind is not."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from msgspec import UNSET

from twiceproof import App, InProgress, NeedsReview, PayloadMismatch
from twiceproof.claims.claim import Done


def test_the_same_key_inside_itself_runs_and_records_once(app: App, style: Any) -> None:
    depth: list[int] = []

    @app.once(key="order:{order}")
    def pay(order: int) -> int:
        depth.append(order)
        return 7 if len(depth) == 3 else pay(order)

    assert (pay(1), depth) == (7, [1, 1, 1])
    assert (pay(1), len(depth)) == (7, 3)


def test_the_same_key_inside_itself_awaits(app: App) -> None:
    depth: list[int] = []

    @app.once(key="order:{order}")
    async def pay(order: int) -> int:
        depth.append(order)
        return 7 if len(depth) == 3 else await asyncio.create_task(pay(order))

    assert (asyncio.run(pay(1)), depth) == (7, [1, 1, 1])


def test_an_error_from_inside_goes_through_as_it_is(app: App) -> None:
    depth: list[int] = []

    @app.once(key="order:{order}")
    def pay(order: int) -> int:
        depth.append(order)
        if len(depth) == 2:
            raise KeyError("deep")
        return pay(order)

    with pytest.raises(NeedsReview) as told:
        pay(1)
    assert isinstance(told.value.__cause__, KeyError)  # and nobody was asked about the inner call


def test_another_key_inside_is_claimed_on_its_own(app: App) -> None:
    runs: list[int] = []

    @app.once(key="order:{order}")
    def pay(order: int) -> int:
        runs.append(order)
        return order if order == 1 else pay(1) + 10

    assert (pay(2), pay(1), runs) == (11, 1, [2, 1])


def test_the_same_key_of_another_operation_inside_is_claimed_on_its_own(app: App) -> None:
    @app.once(key="order:{order}")
    def ship(order: int) -> str:
        return "shipped"

    @app.once(key="order:{order}")
    def pay(order: int) -> str:
        return ship(order)

    pay(1)
    assert isinstance(ship.look(1), Done)


def test_the_same_key_in_another_store_inside_is_claimed_on_its_own(app: App, tmp_path: Any) -> None:
    """Two ledgers that know an operation by the same name: what is done under one says nothing about the other."""
    sent: list[int] = []
    with App(f"sqlite:///{tmp_path}/other.db?durability=process") as other:

        @other.once(key="order:{order}", name="notify")
        def notify_there(order: int) -> str:
            sent.append(order)
            return "sent"

        @app.once(key="order:{order}", name="notify")
        def notify(order: int) -> str:
            with other.claim("log", f"order:{order}"), app.claim("log", f"order:{order}") as inner:
                inner.result = notify_there(order)
            return "told"

        assert (notify(1), notify_there(1), sent) == ("told", "sent", [1])
        assert isinstance(notify_there.look(1), Done)
        assert inner_result(app, "log", "order:1") == "sent"


def inner_result(app: App, operation: str, key: str) -> Any:
    with app.claim(operation, key, on_duplicate="return_prior") as claim:
        assert not claim.held
        return claim.result


def test_a_thread_of_its_own_is_another_caller(app: App) -> None:
    refused: list[BaseException] = []

    @app.once(key="order:{order}")
    def pay(order: int) -> int:
        def again() -> None:
            try:
                pay(order)
            except InProgress as error:
                refused.append(error)

        thread = threading.Thread(target=again)
        thread.start()
        thread.join()
        return 1

    assert pay(1) == 1
    assert len(refused) == 1


def test_a_task_left_behind_does_not_get_in_after_the_end(app: App) -> None:
    runs: list[str] = []
    left: list[asyncio.Task[int]] = []
    ended = asyncio.Event()

    @app.once(key="order:{order}")
    async def pay(order: int) -> int:
        runs.append("run")
        if len(runs) == 1:
            left.append(asyncio.create_task(later(order)))
        return len(runs)

    async def later(order: int) -> int:
        await ended.wait()
        return await pay(order)

    async def all_of_it() -> tuple[int, int]:
        first = await pay(1)
        ended.set()
        return first, await left[0]

    assert asyncio.run(all_of_it()) == (1, 1)
    assert runs == ["run"]


def test_a_task_started_inside_is_part_of_it_while_it_runs(app: App) -> None:
    runs: list[str] = []

    @app.once(key="order:{order}")
    async def pay(order: int) -> int:
        runs.append("run")
        if len(runs) == 1:
            return await asyncio.create_task(pay(order))
        return len(runs)

    assert asyncio.run(pay(1)) == 2


@pytest.mark.parametrize("payload", [UNSET, {"n": 1}], ids=["none", "same"])
def test_the_same_key_inside_itself_with_the_same_payload_is_part_of_the_work(app: App, payload: Any) -> None:
    """As it is one after the other: who says nothing of what is asked asks for nothing else."""
    with app.claim("ship", "order:1", payload={"n": 1}), app.claim("ship", "order:1", payload=payload) as nested:
        assert nested.held


def test_the_same_key_inside_itself_with_another_payload_is_refused(app: App) -> None:
    @app.once(key="order:{order}")
    def pay(order: int, total: int) -> int:
        return total if total == 1 else pay(order, 1)

    with pytest.raises(NeedsReview) as told:
        pay(7, 2)
    assert isinstance(told.value.__cause__, PayloadMismatch)


def test_a_block_without_a_payload_inside_the_same_work_is_part_of_it(app: App) -> None:
    """It says nothing about what is asked, so it asks for nothing else; a take from outside is judged likewise."""

    @app.once(key="order:{order}")
    def pay(order: int) -> bool:
        with app.claim("pay", f"order:{order}") as claim:
            return claim.held

    assert pay(1) is True


def test_a_block_with_another_payload_inside_the_same_work_is_refused(app: App) -> None:
    with app.claim("pay", "order:1", payload={"amount": 1}):
        with app.claim("pay", "order:1", payload={"amount": 1}) as same:
            assert same.held
        with app.claim("pay", "order:1") as silent:
            assert silent.held
        with pytest.raises(PayloadMismatch), app.claim("pay", "order:1", payload={"amount": 2}):
            raise AssertionError
