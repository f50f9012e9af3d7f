"""`@app.transaction` as a step of a flow: what it takes, what it refuses, and how it lives with everything else."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import sqlite3
import threading
from contextlib import closing

import pytest

from twiceproof import App, Cancelled, Misuse, NeedsReview, Retry, StepFailed
from twiceproof.effects import files
from twiceproof.stores.user_transaction import Join

ONCE = Retry(attempts=1)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "shop.db"


@pytest.fixture
def app(path):
    with App(f"sqlite:///{path}") as made:
        with closing(sqlite3.connect(path)) as db:
            db.execute("CREATE TABLE stock (name TEXT NOT NULL UNIQUE)")
        yield made


def add(connection, name):
    connection.execute("INSERT INTO stock VALUES (?)", (name,))


def rows(path, sql="SELECT name FROM stock ORDER BY rowid"):
    with closing(sqlite3.connect(path)) as db:
        return [row[0] for row in db.execute(sql)]


def entries(path):
    with closing(sqlite3.connect(path)) as db:
        return dict(db.execute("SELECT step, state FROM twiceproof_steps ORDER BY place"))


# -- declaring -----------------------------------------------------------------------------------


def test_callers_leave_the_connection_out_and_tools_do_not_see_it(app):
    @app.transaction
    def reserve(connection, order: int, *, much: int = 1) -> int:
        return order * much

    assert list(inspect.signature(reserve).parameters) == ["order", "much"]
    assert reserve(3, much=2) == 6


def test_a_function_without_a_parameter_for_the_connection_is_refused(app):
    with pytest.raises(Misuse, match=r"takes no connection; make it the first parameter"):

        @app.transaction
        def reserve(*, order):
            """Nowhere to put a connection."""


def test_a_store_without_sql_is_refused_where_it_is_declared():
    with (
        App("memory://") as app,
        pytest.raises(Misuse, match=r'use sqlite:///, postgresql:// or mariadb://.*repeat="keyed"'),
    ):

        @app.transaction
        def reserve(connection):
            """Never declared."""


def test_its_own_id_tells_calls_in_a_loop_apart(app, path):
    @app.transaction(id="{name}", name="put")
    def reserve(connection, name):
        add(connection, name)

    @app.flow(key="k")
    def buy():
        for name in ("a", "b"):
            reserve(name)

    buy()
    assert entries(path) == {"put[a]": "done", "put[b]": "done"}


def test_two_calls_with_one_id_write_one_row(app, path):
    @app.transaction(id="{name}", name="put")
    def reserve(connection, name):
        connection.execute("INSERT INTO stock VALUES (? || random())", (name,))

    @app.flow(key="k")
    def buy():
        app.gather(lambda: reserve("a"), lambda: reserve("a"))

    with pytest.raises(Misuse, match=r"put\[a\]"):
        buy()
    assert len(rows(path)) == 1


# -- the connection ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("connect", "why"),
    [
        (lambda: sqlite3.connect(":memory:"), "in memory"),
        (lambda: object(), "is not a connection"),
        ("shop.db", "makes no connections"),
    ],
    ids=["another database", "something else", "a name"],
)
def test_a_wrong_source_is_refused_before_the_work(app, connect, why):
    worked = []

    @app.transaction(connect=connect)
    def reserve(connection):
        worked.append(connection)

    @app.flow(key="k")
    def buy():
        reserve()

    with pytest.raises(Misuse, match=why):
        buy()
    assert worked == []


def test_one_connection_for_all_is_refused(app, path):
    with closing(sqlite3.connect(path)) as db:

        @app.transaction(connect=db)
        def reserve(connection):
            """Never called."""

        with pytest.raises(Misuse, match="makes connections, not one"):
            reserve()


def test_a_connection_to_be_awaited_needs_an_async_function(app):
    async def connect():
        """Never awaited."""

    @app.transaction(connect=connect)
    def reserve(connection):
        """Never called."""

    with pytest.raises(Misuse, match="`async def`"):
        reserve()


def test_rows_may_come_in_any_shape_on_the_users_connection(app, path):
    def connect():
        db = sqlite3.connect(path)
        db.row_factory = lambda cursor, row: {"only": row[0]}
        db.text_factory = bytes
        return db

    @app.transaction(connect=connect)
    def reserve(connection) -> str:
        add(connection, "a")
        return connection.execute("SELECT name FROM stock").fetchone()["only"].decode()

    @app.flow(key="k")
    def buy():
        return reserve()

    assert buy() == buy() == "a"


def test_a_connection_that_would_lose_commits_in_a_power_cut_is_set_right(app, path):
    def connect():
        db = sqlite3.connect(path)
        db.execute("PRAGMA synchronous=OFF")
        return db

    @app.transaction(connect=connect)
    def level(connection) -> int:
        return connection.execute("PRAGMA synchronous").fetchone()[0]

    assert level() == 2


@pytest.mark.parametrize("end", ["commit", "rollback", "with", "executescript"])
def test_ending_the_transaction_in_the_function_is_refused_and_nothing_is_there(app, path, end):
    @app.transaction(retry=ONCE)
    def reserve(connection):
        add(connection, "a")
        if end == "with":
            with connection:
                pass
        elif end == "executescript":
            connection.executescript("SELECT 1;")
        else:
            getattr(connection, end)()

    @app.flow(key="k")
    def buy():
        reserve()

    with pytest.raises(Misuse, match=r"committed with its ledger entry.*leave out commit"):
        buy()
    assert rows(path) == []
    assert entries(path) == {"reserve": "failed"}


def test_a_transaction_that_returns_an_effect_is_rolled_back(app, path, tmp_path):
    """The effect was only described: recorded as done, it would never be performed."""

    @app.transaction(retry=ONCE)
    def reserve(connection):
        add(connection, "a")
        return files.append(tmp_path / "orders", {"order": 1})

    @app.flow(key="k")
    def buy():
        reserve()

    with pytest.raises(Misuse, match=r"reserve: it returned an effect \(append to orders\)"):
        buy()
    assert rows(path) == []
    assert not (tmp_path / "orders").exists()


def test_a_transaction_that_the_database_ended_is_parked(app, path):
    """ON CONFLICT ROLLBACK ends it behind our back; what comes after commits by itself."""

    @app.transaction
    def reserve(connection):
        add(connection, "a")
        with contextlib.suppress(sqlite3.IntegrityError):
            connection.execute("INSERT OR ROLLBACK INTO stock VALUES ('a')")
        add(connection, "b")

    @app.flow(key="k")
    def buy():
        reserve()

    for _ in range(2):
        with pytest.raises(NeedsReview, match="ended the transaction itself"):
            buy()
    assert rows(path) == ["b"]
    assert entries(path) == {"reserve": "unknown"}


# -- in and outside a flow -----------------------------------------------------------------------


def test_outside_a_flow_it_is_a_transaction_of_its_own(app, path):
    @app.transaction
    def reserve(connection, name, fail):
        add(connection, name)
        if fail:
            raise ValueError("no")

    reserve("a", False)
    with pytest.raises(ValueError, match="no"):
        reserve("b", True)
    assert rows(path) == ["a"]


def test_one_called_by_another_is_part_of_its_transaction(app, path):
    @app.transaction
    def inner(connection, name):
        add(connection, name)

    @app.transaction(retry=ONCE)
    def outer(connection, fail):
        add(connection, "outer")
        inner("inner")
        if fail:
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        outer(True)
    assert rows(path) == []
    outer(False)
    assert rows(path) == ["outer", "inner"]


def test_one_called_by_another_with_another_connect_is_refused(app, path):
    @app.transaction(connect=lambda: sqlite3.connect(path))
    def inner(connection):
        """Never called."""

    @app.transaction
    def outer(connection):
        inner()

    with pytest.raises(Misuse, match="give both the same connect="):
        outer()


def test_an_undo_may_be_a_transaction_too(app, path):
    @app.transaction
    def release(connection, name):
        connection.execute("DELETE FROM stock WHERE name=?", (name,))

    @app.transaction(undo=release)
    def reserve(connection, name):
        add(connection, name)

    @app.flow(key="k")
    def buy():
        reserve("a")
        assert rows(path) == ["a"]
        raise ValueError("sold out")

    with pytest.raises(ValueError, match="sold out"):
        buy()
    assert rows(path) == []
    assert entries(path) == {"reserve": "done", "undo:reserve": "done"}


def test_a_run_that_is_cancelled_meanwhile_rolls_the_step_back_and_stops(app, path):
    """The sign is a new fence: the ledger's entry is refused, and with it the work."""
    worked = []

    @app.transaction
    def reserve(connection):
        add(connection, "a")
        worked.append(1)

    @app.flow(key="k")
    def buy():
        app.attach(flow="buy", key="k").cancel(by="ann")
        reserve()

    with pytest.raises(Cancelled, match="ann"):
        buy()
    assert worked == [1]
    assert rows(path) == []
    assert entries(path) == {}


