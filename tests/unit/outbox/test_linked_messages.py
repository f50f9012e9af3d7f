"""Messages with a key or an order key land with their run's entries: in the order of the commits, refused together
with them, and never in the way of what was done before.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.unit.flows.stage import DyingEngine
from tests.unit.outbox.stand_in import StandInBroker
from tests.unit.outbox.test_flow_messages import Shop
from twiceproof import App, PayloadMismatch, StoreUnavailable, Waiting
from twiceproof.flows.engine.ledger import STEP_KIND
from twiceproof.outbox.lanes import TICKET_KIND
from twiceproof.records import Batch
from twiceproof.stores.base import SPACE_BUSY
from twiceproof.stores.grouped import GroupedStore


class SurprisingEngine(DyingEngine):
    """Does something just before the first commit that links spaces, or says that another transaction holds them."""

    meanwhile: Callable[[], object] | None = None
    holds = False

    def commit(self, batches: Sequence[Batch]) -> Any:
        linked = [bool(batch.others) for batch in batches]
        if any(linked) and self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            meanwhile()
        if any(linked) and self.holds:
            return [SPACE_BUSY] * len(batches)
        return super().commit(batches)


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path / "shop.db")


def entries(app: App) -> list[str]:
    return sorted(record.at.key for record in app.store.scan(STEP_KIND).block().records)


# -- order ---------------------------------------------------------------------------------------


def send_from_runs(app: App, broker: StandInBroker, count: int, threads: int) -> list[tuple[str, int]]:
    """Each run sends three messages into one lane. Return the lane's messages by its numbers, as run and place."""

    @app.step(repeat="safe")
    def work(order: str) -> str:
        app.send("orders.paid", [order, 1], order="customer:1")
        return order

    @app.flow(key="{order}")
    def buy(order: str) -> None:
        app.send("orders.paid", [order, 0], order="customer:1")
        work(order)
        app.send("orders.paid", [order, 2], order="customer:1")

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(buy, [f"{nth}" for nth in range(count)]))
    tickets = app.store.scan(TICKET_KIND, limit=1_000).block().records
    assert [int(one.at.key) for one in sorted(tickets, key=lambda one: one.at.key)] == list(range(1, 3 * count + 1))
    app.relay().run(until_idle=True)
    bodies = [msgspec.json.decode(message.body) for message in broker.taken]
    return [(str(order), int(place)) for order, place in bodies]


def check_order(seen: list[tuple[str, int]], count: int) -> None:
    assert len(seen) == len(set(seen)) == 3 * count
    for order in {order for order, _ in seen}:
        assert [place for one, place in seen if one == order] == [0, 1, 2]


def test_runs_that_send_into_one_lane_at_once_have_a_number_for_each_message(shop: Shop) -> None:
    with shop.app() as app:
        check_order(send_from_runs(app, shop.broker, 30, 8), 30)


@pytest.mark.server
@pytest.mark.parametrize("server", ["postgres_dsn", "mariadb_url", "redis_url", "dynamodb_url", "etcd_url"])
def test_the_same_on_servers(server: str, request: pytest.FixtureRequest) -> None:
    with App(request.getfixturevalue(server)) as app:
        broker = StandInBroker()
        app.broker("main", broker)
        app.route("orders.*", to="main")
        check_order(send_from_runs(app, broker, 20, 6), 20)


def test_a_run_after_another_sends_after_it(shop: Shop) -> None:
    with shop.app() as app:
        seen = send_from_runs(app, shop.broker, 5, 1)
    assert seen == [(str(order), place) for order, place in itertools.product(range(5), range(3))]


# -- one key -------------------------------------------------------------------------------------


def test_one_key_twice_in_a_run_is_one_message(shop: Shop) -> None:
    with shop.app() as app:

        @app.step(repeat="safe")
        def pay(order: str) -> None:
            app.send("orders.paid", {"order": order}, key="k")
            app.send("orders.paid", {"order": order}, key="k")

        @app.flow(key="{order}")
        def buy(order: str) -> list[bool]:
            first = app.send("orders.paid", {"order": order}, key="k")
            second = app.send("orders.paid", {"order": order}, key="k")
            pay(order)
            return [first.earlier, second.earlier]

        assert buy("17") == [False, True]
    assert shop.published() == ["k"]


@pytest.mark.parametrize("where", ["flow", "step"])
def test_one_key_with_two_bodies_in_a_run_is_a_mismatch(shop: Shop, where: str) -> None:
    with shop.app() as app:

        def send(order: str) -> None:
            app.send("orders.paid", {"n": 1}, key="k")
            app.send("orders.paid", {"n": 2}, key="k")

        step = app.step(repeat="safe", name="pay")(send)

        @app.flow(key="{order}")
        def buy(order: str) -> None:
            step(order) if where == "step" else send(order)

        with pytest.raises(PayloadMismatch):
            buy("17")
    assert len(shop.messages()) == (where == "flow")


