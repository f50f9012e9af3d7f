"""Messages in the user's own transaction: there if it is committed, and otherwise not."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
from base64 import b64encode
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.outbox.stand_in import StandInBroker
from twiceproof import App, Misuse, PayloadMismatch, TwiceproofWarning
from twiceproof.outbox.message import message_of

PG = pytest.mark.server


class Ledger:
    """An app with a route, the user's own table beside its ledger, and what there is."""

    def __init__(self, url: str, run: Callable[[str], list[Any]]) -> None:
        self.url = url
        self.app = App(url)
        self.broker = StandInBroker()
        self.app.broker("main", self.broker)
        self.app.route("orders.*", to="main")
        self._run = run
        run("CREATE TABLE stock (name text)")

    def stock(self) -> list[str]:
        return [name for (name,) in self._run("SELECT name FROM stock ORDER BY name")]

    def keys(self) -> list[str]:
        page = self.app.store.scan("message", limit=5_000).block()
        return sorted(message_of(record).key for record in page.records if record.state == "pending")

    def published(self) -> list[str]:
        self.app.relay().run(until_idle=True)
        return self.broker.keys


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "shop.db"


@pytest.fixture
def lite(file: Path) -> Iterator[Ledger]:
    def run(sql: str) -> list[Any]:
        with contextlib.closing(sqlite3.connect(file)) as db, db:
            return db.execute(sql).fetchall()

    ledger = Ledger(f"sqlite:///{file}", run)
    yield ledger
    ledger.app.close()


@pytest.fixture
def pg(postgres_dsn: str) -> Iterator[Ledger]:
    import psycopg

    def run(sql: str) -> list[Any]:
        with psycopg.connect(postgres_dsn) as db:
            cursor = db.execute(sql.encode())
            return cursor.fetchall() if cursor.description else []

    ledger = Ledger(postgres_dsn, run)
    yield ledger
    ledger.app.close()


class Stop(Exception):
    """Ends a transaction with a rollback."""


# -- every driver --------------------------------------------------------------------------------

Work = Callable[[Any, Any], None]  # what happens in the block: given the connection's `execute` and the outbox


def by_sqlite3(ledger: Ledger, commit: bool, messages: Work) -> None:
    with contextlib.closing(sqlite3.connect(ledger.url.removeprefix("sqlite:///"))) as db:
        with ledger.app.outbox(db) as outbox:
            db.execute("INSERT INTO stock VALUES ('a')")
            messages(db, outbox)
        db.commit() if commit else db.rollback()


def by_sqlalchemy(ledger: Ledger, commit: bool, messages: Work) -> None:
    import sqlalchemy

    url = ledger.url.replace("postgresql://", "postgresql+psycopg://")
    engine = sqlalchemy.create_engine(url, poolclass=sqlalchemy.NullPool)
    with contextlib.suppress(Stop), engine.begin() as db:
        with ledger.app.outbox(db) as outbox:
            db.execute(sqlalchemy.text("INSERT INTO stock VALUES ('a')"))
            messages(db, outbox)
        if not commit:
            raise Stop


def by_session(ledger: Ledger, commit: bool, messages: Work) -> None:
    import sqlalchemy
    from sqlalchemy.orm import Session

    engine = sqlalchemy.create_engine(
        ledger.url.replace("postgresql://", "postgresql+psycopg://"), poolclass=sqlalchemy.NullPool
    )
    with Session(engine) as session:
        session.execute(sqlalchemy.text("INSERT INTO stock VALUES ('a')"))
        with ledger.app.outbox(session) as outbox:
            messages(session, outbox)
        session.commit() if commit else session.rollback()


def by_async_sqlalchemy(ledger: Ledger, commit: bool, messages: Work) -> None:
    import sqlalchemy
    from sqlalchemy.ext.asyncio import create_async_engine

    async def work() -> None:
        engine = create_async_engine(
            ledger.url.replace("postgresql://", "postgresql+asyncpg://"), poolclass=sqlalchemy.NullPool
        )
        with contextlib.suppress(Stop):
            async with engine.begin() as db:
                await db.execute(sqlalchemy.text("INSERT INTO stock VALUES ('a')"))
                async with ledger.app.outbox(db) as outbox:
                    messages(db, outbox)
                if not commit:
                    raise Stop

    asyncio.run(work())