def test_a_failure_for_good_can_be_caught_in_the_flow(app, path):
    @app.transaction(retry=ONCE)
    def reserve(connection):
        add(connection, "a")
        raise ValueError("no")

    @app.flow(key="k")
    def buy():
        try:
            reserve()
        except StepFailed:
            return "another way"

    assert buy() == buy() == "another way"
    assert rows(path) == []


def test_a_large_result_is_kept_in_the_same_transaction(app, path):
    @app.transaction
    def reserve(connection) -> str:
        add(connection, "a")
        return "x" * 100_000

    @app.flow(key="k")
    def buy() -> int:
        return len(reserve())

    assert buy() == 100_000
    assert rows(path, "SELECT count(*) FROM twiceproof_records WHERE kind='resource'") == [1]


def test_earlier_completions_are_in_the_store_before_it_begins(app, path):
    seen = []

    @app.step(repeat="safe")
    def before():
        """Its completion lies about until the next write."""

    @app.transaction
    def reserve(connection):
        seen.append(entries(path))

    @app.flow(key="k")
    def buy():
        before()
        reserve()

    buy()
    assert seen == [{"before": "done"}]


def test_an_interrupt_leaves_nothing_and_the_next_call_does_it(app, path):
    @app.transaction
    def reserve(connection, interrupt=[True]):  # noqa: B006 - once
        add(connection, "a")
        if interrupt:
            raise interrupt.pop() and KeyboardInterrupt

    @app.flow(key="k")
    def buy():
        reserve()

    with pytest.raises(KeyboardInterrupt):
        buy()
    assert rows(path) == []
    buy()
    assert rows(path) == ["a"]


