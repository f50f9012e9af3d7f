"""An outbox table in another database: each committed row becomes one message, in its order, whatever dies."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.outbox.stand_in import StandInBroker
from twiceproof import App, Misuse, TwiceproofWarning
from twiceproof.effects.sql_databases import database_of
from twiceproof.operations import block
from twiceproof.outbox import drain
from twiceproof.outbox.drain import Drain
from twiceproof.outbox.foreign_table import outbox_ddl
from twiceproof.outbox.queries import list_messages
from twiceproof.prove.clocks import ManualClock
from twiceproof.stores.grouped import GroupedStore
from twiceproof.stores.memory import MemoryEngine

DIALECT = {"sqlite": "sqlite", "postgresql": "postgresql", "mariadb": "mariadb", "mysql": "mariadb"}
SERVER = pytest.mark.server


class Shop:
    """A shop's own database with the outbox tables, and an app whose ledger is elsewhere."""

    def __init__(self, ledger: str, database: str) -> None:
        self.url = database
        self.ledger = ledger
        self.broker = StandInBroker()
        self.app = self.process()
        if database.startswith("sqlite:///"):
            Path(database.removeprefix("sqlite:///")).touch()
        for statement in outbox_ddl(DIALECT[database.partition(":")[0]]).split(";\n"):
            if statement.strip():
                self.run(statement)

    def process(self) -> App:
        app = App(self.ledger)
        app.broker("main", self.broker)
        app.route("orders.*", to="main")
        app.drain(self.url, name="shop")
        return app

    def run(self, sql: str) -> list[Any]:
        with database_of(self.url).open() as connection:
            return connection.run(sql).rows

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Any]:
        with database_of(self.url).lend() as handle:
            cursor = handle.cursor()
            cursor.execute("BEGIN IMMEDIATE" if self.url.startswith("sqlite") else "BEGIN")
            try:
                yield handle
            except BaseException:
                handle.rollback()
                raise
            handle.commit()

    def send(self, *keys: str, order: str | None = None, body: Any = None, app: App | None = None) -> None:
        with self.transaction() as connection, (app or self.app).outbox(connection, ledger="elsewhere") as outbox:
            for key in keys:
                outbox.send("orders.paid", {"key": key} if body is None else body, key=key, order=order)

    @property
    def mover(self) -> Drain:
        return self.app.draining().drains[0]

    def move(self) -> None:
        self.app.draining().run(until_idle=True)

    def left(self) -> int:
        return int(self.run("SELECT count(*) FROM twiceproof_outbox")[0][0])

    def published(self) -> list[str]:
        self.app.relay().run(until_idle=True)
        return self.broker.keys

    def pending(self) -> list[str]:
        return sorted(one.key for one in block(list_messages(self.app.store, "default", limit=10_000)))


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=SERVER), pytest.param("mariadb", marks=SERVER)])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    yield from made(request, tmp_path, request.param, "sqlite")


def made(request: pytest.FixtureRequest, folder: Path, source: str, ledger: str) -> Iterator[Shop]:
    urls = {"sqlite": f"sqlite:///{folder / 'shop.db'}", "ledger": f"sqlite:///{folder / 'ledger.db'}"}
    if source != "sqlite":
        urls[source] = request.getfixturevalue({"postgresql": "postgres_dsn", "mariadb": "mariadb_url"}[source])
    where = urls["ledger"] if ledger == "sqlite" else request.getfixturevalue("postgres_dsn")
    shop = Shop(where, urls[source])
    yield shop
    shop.app.close()
    database_of(shop.url).close_idle()


def test_committed_rows_become_messages_and_are_deleted(shop: Shop) -> None:
    shop.send("a", "b")
    assert shop.left() == 2 and shop.pending() == []
    shop.move()
    assert shop.left() == 0 and sorted(shop.published()) == ["a", "b"]
    assert shop.broker.taken[0].body == b'{"key":"a"}' and shop.mover.moved == 2


def test_a_rolled_back_transaction_leaves_no_row_and_gives_its_number_back(shop: Shop) -> None:
    shop.send("1", order="order:17")
    with pytest.raises(ZeroDivisionError), shop.transaction() as connection:
        with shop.app.outbox(connection, ledger="elsewhere") as outbox:
            outbox.send("orders.paid", 1, key="gone", order="order:17")
        raise ZeroDivisionError
    shop.send("2", order="order:17")
    assert shop.run("SELECT seq FROM twiceproof_outbox ORDER BY seq") == [(1,), (2,)]
    shop.move()
    assert shop.published() == ["1", "2"]


