"""Takes that are cancelled on a store elsewhere: what others hold stays theirs, and a cancellation stays one."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from contextvars import copy_context
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict

from twiceproof import App, InProgress
from twiceproof.claims.once import ClaimBlock
from twiceproof.stores.grouped import GroupedStore
from twiceproof.stores.postgres.engine import PostgresEngine

pytestmark = pytest.mark.server


async def cancelled_in_flight(call: Callable[[], Any]) -> None:
    """Its first request is on its way when it is cancelled."""
    task = asyncio.ensure_future(call())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def die_in(claim: ClaimBlock) -> None:
    """It is entered and never left, somewhere else: not in the work that this test is doing."""
    copy_context().run(claim.__enter__)


def test_a_cancelled_re_entry_leaves_the_claim_of_an_earlier_life(postgres_dsn: str) -> None:
    """It died in the middle of its work. Forgotten, anybody else would do the work again."""
    with App(postgres_dsn) as before, App(postgres_dsn) as now:
        die_in(before.claim("ship", "order:1", owner="worker-1"))

        async def enter() -> None:
            async with now.claim("ship", "order:1", owner="worker-1"):
                raise AssertionError("It was cancelled before.")

        asyncio.run(cancelled_in_flight(enter))
        with pytest.raises(InProgress), now.claim("ship", "order:1", owner="worker-2"):
            pass
        with now.claim("ship", "order:1", owner="worker-1") as again:
            assert again.held


def test_a_cancelled_take_gives_its_own_claim_back(postgres_dsn: str) -> None:
    with App(postgres_dsn) as app:

        async def enter() -> None:
            async with app.claim("ship", "order:1"):
                raise AssertionError("It was cancelled before.")

        asyncio.run(cancelled_in_flight(enter))
        with app.claim("ship", "order:1") as claim:
            assert (claim.held, claim.attempt) == (True, 1)


@pytest.fixture
def cut_off(postgres_dsn: str, fault_proxy: Callable[[str, int], Any]) -> Any:
    """An app whose store has gone away, after it was there."""
    target = conninfo_to_dict(postgres_dsn)
    proxy = fault_proxy(str(target["host"]), int(str(target["port"])))
    with App(GroupedStore(PostgresEngine(proxy.url(postgres_dsn)), patience=0.3)) as app:
        die_in(app.claim("warm", "up"))
        proxy.close()
        yield app


def test_a_time_out_while_the_store_is_away_is_a_time_out(cut_off: App) -> None:
    """Anything else would be caught by an `except Exception`, and the task would go on."""

    @cut_off.once(key="order:{order}")
    async def pay(order: int) -> int:
        return order

    async def scene() -> None:
        async with asyncio.timeout(0.05):
            await pay(1)

    with pytest.raises(TimeoutError) as caught:
        asyncio.run(scene())
    cancelled = caught.value.__cause__ or caught.value.__context__  # early releases of Python 3.11 name no cause
    assert any("could not give the claim back" in note for note in cancelled.__notes__)


def test_an_interrupt_while_the_store_is_away_is_an_interrupt(cut_off: App) -> None:
    """Or a loop that tries again whatever happens could not be ended with Ctrl-C."""

    @cut_off.once(key="order:{order}")
    def pay(order: int) -> int:
        return order

    def ring(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, ring)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(KeyboardInterrupt):
            pay(1)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