def test_an_interrupt_in_the_commit_gives_the_lock_back(app, path, monkeypatch):
    @app.transaction
    def reserve(connection):
        add(connection, "a")

    @app.flow(key="k")
    def buy():
        reserve()

    def interrupted(self):
        raise KeyboardInterrupt
        yield

    with monkeypatch.context() as once:
        once.setattr(Join, "commit", interrupted)
        with pytest.raises(KeyboardInterrupt):
            buy()
    assert rows(path) == []
    buy()
    assert rows(path) == ["a"]


# -- side by side --------------------------------------------------------------------------------


def test_tasks_of_one_loop_wait_for_the_lock_without_stopping_each_other(app, path):
    @app.transaction
    async def reserve(connection, name):
        add(connection, name)
        await asyncio.sleep(0)  # whoever waits for the lock now must let us go on

    @app.flow(key="{name}")
    async def buy(name):
        await reserve(name)

    async def all_of_them():
        await asyncio.gather(*(buy(str(n)) for n in range(20)))

    asyncio.run(all_of_them())
    assert sorted(rows(path), key=int) == [str(n) for n in range(20)]


def test_a_task_that_is_cancelled_leaves_nothing_and_no_lock(app, path):
    @app.transaction
    async def reserve(connection, name, forever):
        add(connection, name)
        if forever:
            await asyncio.Event().wait()

    @app.flow(key="{name}")
    async def buy(name, forever):
        await reserve(name, forever)

    async def cancelled():
        task = asyncio.ensure_future(buy("a", True))
        while not task.done() and not rows(path, "SELECT 1 FROM twiceproof_records"):
            await asyncio.sleep(0)
        for _ in range(10):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await buy("b", False)

    asyncio.run(cancelled())
    assert rows(path) == ["b"]


def test_threads_take_turns(app, path):
    @app.transaction
    def reserve(connection, name):
        add(connection, name)

    @app.flow(key="{name}")
    def buy(name):
        reserve(name)

    threads = [threading.Thread(target=buy, args=(str(n),)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(rows(path)) == [str(n) for n in range(8)]
