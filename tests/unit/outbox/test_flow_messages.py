"""`app.send` in flows, steps and transactions: one message per call, in every replay and after every crash."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.flows.stage import DyingEngine
from tests.unit.outbox.stand_in import StandInBroker
from twiceproof import App, Misuse, NotDone, PayloadMismatch, Retry
from twiceproof.outbox.message import message_of
from twiceproof.outbox.sending import SentMessage
from twiceproof.prove.clocks import ShiftedClock
from twiceproof.stores.grouped import GroupedStore
from twiceproof.stores.sqlite.engine import SqliteEngine


class Shop:
    """A ledger file, a flow that sends, and processes that may die at any commit."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.clock = ShiftedClock()
        self.broker = StandInBroker()

    def app(self, engine: Any = None) -> App:
        app = App(GroupedStore(engine or self.engine(), clock=self.clock), clock=self.clock)
        app.broker("main", self.broker)
        app.route("orders.*", to="main")
        return app

    def engine(self) -> SqliteEngine:
        return SqliteEngine(self.file, clock=self.clock)

    def messages(self) -> list[Any]:
        with self.app() as app:
            page = app.store.scan("message", limit=1_000).block()
            return [message_of(record) for record in page.records if record.state not in ("lane", "held")]

    def published(self) -> list[str]:
        with self.app() as app:
            app.relay().run(until_idle=True)
        return self.broker.keys


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    yield Shop(tmp_path / "shop.db")


def declare(app: App, **send: Any) -> Any:
    @app.step(repeat="safe")
    def invoice(order: str) -> str:
        app.send("orders.invoiced", {"order": order})
        return f"invoice {order}"

    @app.flow(key="order:{order}", lease=30)
    def buy(order: str) -> str:
        done = invoice(order)
        app.send("orders.paid", {"invoice": done}, **send)
        app.send(
            "orders.paid", {"invoice": done, "second": True}, **({} if "key" not in send else {**send, "key": "k2"})
        )
        return done

    return buy


def test_each_call_is_one_message_with_a_key_of_its_own(shop: Shop) -> None:
    with shop.app() as app:
        buy = declare(app)
        assert buy("17") == buy("17") == "invoice 17"
    found = shop.messages()
    assert sorted(message.topic for message in found) == ["orders.invoiced", "orders.paid", "orders.paid"]
    assert len({message.key for message in found}) == 3
    assert all(message.run.startswith("run_") and message.headers["correlation-id"] for message in found)
    assert sorted(shop.published()) == sorted(message.key for message in found)


def test_sending_in_a_flow_costs_no_commit(shop: Shop) -> None:
    counts = []
    for topic in ("orders.paid", ""):
        with shop.app() as app:
            counts.append(_commits_of(app, topic))
    assert counts[0] == counts[1]


def _commits_of(app: App, topic: str) -> int:
    @app.flow(key="{order}", name=f"flow{len(topic)}")
    def buy(order: str) -> None:
        app.send(topic, {"order": order}) if topic else app.now()

    commits: list[Any] = []
    app.store.on_commit.append(commits.append)  # type: ignore[attr-defined]
    buy("17")
    return len(commits)


@pytest.mark.slow
@pytest.mark.parametrize("send", [{}, {"order": "customer:1"}, {"key": "k1"}, {"key": "k1", "order": "customer:1"}])
def test_killed_at_any_commit_and_replayed_there_is_one_message_per_call(tmp_path: Path, send: dict[str, Any]) -> None:
    expected: list[str] | None = None
    for after in (False, True):
        for at in range(1, 12):
            shop = Shop(tmp_path / f"{at}{after}.db")
            shop.app().close()
            engine = DyingEngine(shop.engine(), at, after)
            app = shop.app(engine)
            with contextlib.suppress(Exception):
                declare(app, **send)("17")
            died = engine.dead
            engine.dead = True
            app.parts.flusher.stop()
            app._heartbeat.stop()
            shop.clock.advance(60)
            with shop.app() as next_app:
                assert declare(next_app, **send)("17") == "invoice 17"
            found = sorted(message.key for message in shop.messages())
            expected = expected or found
            assert found == expected
            assert sorted(set(shop.published())) == expected
            engine.inner.close()
            if not died:
                break
        else:
            raise AssertionError("there were more commits than were tried")


def test_an_attempt_that_fails_sends_nothing(shop: Shop) -> None:
    tries: list[int] = []
    with shop.app() as app:

        @app.step(repeat="safe", retry=Retry(attempts=2, first=0))
        def pay(order: str) -> None:
            tries.append(1)
            app.send("orders.paid", {"try": len(tries)})
            if len(tries) == 1:
                raise NotDone("not yet")

        @app.flow(key="{order}")
        def buy(order: str) -> None:
            pay(order)

        buy("17")
    (message,) = shop.messages()
    assert message.body == '{"try":2}'