def test_a_run_that_sends_what_was_sent_before_is_told_so(shop: Shop) -> None:
    with shop.app() as app:

        @app.flow(key="{n}")
        def buy(n: int) -> bool:
            return bool(app.send("orders.paid", {}, key="same").earlier)

        assert [buy(1), buy(2), buy(1)] == [False, True, False]
    assert shop.published() == ["same"]


# -- a key that another sender uses at the same moment -------------------------------------------


class Racing:
    """A flow whose message meets another with its key, sent after the flow has looked and before it commits."""

    def __init__(self, shop: Shop, body: Any, **sends: str) -> None:
        self.shop, self.sends = shop, {"key": "k", **sends}
        self.engine = SurprisingEngine(shop.engine())
        self.app = shop.app(self.engine)
        self.engine.meanwhile = lambda: _elsewhere(lambda: self.send_first(body))
        self.acted: list[str] = []
        self.sent = threading.Event()

    def send_first(self, body: Any) -> None:
        with self.shop.app() as other:
            other.send("orders.paid", body, **self.sends)  # type: ignore[arg-type]
        self.sent.set()

    def flow(self, app: App, *, waits: bool = False) -> Any:
        act = app.step(repeat="safe", name="act")(self.acted.append)
        last = app.step(repeat="never", name="last")(self.acted.append)

        @app.flow(key="{order}", lease=30)
        def buy(order: str) -> str:
            act("before")
            app.send("orders.paid", {"n": 1}, **self.sends)
            app.now()
            if waits:
                assert self.sent.wait(10)
            act("after")
            last("end")
            return "bought"

        return buy


def _elsewhere(act: Callable[[], object]) -> None:
    """Do it outside of the run."""
    thread = threading.Thread(target=act)
    thread.start()
    thread.join()


def test_if_it_is_the_same_message_the_run_goes_on(shop: Shop) -> None:
    racing = Racing(shop, {"n": 1})
    with racing.app as app:
        assert racing.flow(app)("17") == "bought"
    assert racing.acted == ["before", "after", "end"]
    assert shop.published() == ["k"]


@pytest.mark.parametrize("sends", [{}, {"order": "customer:1"}])
@pytest.mark.parametrize("waits", [False, True])
def test_if_it_is_another_the_run_fails_where_it_sends(shop: Shop, sends: dict[str, str], waits: bool) -> None:
    """If the flow waits, the background's write meets it first. Calls after the sending one are not in the ledger, or a
    replay would find them where it does not come any more; those before it are.
    """
    racing = Racing(shop, {"n": 2}, **sends)
    with racing.app as app:
        buy = racing.flow(app, waits=waits)
        with pytest.raises(Waiting):
            buy("17")
        assert entries(app) == ["act"]
        with pytest.raises(PayloadMismatch):
            buy("17")
    assert racing.acted.count("before") == 1
    assert "end" not in racing.acted
    (message,) = shop.messages()
    assert message.body == '{"n":2}'


def test_at_the_end_of_a_run_too(shop: Shop) -> None:
    racing = Racing(shop, {"n": 2})
    with racing.app as app:

        @app.flow(key="{order}", lease=30)
        def buy(order: str) -> str:
            app.send("orders.paid", {"n": 1}, key="k")
            return "bought"

        with pytest.raises(Waiting):
            buy("17")
        with pytest.raises(PayloadMismatch):
            buy("17")
    assert [message.body for message in shop.messages()] == ['{"n":2}']


# -- a lane that a user's transaction holds ------------------------------------------------------


def test_what_was_done_before_an_ordered_message_is_recorded_though_its_lane_is_held(shop: Shop) -> None:
    engine = SurprisingEngine(shop.engine())
    engine.holds = True
    acted: list[str] = []
    app = App(GroupedStore(engine, clock=shop.clock, patience=0.1), clock=shop.clock)
    app.broker("main", shop.broker)
    app.route("orders.*", to="main")

    def declare(one: App) -> Any:
        act = one.step(repeat="safe", name="act")(acted.append)

        @one.flow(key="{order}", lease=30)
        def buy(order: str) -> str:
            act("before")
            one.send("orders.paid", {}, order="customer:1")
            act("after")
            one.step(repeat="never", name="last")(acted.append)("end")
            return "bought"

        return buy

    with app:
        app.runtime.flusher.stop()
        with pytest.raises(StoreUnavailable):
            declare(app)("17")
        assert entries(app) == ["act"]
        assert acted == ["before"]  # nothing acts before the message is written
    shop.clock.advance(600)
    with shop.app() as app:
        assert declare(app)("17") == "bought"
    assert acted == ["before", "after", "end"]
    assert len(shop.published()) == 1
