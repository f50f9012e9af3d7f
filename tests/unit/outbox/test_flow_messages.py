"""`app.send` in flows, steps and transactions: one message per call, in every replay and after every crash."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.unit.flows.stage import DyingEngine
from tests.unit.outbox.stand_in import StandInBroker
from twiceproof import Absent, App, Happened, Misuse, NotDone, PayloadMismatch, Resource, Retry, check, keyed
from twiceproof.errors import TwiceproofWarning
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


WHERE = ("flow", "step")
WAYS: list[dict[str, str]] = [{}, {"order": "customer:1"}, {"key": "k1"}, {"key": "k1", "order": "customer:1"}]


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("where", ["flow", "step"])
def test_sending_costs_no_commit(shop: Shop, how: dict[str, str], where: str) -> None:
    with shop.app() as app:
        assert _commits_of(app, where, how) == _commits_of(app, where, None)
    assert len(shop.published()) == 1


@pytest.mark.server
@pytest.mark.parametrize("server", ["redis_url", "dynamodb_url", "etcd_url"])
def test_on_these_servers_too(server: str, request: pytest.FixtureRequest) -> None:
    commits = []
    for how in (None, *WAYS[1:]):
        with App(request.getfixturevalue(server)) as app:
            app.broker("main", StandInBroker())
            app.route("orders.*", to="main")
            commits.append([_commits_of(app, where, how, "17" if how is None else str(how)) for where in WHERE])
    assert commits == [commits[0]] * 4


@pytest.mark.parametrize("how", WAYS[1:])
@pytest.mark.parametrize("where", ["flow", "step"])
def test_where_a_store_does_not_link_spaces_it_costs_a_commit(shop: Shop, how: dict[str, str], where: str) -> None:
    with shop.app(apart(shop.engine())) as app:
        assert _commits_of(app, where, how) > _commits_of(app, where, None)
    assert len(shop.published()) == 1


@pytest.mark.parametrize("how", [{"order": "customer:1"}, {"key": "k"}])
def test_a_step_that_sends_more_than_one_commit_takes_sends_all_of_it(shop: Shop, how: dict[str, str]) -> None:
    """Those with a space of their own, in commits of their own."""
    count = shop.engine().batch_limit

    def send_all(app: App) -> None:
        for nth in range(count):
            app.send("orders.paid", nth, **{name: f"{at}:{nth}" if name == "key" else at for name, at in how.items()})

    with shop.app() as app:
        step = app.step(repeat="safe", name="pay")(lambda: send_all(app))
        app.flow(key="{order}", name="buy")(lambda order: step())("17")
    assert sorted(msgspec.json.decode(message.body) for message in shop.messages()) == list(range(count))


def test_a_step_may_not_send_more_than_goes_with_its_completion(shop: Shop) -> None:
    """It is told so where it sends: later, its work would have been done."""
    with shop.app() as app:
        sent: list[int] = []

        @app.step(repeat="safe", retry=Retry(attempts=1))
        def work() -> None:
            for nth in range(app.store.batch_limit):
                app.send("orders.paid", nth)
                sent.append(nth)

        @app.flow(key="{order}")
        def buy(order: str) -> None:
            work()

        with pytest.raises(Misuse, match=r"at most 492 messages .* from the flow's body"):
            buy("17")
        assert len(sent) == 492
    assert shop.messages() == []


def test_a_step_sends_as_many_messages_as_it_is_told(shop: Shop) -> None:
    with shop.app() as app:

        @app.step(repeat="safe")
        def work() -> None:
            for nth in range(492):
                app.send("orders.paid", nth)

        @app.flow(key="{order}")
        def buy(order: str) -> None:
            work()

        buy("17")
    assert len(shop.messages()) == 492


def apart(engine: Any) -> DyingEngine:
    """Return an engine that lands each space by itself, as those of some services do."""
    wrapped = engine if isinstance(engine, DyingEngine) else DyingEngine(engine)
    wrapped.links_spaces = False
    return wrapped


def _commits_of(app: App, where: str, how: dict[str, str] | None, run: str = "17") -> int:
    def send(order: str) -> None:
        if how is not None:
            app.send("orders.paid", {"order": order}, **how)  # type: ignore[arg-type]

    step = app.step(repeat="safe", name="pay")(send)

    @app.flow(key="{order}", name=f"{where}.without" if how is None else f"{where}.with")
    def buy(order: str) -> None:
        step(order) if where == "step" else send(order)
        app.now()

    app.runtime.flusher.stop()  # on a slow machine it would add a commit of its own
    commits: list[Any] = []
    app.store.on_commit.append(commits.append)  # type: ignore[attr-defined]
    buy(run)
    return len(commits)


@pytest.mark.slow
@pytest.mark.parametrize("links", [True, False])
@pytest.mark.parametrize("send", WAYS)
def test_killed_at_any_commit_and_replayed_there_is_one_message_per_call(
    tmp_path: Path, send: dict[str, Any], links: bool
) -> None:
    expected: list[str] | None = None
    for after in (False, True):
        for at in range(1, 12):
            shop = Shop(tmp_path / f"{at}{after}.db")
            shop.app().close()
            engine = DyingEngine(shop.engine(), at, after)
            engine.links_spaces = links
            app = shop.app(engine)
            with contextlib.suppress(Exception):
                declare(app, **send)("17")
            died = engine.dead
            engine.dead = True
            app.runtime.flusher.stop()
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


class CutOff(BaseException):
    """Stands for a process that ends after the effect and before its record."""


@pytest.mark.parametrize("sends_in", ["step", "flow"])
def test_a_step_that_is_found_done_has_sent_nothing_and_the_flow_does(shop: Shop, sends_in: str) -> None:
    charged: list[str] = []

    def declare_charge(app: App) -> Any:
        @app.step(repeat=check(lambda order: Happened("paid") if charged else Absent))
        def charge(order: str) -> str:
            charged.append(order)
            if sends_in == "step":
                with pytest.warns(TwiceproofWarning, match="Send it in the flow, after the step") as told:
                    app.send("orders.paid", {"order": order})
                assert told[0].filename == __file__
            raise CutOff

        @app.flow(key="{order}", lease=30)
        def buy(order: str) -> str:
            receipt: str = charge(order)
            if sends_in == "flow":
                app.send("orders.paid", {"order": order})
            return receipt

        return buy

    with shop.app() as app, contextlib.suppress(CutOff):
        declare_charge(app)("17")
    shop.clock.advance(600)
    with shop.app() as app:
        assert declare_charge(app)("17") == "paid"
    assert charged == ["17"] and len(shop.messages()) == (sends_in == "flow")


REPEATS = [("never", True), (keyed(look=lambda order: Absent), True), ("keyed", False), ("safe", False)]


@pytest.mark.parametrize(("repeat", "warned"), REPEATS)
def test_who_sends_in_a_step_that_may_not_be_called_again_is_warned(shop: Shop, repeat: Any, warned: bool) -> None:
    with shop.app() as app, warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert declare_step(app, {"key": "k"}, [1], repeat=repeat)("17") == "paid"
    assert [one.category for one in told] == [TwiceproofWarning] * warned


STEP_WAYS = [{"key": "k"}, {"order": "o"}, {"key": "k", "order": "o"}]


def declare_step(app: App, more: dict[str, str], tries: list[int], **step: Any) -> Any:
    @app.step(**{"repeat": "safe", "retry": Retry(attempts=2, first=0), **step})
    def pay(order: str) -> str:
        app.send("orders.paid", {"order": order}, **more)  # type: ignore[arg-type]
        tries.append(1)
        if len(tries) == 1:
            raise NotDone("not yet")
        return "paid"

    @app.flow(key="{order}", lease=30)
    def buy(order: str) -> str:
        return pay(order)

    return buy


@pytest.mark.parametrize("more", STEP_WAYS)
def test_in_a_step_keys_and_order_are_those_that_were_given(shop: Shop, more: dict[str, str]) -> None:
    tries: list[int] = []
    with shop.app() as app:
        buy = declare_step(app, more, tries)
        assert buy("17") == buy("17") == "paid"
    (message,) = shop.messages()  # the attempt that failed sent nothing
    assert (message.key if "key" in more else "", message.order) == (more.get("key", ""), more.get("order", ""))
    assert len(tries) == 2
    assert shop.published() == [message.key]


@pytest.mark.parametrize("links", [True, False])
@pytest.mark.parametrize("more", STEP_WAYS)
@pytest.mark.parametrize("after", [False, True])
def test_a_step_killed_at_any_commit_sends_one_message(
    tmp_path: Path, more: dict[str, str], after: bool, links: bool
) -> None:
    for at in range(1, 12):
        shop = Shop(tmp_path / f"{at}.db")
        shop.app().close()
        engine = DyingEngine(shop.engine(), at, after)
        engine.links_spaces = links
        app = shop.app(engine)
        with contextlib.suppress(Exception):
            declare_step(app, more, [1])("17")
        died = engine.dead
        engine.dead = True
        app.runtime.flusher.stop()
        app._heartbeat.stop()
        shop.clock.advance(60)
        with shop.app() as next_app:
            assert declare_step(next_app, more, [1])("17") == "paid"
        assert len(shop.messages()) == 1
        engine.inner.close()
        if not died:
            return
    raise AssertionError("there were more commits than were tried")


@pytest.mark.parametrize("links", [True, False])
def test_a_step_that_sends_another_body_under_a_known_key_is_told(shop: Shop, links: bool) -> None:
    with shop.app(None if links else apart(shop.engine())) as app:
        app.send("orders.paid", {"other": 1}, key="k")
        buy = declare_step(app, {"key": "k"}, [1])
        with pytest.raises(PayloadMismatch):
            buy("17")


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


# -- large bodies --------------------------------------------------------------------------------


def declare_large(app: App, **send: Any) -> Any:
    app.route("reports.*", to="main", large="reference")

    @app.flow(key="{order}", lease=30)
    def report(order: str, size: int) -> str:
        sent: SentMessage = app.send("reports.made", {"text": "x" * size}, **send)
        return sent.key

    return report


@pytest.mark.parametrize("send", [{}, {"key": "k", "order": "o"}])
def test_a_large_body_goes_as_a_reference_where_its_route_says_so(shop: Shop, send: dict[str, Any]) -> None:
    with shop.app() as app:
        report = declare_large(app, **send)
        key = report("17", 300_000)
        assert report("17", 300_000) == key
        app.relay().run(until_idle=True)
        (message,) = shop.broker.taken
        assert message.key == key and len(message.body) < 1_000
        kept = msgspec.json.decode(message.body, type=Resource)
        assert msgspec.json.decode(kept.read(app)) == {"text": "x" * 300_000}  # type: ignore[arg-type]


def test_a_small_body_goes_as_it_is(shop: Shop) -> None:
    with shop.app() as app:
        declare_large(app)("17", 100)
        app.relay().run(until_idle=True)
    assert shop.broker.taken[0].body == b'{"text":"%s"}' % (b"x" * 100)


def test_another_large_body_under_a_known_key_is_a_mismatch(shop: Shop) -> None:
    with shop.app() as app:
        report = declare_large(app, key="k")
        report("17", 300_000)
        report("18", 300_000)  # the same body: one message, although its reference would be another
        with pytest.raises(PayloadMismatch):
            report("19", 300_001)
    assert len(shop.messages()) == 1


def test_a_large_body_is_refused_where_no_run_could_keep_it(shop: Shop) -> None:
    with shop.app() as app:
        declare_large(app)
        with pytest.raises(Misuse, match='large="reference"'):
            app.send("reports.made", "x" * 300_000, key="k")
        app.broker("second", StandInBroker())
        app.route("reports.made", to="second")  # which says nothing about large bodies

        @app.flow(key="{order}")
        def report_to_both(order: str) -> None:
            app.send("reports.made", "x" * 300_000)

        with pytest.raises(Misuse, match='large="reference"'):
            report_to_both("17")
    assert shop.messages() == []


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True])
def test_a_large_body_killed_at_any_commit_is_one_message(tmp_path: Path, after: bool) -> None:
    for at in range(1, 12):
        shop = Shop(tmp_path / f"{at}.db")
        shop.app().close()
        engine = DyingEngine(shop.engine(), at, after)
        app = shop.app(engine)
        with contextlib.suppress(Exception):
            declare_large(app)("17", 300_000)
        died = engine.dead
        engine.dead = True
        app.runtime.flusher.stop()
        app._heartbeat.stop()
        shop.clock.advance(60)
        with shop.app() as next_app:
            declare_large(next_app)("17", 300_000)
            next_app.relay().run(until_idle=True)
            (message,) = {one.key: one for one in shop.broker.taken}.values()
            kept = msgspec.json.decode(message.body, type=Resource)
            assert len(kept.read(next_app)) > 300_000  # type: ignore[arg-type]
        engine.inner.close()
        if not died:
            return
    raise AssertionError("there were more commits than were tried")