def test_in_a_step_keys_and_order_are_refused(shop: Shop) -> None:
    with shop.app() as app:

        @app.step(repeat="safe", retry=Retry(attempts=1))
        def pay(more: dict[str, str]) -> None:
            app.send("orders.paid", {}, **more)  # type: ignore[arg-type]

        @app.flow(key="{n}")
        def buy(n: int, more: dict[str, str]) -> None:
            pay(more)

        for n, more in enumerate(({"key": "k"}, {"order": "o"})):
            with pytest.raises(Misuse, match="in the flow's body"):
                buy(n, more)
    assert shop.messages() == []


def test_a_run_whose_claim_was_lost_leaves_no_message(shop: Shop) -> None:
    """Its completion becomes evidence, and its message is not sent."""
    from twiceproof import ClaimLost

    with shop.app() as app, shop.app() as other:

        def flow(one: App, meanwhile: Any) -> Any:
            @one.step(repeat="safe")
            def pay(order: str) -> str:
                meanwhile()
                one.send("orders.paid", {"by": "step"})
                return "paid"

            @one.flow(key="{order}", lease=30, name="buy")
            def buy(order: str) -> str:
                return pay(order)

            return buy

        def overtaken() -> None:
            shop.clock.advance(60)
            flow(other, lambda: None)("17")

        with pytest.raises(ClaimLost):
            flow(app, overtaken)("17")
        assert len(app.store.scan("evidence").block().records) == 1  # of what it returned, and not of its message
    assert len(shop.messages()) == 1
    assert len(shop.published()) == 1


def test_an_async_flow_awaits_it(shop: Shop) -> None:
    with shop.app() as app:

        @app.step(repeat="safe")
        async def pay(order: str) -> str:
            await app.send("orders.paid", {"from": "step"})
            return "paid"

        @app.flow(key="{order}")
        async def buy(order: str) -> str:
            await pay(order)
            sent = await app.send("orders.paid", {"from": "flow"})
            return sent.key

        key = asyncio.run(buy("17"))
    assert key in shop.published()
    assert len(shop.broker.keys) == 2

    async def outside() -> SentMessage:
        with shop.app() as app:
            found: SentMessage = await app.send("orders.paid", {}, key="k")
            return found

    assert asyncio.run(outside()).key == "k"


def test_a_changed_body_in_a_replay_stops_the_run(shop: Shop) -> None:
    from twiceproof import NeedsReview

    bodies = iter([{"v": 1}, {"v": 2}])
    with shop.app() as app:

        @app.flow(key="{order}")
        def buy(order: str) -> None:
            app.send("orders.paid", next(bodies))
            app.sleep("1d")

        buy.start("17")
        app.worker().run(until_idle=True)
        shop.clock.advance(2 * 86_400)
        app.worker().run(until_idle=True)
        with pytest.raises(NeedsReview, match="another body"):
            buy("17")
    assert len(shop.messages()) == 1


def test_two_runs_with_one_key_and_another_body_are_a_mismatch(shop: Shop) -> None:
    with shop.app() as app:

        @app.flow(key="{n}")
        def buy(n: int) -> None:
            app.send("orders.paid", {"n": n}, key="same")

        buy(1)
        with pytest.raises(PayloadMismatch):
            buy(2)
    assert len(shop.messages()) == 1


def test_a_forgotten_run_may_send_again(shop: Shop) -> None:
    from twiceproof.claims.retention import sweep
    from twiceproof.operations import block

    with shop.app() as app:

        @app.flow(key="{order}", keep="1h")
        def buy(order: str) -> None:
            app.send("orders.paid", {"order": order})

        buy("17")
        shop.clock.advance(7_200)
        block(sweep(app.store))
        buy("17")
    assert len(shop.messages()) == 2  # the first is still to be published: it does not go with its run


def declare_transaction(app: App, file: Path, fail: bool = False, **send: Any) -> Any:
    @app.transaction(connect=lambda: sqlite3.connect(file, check_same_thread=False), retry=Retry(attempts=1))
    def pay(connection: Any, order: str) -> str:
        connection.execute("INSERT INTO stock VALUES (?)", (order,))
        app.send("orders.paid", {"order": order}, **send)
        if fail:
            raise NotDone("no money")
        return "paid"

    @app.flow(key="order:{order}", lease=30)
    def buy(order: str) -> str:
        return pay(order)

    return buy


@pytest.mark.parametrize("send", [{}, {"key": "k"}, {"order": "o"}, {"key": "k", "order": "o"}])
def test_under_a_transaction_the_message_is_committed_with_the_work(shop: Shop, send: dict[str, Any]) -> None:
    shop.app().close()
    with contextlib.closing(sqlite3.connect(shop.file)) as db, db:
        db.execute("CREATE TABLE stock (name text)")
    with shop.app() as app, pytest.raises(NotDone):
        declare_transaction(app, shop.file, fail=True, **send)("16")
    assert shop.messages() == []
    with shop.app() as app:
        buy = declare_transaction(app, shop.file, **send)
        assert buy("17") == buy("17") == "paid"
    assert len(shop.messages()) == 1
    assert len(shop.published()) == 1
    with contextlib.closing(sqlite3.connect(shop.file)) as db:
        assert db.execute("SELECT name FROM stock").fetchall() == [("17",)]