def by_async_session(ledger: Ledger, commit: bool, messages: Work) -> None:
    import sqlalchemy
    from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

    async def work() -> None:
        engine = create_async_engine(
            ledger.url.replace("postgresql://", "postgresql+asyncpg://"), poolclass=sqlalchemy.NullPool
        )
        async with AsyncSession(engine) as session:
            await session.execute(sqlalchemy.text("INSERT INTO stock VALUES ('a')"))
            async with ledger.app.outbox(session) as outbox:
                messages(session, outbox)
            await (session.commit() if commit else session.rollback())

    asyncio.run(work())


def by_psycopg(ledger: Ledger, commit: bool, messages: Work) -> None:
    import psycopg

    with psycopg.connect(ledger.url) as db, contextlib.suppress(Stop), db.transaction():
        with ledger.app.outbox(db) as outbox:
            db.execute("INSERT INTO stock VALUES ('a')")
            messages(db, outbox)
        if not commit:
            raise Stop


def awaited(work: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        await work()

    asyncio.run(run())


def by_async_psycopg(ledger: Ledger, commit: bool, messages: Work) -> None:
    import psycopg

    async def work() -> None:
        async with await psycopg.AsyncConnection.connect(ledger.url) as db:
            with contextlib.suppress(Stop):
                async with db.transaction():
                    async with ledger.app.outbox(db) as outbox:
                        await db.execute("INSERT INTO stock VALUES ('a')")
                        messages(db, outbox)
                    if not commit:
                        raise Stop

    awaited(work)


def by_asyncpg(ledger: Ledger, commit: bool, messages: Work) -> None:
    import asyncpg

    async def work() -> None:
        db = await asyncpg.connect(ledger.url)
        try:
            with contextlib.suppress(Stop):
                async with db.transaction():
                    async with ledger.app.outbox(db) as outbox:
                        await db.execute("INSERT INTO stock VALUES ('a')")
                        messages(db, outbox)
                    if not commit:
                        raise Stop
        finally:
            await db.close()

    awaited(work)


WAYS = [
    pytest.param("lite", by_sqlite3, id="sqlite3"),
    pytest.param("lite", by_sqlalchemy, id="sqlalchemy-sqlite"),
    pytest.param("lite", by_session, id="session-sqlite"),
    pytest.param("pg", by_psycopg, id="psycopg", marks=PG),
    pytest.param("pg", by_async_psycopg, id="psycopg-async", marks=PG),
    pytest.param("pg", by_asyncpg, id="asyncpg", marks=PG),
    pytest.param("pg", by_sqlalchemy, id="sqlalchemy-psycopg", marks=PG),
    pytest.param("pg", by_session, id="session-psycopg", marks=PG),
    pytest.param("pg", by_async_sqlalchemy, id="sqlalchemy-asyncpg", marks=PG),
    pytest.param("pg", by_async_session, id="session-asyncpg", marks=PG),
]


def two_of_each(db: Any, outbox: Any) -> None:
    for key in ("x", "y"):
        outbox.send("orders.paid", {"key": key}, key=key)
    for key in ("1", "2"):
        outbox.send("orders.paid", {"key": key}, key=key, order="o")


@pytest.mark.parametrize(("store", "way"), WAYS)
def test_messages_are_there_with_the_users_rows_or_not_at_all(
    request: pytest.FixtureRequest, store: str, way: Callable[..., None]
) -> None:
    ledger: Ledger = request.getfixturevalue(store)
    way(ledger, False, two_of_each)
    assert (ledger.stock(), ledger.keys()) == ([], [])
    way(ledger, True, two_of_each)
    assert (ledger.stock(), ledger.keys()) == (["a"], ["1", "2", "x", "y"])
    way(ledger, True, two_of_each)  # the same keys and bodies: no second message
    assert (ledger.stock(), ledger.keys()) == (["a", "a"], ["1", "2", "x", "y"])
    found = ledger.published()
    assert sorted(found) == ["1", "2", "x", "y"]
    assert found.index("1") < found.index("2")


@pytest.mark.parametrize(("store", "way"), WAYS)
def test_another_body_for_a_known_key_is_refused_and_the_work_rolled_back(
    request: pytest.FixtureRequest, store: str, way: Callable[..., None]
) -> None:
    ledger: Ledger = request.getfixturevalue(store)
    way(ledger, True, two_of_each)
    for order in (None, "o"):
        key = "1" if order else "x"
        with pytest.raises(PayloadMismatch):
            way(ledger, True, lambda db, outbox: outbox.send("orders.paid", {"other": 1}, key=key, order=order))  # noqa: B023
    assert ledger.stock() == ["a"]


def test_an_error_in_the_block_sends_nothing(lite: Ledger, file: Path) -> None:
    with contextlib.closing(sqlite3.connect(file)) as db:
        with contextlib.suppress(Stop), lite.app.outbox(db) as outbox:
            db.execute("INSERT INTO stock VALUES ('a')")
            outbox.send("orders.paid", {}, key="x")
            raise Stop
        db.commit()
    assert (lite.stock(), lite.keys()) == (["a"], [])


def test_the_block_can_be_left_once_and_a_key_is_asked_for(lite: Ledger, file: Path) -> None:
    with contextlib.closing(sqlite3.connect(file)) as db:
        with lite.app.outbox(db) as outbox, pytest.warns(TwiceproofWarning, match="without key="):
            sent = outbox.send("orders.paid", {})
        with pytest.raises(Misuse, match="has ended"):
            outbox.send("orders.paid", {}, key="y")
        db.commit()
    assert lite.keys() == [sent.key]


def test_a_connection_without_a_transaction_or_to_another_file_is_refused(lite: Ledger, file: Path) -> None:
    with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as db:
        with pytest.raises(Misuse, match="BEGIN IMMEDIATE"), lite.app.outbox(db) as outbox:
            outbox.send("orders.paid", {}, key="x")
        db.execute("BEGIN IMMEDIATE")
        with lite.app.outbox(db) as outbox:
            outbox.send("orders.paid", {}, key="y")
        db.execute("COMMIT")
    elsewhere = contextlib.closing(sqlite3.connect(":memory:"))
    with elsewhere as db, pytest.raises(Misuse, match="in memory"), lite.app.outbox(db) as outbox:
        outbox.send("orders.paid", {}, key="z")
    assert lite.keys() == ["y"]


def test_a_savepoint_that_is_rolled_back_takes_its_messages_along(lite: Ledger, file: Path) -> None:
    with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as db:
        db.execute("BEGIN IMMEDIATE")
        for key, end in (("kept", "RELEASE one"), ("gone", "ROLLBACK TO one")):
            db.execute("SAVEPOINT one")
            with lite.app.outbox(db) as outbox:
                outbox.send("orders.paid", {}, key=key)
                outbox.send("orders.paid", {}, key=f"{key}-ordered", order="o")
            db.execute(end)
        db.execute("COMMIT")
    assert lite.keys() == ["kept", "kept-ordered"]
    assert sorted(lite.published()) == ["kept", "kept-ordered"]


# -- PostgreSQL ----------------------------------------------------------------------------------


@PG
def test_a_savepoint_in_postgresql_does_the_same(pg: Ledger) -> None:
    import psycopg

    with psycopg.connect(pg.url) as db:
        for key in ("kept", "gone"):
            with contextlib.suppress(Stop), db.transaction():
                with pg.app.outbox(db) as outbox:
                    outbox.send("orders.paid", {}, key=key)
                    outbox.send("orders.paid", {}, key=f"{key}-ordered", order="o")
                if key == "gone":
                    raise Stop
    assert pg.keys() == ["kept", "kept-ordered"]
    assert sorted(pg.published()) == ["kept", "kept-ordered"]


@PG
@pytest.mark.parametrize("isolation", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_unordered_messages_need_no_isolation_level_and_ordered_ones_do(pg: Ledger, isolation: str) -> None:
    import psycopg

    with psycopg.connect(pg.url) as db, db.transaction():
        db.execute(f"SET TRANSACTION ISOLATION LEVEL {isolation}".encode())
        db.execute("SET LOCAL synchronous_commit = off")
        with pg.app.outbox(db) as outbox:
            outbox.send("orders.paid", {}, key="x")
    assert pg.keys() == ["x"]
    expected = (
        contextlib.nullcontext() if isolation == "READ COMMITTED" else pytest.raises(Misuse, match="leave out order")
    )
    with expected, psycopg.connect(pg.url) as db, db.transaction():
        db.execute(f"SET TRANSACTION ISOLATION LEVEL {isolation}".encode())
        with pg.app.outbox(db) as outbox:
            outbox.send("orders.paid", {}, key="y", order="o")
    assert pg.keys() == (["x", "y"] if isolation == "READ COMMITTED" else ["x"])


@PG
def test_a_key_that_was_committed_after_a_snapshot_is_a_serialization_failure(pg: Ledger) -> None:
    """The user's own retry answers it, as for their own rows."""
    import psycopg

    with psycopg.connect(pg.url) as db, pytest.raises(psycopg.errors.SerializationFailure), db.transaction():
        db.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        db.execute("SELECT 1 FROM stock")
        pg.app.send("orders.paid", {}, key="x")
        with pg.app.outbox(db) as outbox:
            outbox.send("orders.paid", {}, key="x")
    assert pg.keys() == ["x"]


@PG
def test_an_autocommit_connection_and_another_database_are_refused(pg: Ledger, postgres_server: Any) -> None:
    import psycopg

    with psycopg.connect(pg.url, autocommit=True) as db:
        with pytest.raises(Misuse, match="commits each statement"), pg.app.outbox(db) as outbox:
            outbox.send("orders.paid", {}, key="x")
        with db.transaction(), pg.app.outbox(db) as outbox:
            outbox.send("orders.paid", {}, key="y")
    other = postgres_server.create_database()
    with psycopg.connect(other) as db, pytest.raises(Misuse, match="another database"), pg.app.outbox(db) as outbox:
        outbox.send("orders.paid", {}, key="z")
    postgres_server.drop_database(other)
    assert pg.keys() == ["y"]


class Counting:
    """The statements of a connection."""

    def __init__(self, url: str) -> None:
        import psycopg

        self.statements: list[Any] = []
        told = self.statements.append

        class Cursor(psycopg.Cursor[Any]):
            def execute(self, query: Any, *args: Any, **kwargs: Any) -> Any:
                told(query)
                return super().execute(query, *args, **kwargs)

        self.connection = psycopg.connect(url, cursor_factory=Cursor)


@PG
@pytest.mark.parametrize("count", [1, 7, 250])
@pytest.mark.parametrize("rows", [True, False])
def test_a_transaction_has_one_more_statement_behind_rows_and_two_without(pg: Ledger, count: int, rows: bool) -> None:
    counting = Counting(pg.url)
    with counting.connection as db, db.transaction(), pg.app.outbox(db) as outbox:
        if rows:
            db.execute("INSERT INTO stock VALUES ('a')")
        for n in range(count):
            outbox.send("orders.paid", {"n": n}, key=f"m{n}")
    assert len(counting.statements) == 2
    assert not any(b"notify" in str(one).lower().encode() for one in counting.statements)  # it serializes all commits
    assert len(pg.keys()) == count


@PG
@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
def test_with_sqlalchemy_another_database_is_refused_too(pg: Ledger, postgres_server: Any, driver: str) -> None:
    import psycopg

    other = postgres_server.create_database()
    with psycopg.connect(other) as db:
        db.execute("CREATE TABLE stock (name text)")
    there = Ledger.__new__(Ledger)
    there.url, there.app = other, pg.app
    with pytest.raises(Misuse, match="another database"):
        (by_sqlalchemy if driver == "psycopg" else by_async_sqlalchemy)(there, True, one_message)
    postgres_server.drop_database(other)
    assert pg.keys() == []


def one_message(db: Any, outbox: Any) -> None:
    outbox.send("orders.paid", {}, key="x")


@PG
def test_a_sender_of_the_same_key_waits_for_the_first_to_end(pg: Ledger) -> None:
    import psycopg

    begun, go_on = threading.Event(), threading.Event()

    def first() -> None:
        with psycopg.connect(pg.url) as db, db.transaction():
            with pg.app.outbox(db) as outbox:
                outbox.send("orders.paid", {"by": "first"}, key="x")
            begun.set()
            go_on.wait(10)

    thread = threading.Thread(target=first)
    thread.start()
    begun.wait(10)
    threading.Timer(0.2, go_on.set).start()
    second = psycopg.connect(pg.url)
    with pytest.raises(PayloadMismatch), second as db, db.transaction(), pg.app.outbox(db) as outbox:
        outbox.send("orders.paid", {"by": "second"}, key="x")
    thread.join()


@PG
def test_the_later_commit_has_the_later_place_and_other_order_keys_do_not_wait(pg: Ledger) -> None:
    import psycopg

    begun, go_on = threading.Event(), threading.Event()
    order: list[str] = []

    def hold() -> None:
        with psycopg.connect(pg.url) as db, db.transaction():
            with pg.app.outbox(db) as outbox:
                outbox.send("orders.paid", {}, key="1", order="slow")
            begun.set()
            go_on.wait(10)
            order.append("1")

    def follow() -> None:
        with psycopg.connect(pg.url) as db, db.transaction(), pg.app.outbox(db) as outbox:
            outbox.send("orders.paid", {}, key="2", order="slow")
        order.append("2")

    threads = [threading.Thread(target=hold), threading.Thread(target=follow)]
    threads[0].start()
    begun.wait(10)
    threads[1].start()
    with psycopg.connect(pg.url) as db, db.transaction(), pg.app.outbox(db) as outbox:
        outbox.send("orders.paid", {}, key="other", order="fast")
    assert pg.published() == ["other"]
    go_on.set()
    for thread in threads:
        thread.join()
    assert order == ["1", "2"]
    assert pg.published() == ["other", "1", "2"]


@PG
def test_a_relay_in_another_process_is_notified_soon_after_the_block(pg: Ledger) -> None:
    import psycopg

    seen = threading.Event()
    pg.broker.after = seen.set
    relay = pg.app.relay()
    relay.start()
    try:
        with App(pg.url) as sender, psycopg.connect(pg.url) as db:
            sender.broker("main", StandInBroker())
            sender.route("orders.*", to="main")
            with db.transaction(), sender.outbox(db) as outbox:
                outbox.send("orders.paid", {}, key="x")
        assert seen.wait(10)  # and not after 20 seconds
    finally:
        relay.drain()
        assert relay.join(10) == 0


def test_a_sealed_ledger_has_no_readable_message_and_publishes_it(file: Path) -> None:
    key = "k1:" + b64encode(bytes(range(32))).decode()

    def run(sql: str) -> list[Any]:
        with contextlib.closing(sqlite3.connect(file)) as db, db:
            return db.execute(sql).fetchall()

    broker = StandInBroker()
    with App(f"sqlite:///{file}", keys=key) as app:
        app.broker("main", broker)
        app.route("orders.*", to="main")
        with contextlib.closing(sqlite3.connect(file)) as db:
            with app.outbox(db) as outbox:
                outbox.send("orders.paid", {"name": "Ann"}, key="x")
                outbox.send("orders.paid", {"name": "Ann"}, key="y", order="o")
            db.commit()
        rows = run("SELECT body FROM twiceproof_records WHERE kind IN ('message', 'ticket')")
        assert all(body.startswith("sealed:") for (body,) in rows)
        assert len(rows) == 4
        app.relay().run(until_idle=True)
    assert sorted(broker.keys) == ["x", "y"]
    assert broker.taken[0].body == b'{"name":"Ann"}'