def test_an_error_in_the_block_sends_nothing(shop: Shop) -> None:
    with (
        shop.transaction() as connection,
        pytest.raises(ZeroDivisionError),
        shop.app.outbox(connection, ledger="elsewhere") as outbox,
    ):
        outbox.send("orders.paid", 1, key="gone")
        raise ZeroDivisionError
    assert shop.left() == 0


def test_the_same_key_and_body_is_one_message(shop: Shop) -> None:
    shop.send("a", "a")
    shop.move()
    shop.send("a")
    shop.move()
    assert shop.left() == 0 and shop.published() == ["a"]


def test_another_body_under_a_known_key_is_left_in_the_table_with_its_reason(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    shop.send("a")
    shop.send("a", body="other")
    shop.send("b")
    shop.move()
    shop.move()
    assert shop.run("SELECT refused FROM twiceproof_outbox") == [("PayloadMismatch",)]
    assert shop.pending() == ["a", "b"] and (shop.mover.moved, shop.mover.refused) == (2, 1)
    (line,) = [record for record in caplog.records if record.name == "twiceproof.drain"]
    assert "refused = ''" in line.getMessage()


@pytest.mark.parametrize(
    ("topic", "body", "headers", "why"),
    [
        ("mails.sent", "1", "{}", "Misuse"),
        ("orders.paid", "{", "{}", "DecodeError"),
        ("orders.paid", "1", '{"ce-id": "x"}', "Misuse"),
        ("orders.paid", "1", "[]", "ValidationError"),
        ("orders.paid", '"' + "x" * 300_000 + '"', "{}", "Misuse"),
        ("orders.paid", '[{"id": 1, "id": 2}]', "{}", "Misuse"),
        ("orders.paid", "1", '{"x": "1", "x": "2"}', "Misuse"),
    ],
    ids=["no route", "no JSON", "our header", "headers", "too large", "a name twice", "a header twice"],
)
def test_a_row_that_cannot_be_sent_holds_up_no_other(shop: Shop, topic: str, body: str, headers: str, why: str) -> None:
    key = "`key`" if shop.url.startswith("m") else "key"
    shop.run(
        f"INSERT INTO twiceproof_outbox (topic, {key}, body, headers, order_key, seq) "
        f"VALUES ('{topic}', 'bad', '{body}', '{headers}', 'k', 1)"
    )
    shop.send("good")
    shop.move()
    assert shop.pending() == ["good"]
    assert shop.run("SELECT refused FROM twiceproof_outbox") == [(why,)]


@pytest.mark.parametrize("repair", ["UPDATE twiceproof_outbox SET body = '2'", "DELETE FROM twiceproof_outbox"])
def test_rows_behind_a_refused_one_of_their_order_key_do_not_pass_it(shop: Shop, repair: str) -> None:
    shop.send("a1", "a2", "a3", order="a")
    shop.send("b1", "b2", order="b")
    shop.send("c")
    key = "`key`" if shop.url.startswith("m") else "key"
    shop.run(f"UPDATE twiceproof_outbox SET body = '{{' WHERE {key} = 'a2'")
    shop.move()
    shop.send("a4", order="a")
    shop.move()
    assert sorted(shop.published()) == ["a1", "b1", "b2", "c"]
    assert shop.left() == 3 and shop.mover.refused == 1
    shop.run(f"{repair} WHERE {key} = 'a2'")
    shop.run("UPDATE twiceproof_outbox SET refused = ''")
    shop.move()
    later = ["a2", "a3", "a4"] if repair.startswith("UPDATE") else ["a3", "a4"]
    assert shop.left() == 0 and shop.published()[4:] == later


def test_a_backlog_without_order_keys_does_not_hold_up_those_with_one(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drain, "BATCH", 2)
    shop.send("a", "b", "c", "d")
    shop.send("x", "y", "z", order="o")
    shop.mover.move()
    assert shop.pending() == ["a", "b", "x", "y"]
    shop.move()
    assert shop.left() == 0


def test_a_repaired_row_is_sent(shop: Shop) -> None:
    shop.send("a", "b")
    shop.run("UPDATE twiceproof_outbox SET refused = 'Misuse'")
    shop.move()
    assert shop.left() == 2
    shop.run("UPDATE twiceproof_outbox SET refused = ''")
    shop.move()
    assert sorted(shop.published()) == ["a", "b"]


def test_other_languages_insert_a_row_by_themselves(shop: Shop) -> None:
    key = "`key`" if shop.url.startswith("m") else "key"
    shop.run(f"INSERT INTO twiceproof_outbox (topic, {key}, body) VALUES ('orders.paid', 'k', '{{\"price\": 1.10}}')")
    shop.move()
    assert shop.published() == ["k"] and shop.broker.taken[0].body == b'{"price": 1.10}'


def test_another_tenants_rows_are_left_to_its_own_drain(shop: Shop) -> None:
    shop.send("a", app=shop.app.of("acme"))
    shop.move()
    assert shop.left() == 1
    shop.app.of("acme").drain(shop.url, name="acme")
    shop.move()
    assert shop.left() == 0 and shop.pending() == []
    assert [one.key for one in block(list_messages(shop.app.store, "acme"))] == ["a"]


def test_bytes_headers_and_the_correlation_id_survive(shop: Shop) -> None:
    raw = bytes(range(256))
    with (
        shop.app.correlate("req-1"),
        shop.transaction() as connection,
        shop.app.outbox(connection, ledger="elsewhere") as outbox,
    ):
        outbox.send("orders.paid", raw, key="k", headers={"X-Shop": "süd"}, content_type="image/png")
    shop.move()
    shop.published()
    (message,) = shop.broker.taken
    assert message.body == raw and message.content_type == "image/png"
    assert message.headers["x-shop"] == "süd" and message.headers["correlation-id"] == "req-1"


def test_what_cannot_be_sent_is_refused_before_the_commit(shop: Shop) -> None:
    with shop.transaction() as connection, shop.app.outbox(connection, ledger="elsewhere") as outbox:
        with pytest.raises(Misuse, match="No route"):
            outbox.send("mails.sent", 1, key="k")
        with pytest.raises(Misuse, match="delay"):
            outbox.send("orders.paid", 1, key="k", delay="5s")
        with pytest.warns(TwiceproofWarning, match="without key="):
            outbox.send("orders.paid", 1)
    with pytest.raises(Misuse, match="has not begun"):
        outbox.send("orders.paid", 1, key="k")
    with pytest.raises(Misuse, match="elsewhere"):
        shop.app.outbox(object(), ledger="nowhere")  # type: ignore[call-overload]


def test_senders_of_one_order_key_come_in_the_order_of_their_commits(shop: Shop) -> None:
    committed: list[str] = []
    lock = threading.Lock()

    def sender(number: int) -> None:
        for turn in range(10):
            key = f"{number}-{turn}"
            with shop.transaction() as connection:
                with shop.app.outbox(connection, ledger="elsewhere") as outbox:
                    outbox.send("orders.paid", key, key=key, order="order:17")
                lock.acquire()  # held over the commit: the lane's row is locked by now
                committed.append(key)
            lock.release()

    threads = [threading.Thread(target=sender, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        shop.move()
    shop.move()
    assert len(committed) == 30 and shop.published() == committed


# -- killed at each boundary ---------------------------------------------------------------------


class Killed(BaseException):
    """As SIGKILL: no handler of the product sees it."""


class Boundaries:
    """Counts what a mover asks of the two databases, and ends it before or after the chosen one."""

    def __init__(self, drain: Drain, at: int, *, after: bool) -> None:
        self.passed, self.at, self.after = 0, at, after
        store = drain._store
        drain._store = self  # type: ignore[assignment]
        self._store = store
        run = drain._run
        drain._run = lambda *given: self.through(lambda: run(*given))  # type: ignore[method-assign]

    def through(self, work: Callable[[], Any]) -> Any:
        mine, self.passed = self.passed == self.at, self.passed + 1
        if mine and not self.after:
            raise Killed
        done = work()
        if mine:
            raise Killed
        return done

    def write(self, *writes: Any) -> Any:
        return Through(self, self._store.write(*writes))

    def write_each(self, batches: Any) -> Any:
        return Through(self, self._store.write_each(batches))


class Through:
    def __init__(self, boundaries: Boundaries, request: Any) -> None:
        self.boundaries, self.request = boundaries, request

    def __iter__(self) -> Any:
        return (yield self)

    def block(self) -> Any:
        return self.boundaries.through(self.request.block)


def play(shop: Shop, dice: random.Random, name: str, *, at: int | None = None) -> int:
    """Send some, kill movers on the way, move the rest; return at how many boundaries one could have been killed."""
    plain = [f"{name}-p{n}" for n in range(3)]
    ordered = [f"{name}-o{n}" for n in range(4)]
    shop.send(*plain)
    for key in ordered:
        shop.send(key, order=f"order:{name}")
    passed = 0
    for kill in range(1 if at is not None else 3):
        drain = Drain(
            shop.app.store, shop.url, "default", shop.app.routing, every=1.0, name=f"{name}{kill}", clock=shop.app.clock
        )
        chosen = dice.randrange(10) if at is None else at
        counted = Boundaries(drain, chosen, after=dice.random() < 0.5)
        with contextlib.suppress(Killed):
            drain.move()
        passed = max(passed, counted.passed)
    shop.move()
    assert shop.left() == 0
    shop.published()
    first = [key for key in shop.broker.keys if key.startswith(f"{name}-")]
    assert sorted(first) == sorted(plain + ordered), first
    assert [key for key in first if "-o" in key] == ordered
    return passed


def test_a_mover_killed_at_every_boundary_moves_each_row_once(shop: Shop) -> None:
    dice = random.Random(7)
    boundaries = play(shop, dice, "count", at=1_000)
    for at in range(boundaries):
        for turn in range(2):
            play(shop, dice, f"b{at}t{turn}", at=at)
    assert boundaries >= 7


@SERVER
@pytest.mark.parametrize(("source", "ledger"), [("postgresql", "sqlite"), ("mariadb", "postgresql")])
def test_movers_killed_500_times_between_two_databases(
    request: pytest.FixtureRequest, tmp_path: Path, source: str, ledger: str
) -> None:
    for shop in made(request, tmp_path, source, ledger):
        for turn in range(167):  # three kills each
            play(shop, random.Random(turn), f"t{turn}")


def test_a_mover_that_wakes_after_another_has_moved_all_changes_nothing(shop: Shop) -> None:
    shop.send("1", "2", order="order:17")
    shop.send("a")
    sleeper = Drain(shop.app.store, shop.url, "default", shop.app.routing, every=1, name="s", clock=shop.app.clock)
    read = sleeper._read

    def sleeping(connection: Any) -> Any:
        rows = read(connection)
        shop.move()  # meanwhile, by another
        shop.send("3", order="order:17")
        shop.move()
        shop.published()
        return rows

    sleeper._read = sleeping  # type: ignore[method-assign]
    sleeper.move()
    assert shop.published() == [*sorted(shop.broker.keys, key=shop.broker.keys.index)]
    assert sorted(shop.broker.keys) == ["1", "2", "3", "a"]
    assert [key for key in shop.broker.keys if key != "a"] == ["1", "2", "3"]


# -- its life ------------------------------------------------------------------------------------


def test_a_drain_runs_beside_a_worker(shop: Shop) -> None:
    shop.send("a")
    shop.app.worker().run(until_idle=True)
    assert shop.broker.keys == ["a"]


def test_one_process_moves_at_a_time_and_another_takes_over(shop: Shop) -> None:
    other = shop.process()
    with other:
        assert shop.mover._taken() is not None
        assert other.draining().drains[0]._taken() is None
        shop.send("a")
        assert other.draining().drains[0].run_once() == 1.0 and shop.left() == 1


@pytest.mark.parametrize("freed", [True, False])
def test_a_drain_whose_time_was_written_while_the_stores_clock_was_ahead_goes_on(tmp_path: Path, freed: bool) -> None:
    clock = ManualClock()
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    with contextlib.closing(sqlite3.connect(tmp_path / "shop.db")) as db:
        db.executescript(outbox_ddl("sqlite"))
    app = App(GroupedStore(MemoryEngine(clock), clock=clock), clock=clock)
    app.drain(url, name="shop")
    (mover,) = app.draining().drains
    clock.set_wall(3_600.0)
    assert mover.run_once() == 1.0 if freed else mover._taken() is not None
    clock.set_wall(-3_600.0)
    turns = [mover._taken() is not None for _ in range(2)]
    assert turns == [False, True]


@pytest.mark.parametrize(("every", "held"), [("1s", 5.0), ("1m", 180.0), ("1h", 300.0)])
def test_how_soon_another_takes_over_from_one_that_died_follows_the_interval(
    tmp_path: Path, every: str, held: float
) -> None:
    clock = ManualClock()
    store = GroupedStore(MemoryEngine(clock), clock=clock)

    def mover() -> Drain:
        app = App(store, clock=clock)
        app.drain(f"sqlite:///{tmp_path / 'shop.db'}", every=every, name="shop")
        return app.draining().drains[0]

    died, other = mover(), mover()
    assert died._taken() is not None
    clock.advance(held - 0.1)
    assert other._taken() is None
    clock.advance(0.2)
    assert other._taken() is not None


def test_a_database_that_is_away_is_one_line_and_then_one_more(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    file = tmp_path / "later.db"
    with App(f"sqlite:///{tmp_path / 'ledger.db'}") as app:
        app.drain(f"sqlite:///{file}", name="later")
        (drain,) = app.draining().drains
        for _ in range(3):
            drain._declared = False
            assert 0 < drain.run_once() <= 60
            block_lease(app, drain)
        file.touch()
        with database_of(f"sqlite:///{file}").open() as connection:
            for statement in outbox_ddl("sqlite").split(";\n")[:3]:
                connection.run(statement)
        drain._declared = False
        assert drain.run_once() == 1.0
    lines = [record.getMessage() for record in caplog.records if "outbox later" in record.getMessage()]
    assert len(lines) == 2 and "cannot be reached" in lines[0] and "is back" in lines[1]


def test_a_database_that_was_not_asked_is_not_called_back(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """After a failure the lease is still held, by this mover itself."""
    with App(f"sqlite:///{tmp_path / 'ledger.db'}") as app:
        app.drain(f"sqlite:///{tmp_path / 'nowhere.db'}", name="later")
        (drain,) = app.draining().drains
        drain.run_once()
        assert drain._taken() is None
        drain.run_once()
    (line,) = [record.getMessage() for record in caplog.records if "outbox later" in record.getMessage()]
    assert "cannot be reached" in line


def block_lease(app: App, drain: Drain) -> None:
    """End the lease, as time does."""
    from twiceproof.records import Remove

    found = app.store.read(drain._at).block().record
    assert found is not None
    app.store.write(Remove(found.at, version=found.version)).block()


def test_two_drains_need_two_names(shop: Shop) -> None:
    with pytest.raises(Misuse, match="another name"):
        shop.app.drain(shop.url, name="shop")


@SERVER
def test_asynchronous_connections_send_into_another_database(
    request: pytest.FixtureRequest, tmp_path: Path, postgres_dsn: str
) -> None:
    asyncpg = pytest.importorskip("asyncpg")
    psycopg = pytest.importorskip("psycopg")
    for shop in made(request, tmp_path, "postgresql", "sqlite"):

        async def both(shop: Shop = shop) -> None:
            one = await asyncpg.connect(postgres_dsn)
            async with one.transaction(), shop.app.outbox(one, ledger="elsewhere") as outbox:
                outbox.send("orders.paid", 1, key="a", order="k")
            await one.close()
            async with (
                await psycopg.AsyncConnection.connect(postgres_dsn) as two,
                shop.app.outbox(two, ledger="elsewhere") as outbox,
            ):
                outbox.send("orders.paid", 2, key="b", order="k")

        asyncio.run(both())
        shop.move()
        assert shop.published() == ["a", "b"]


@SERVER
@pytest.mark.parametrize("way", ["core", "session"])
def test_sqlalchemy_sends_into_another_database(shop: Shop, way: str) -> None:
    sqlalchemy = pytest.importorskip("sqlalchemy")
    from sqlalchemy.orm import Session

    scheme = {"sqlite": "sqlite", "postgresql": "postgresql+psycopg", "mariadb": "mysql+pymysql"}
    name, _, rest = shop.url.partition(":")
    engine = sqlalchemy.create_engine(f"{scheme.get(name, 'mysql+pymysql')}:{rest}")
    opened = engine.begin() if way == "core" else Session(engine)
    with opened as connection:
        connection.execute(sqlalchemy.text("SELECT 1"))
        with shop.app.outbox(connection, ledger="elsewhere") as outbox:
            outbox.send("orders.paid", 1, key="a", order="k")
        if way == "session":
            connection.commit()
    engine.dispose()
    shop.move()
    assert shop.published() == ["a"]


@pytest.mark.parametrize(("dialect", "named"), [("sqlserver", "SQL Server"), ("oracle", "Oracle")])
def test_a_database_that_could_not_be_tried_is_refused_with_what_to_do_instead(dialect: str, named: str) -> None:
    with pytest.raises(Misuse, match=f"no tables for {named}.*app.poll"):
        outbox_ddl(dialect)
    with pytest.raises(Misuse, match="postgresql, mariadb, sqlite"):
        outbox_ddl("db2")
