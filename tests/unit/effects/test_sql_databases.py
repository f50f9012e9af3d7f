"""Where a database comes from: URLs, functions, engines, pools; and how its connections are kept and given back."""

from __future__ import annotations

import contextlib
import gc
import os
import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.servers.toxics import Silence
from tests.unit.effects.sql_places import EVERYWHERE, Place, places, sqlite_place
from twiceproof import Misuse, NotDone, OutcomeUnknown, env
from twiceproof.effects import sql, sql_databases
from twiceproof.effects.sql_databases import KEPT, connect, database_of

ANA = {"email": "ana@example.com"}


@pytest.fixture(params=EVERYWHERE)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    yield from places(request, tmp_path)


def created(db: Any, email: str = "ana@example.com") -> bool:
    return sql.find_or_create(db, "customers", key={"email": email}).perform("tp_1").created


def test_a_function_makes_a_connection_for_each_call_which_is_closed(place: Place) -> None:
    made: list[Any] = []

    def dial() -> Any:
        made.append(place.connection())
        return made[-1]

    assert [created(dial), created(dial)] == [True, False]
    assert len(made) == 2
    for connection in made:
        with pytest.raises(Exception, match=r"(?i)closed|\(0, ''\)"):
            connection.cursor().execute("SELECT 1")


def test_a_lent_connection_comes_back_in_the_mode_it_had_and_open(place: Place) -> None:
    with contextlib.closing(place.connection()) as connection:

        @contextlib.contextmanager
        def lent() -> Iterator[Any]:
            yield connection

        assert [created(lent), created(lent)] == [True, False]
        cursor = connection.cursor()
        cursor.execute("DELETE FROM customers")
        connection.rollback()
        assert len(place.customers()) == 1


def test_a_connection_in_a_transaction_is_refused(place: Place) -> None:
    with contextlib.closing(place.connection()) as connection:
        connection.cursor().execute("INSERT INTO customers (email) VALUES ('bo@example.com')")

        @contextlib.contextmanager
        def lent() -> Iterator[Any]:
            yield connection

        with pytest.raises(Misuse, match="already in a transaction, which others commit or roll back"):
            created(lent)
        connection.rollback()
    assert place.customers() == []


def test_a_sqlalchemy_engine_and_its_sessions_can_be_used(place: Place) -> None:
    from sqlalchemy import create_engine
    from sqlalchemy.orm import sessionmaker

    drivers = {"postgresql": "postgresql+psycopg", "mysql": "mysql+pymysql", "sqlite": "sqlite"}
    engine = create_engine(f"{drivers[place.dialect]}://{place.url.partition('://')[2]}")
    try:
        assert [created(engine), created(engine), created(sessionmaker(engine))] == [True, False, False]
        with engine.begin() as connection:
            connection.exec_driver_sql("DELETE FROM customers")
        assert place.customers() == []
    finally:
        engine.dispose()


def test_connections_of_a_url_are_used_again_and_few_are_kept(place: Place) -> None:
    database = database_of(place.url)
    created(place.url)
    (kept,) = database._idle
    with connect(place.url) as connection:
        assert connection is kept
    with contextlib.ExitStack() as stack:
        for _ in range(KEPT + 2):
            stack.enter_context(connect(place.url))
    assert len(database._idle) == KEPT


def test_a_connection_that_is_left_in_a_transaction_is_not_used_again(place: Place) -> None:
    database_of(place.url).close_idle()
    with connect(place.url) as connection:
        connection.run("BEGIN")
    assert database_of(place.url)._idle == []


def test_a_url_may_be_named_by_an_environment_variable(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRM_URL", place.url)
    assert created(env("CRM_URL"))
    assert database_of(env("CRM_URL")) is database_of(place.url)


def within(seconds: float, work: Callable[[], Any]) -> Any:
    """What it returned or raised. A call that hangs fails the test, and not the whole run of tests."""
    answers: list[Any] = []

    def answer() -> None:
        try:
            answers.append(work())
        except Exception as error:  # noqa: BLE001 - looked at by the test
            answers.append(error)

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    thread.join(seconds)
    assert answers, f"no end after {seconds:g} s"
    return answers[0]


SERVERS = [place for place in EVERYWHERE if place != "sqlite"]


@pytest.mark.parametrize("place", SERVERS, indirect=True)
@pytest.mark.parametrize("asked", [b"FROM", b"INSERT"])
def test_a_server_that_gives_no_answer_is_given_up(
    place: Place, asked: bytes, fault_proxy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection stays open. What only reads is asked again; whether a row was written is unknown then."""
    monkeypatch.setattr(sql_databases, "PATIENCE", 0.5)
    parts = urlsplit(place.url)
    proxy = fault_proxy(parts.hostname, parts.port)
    silence = Silence(asked)
    proxy.arm(silence)
    answer = within(30, lambda: created(proxy.url(place.url)))
    assert silence.bites
    assert isinstance(answer, OutcomeUnknown) if asked == b"INSERT" else answer is True
    database_of(proxy.url(place.url)).close_idle()
    assert len(place.customers()) == 1


def test_a_forked_child_opens_connections_of_its_own(place: Place) -> None:
    created(place.url)
    child = os.fork()
    if not child:
        try:
            os._exit(0 if not database_of(place.url)._idle and not created(place.url) else 1)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert not created(place.url)


def test_connections_are_used_again_in_a_process_with_a_thousand_open_files(place: Place) -> None:
    database_of(place.url).close_idle()
    files = [os.dup(0) for _ in range(1_024)]
    try:
        assert created(place.url)
        assert not created(place.url)
    finally:
        for one in files:
            os.close(one)
        database_of(place.url).close_idle()


def test_a_function_that_is_made_for_one_call_is_not_kept(tmp_path: Path) -> None:
    place = sqlite_place(tmp_path)

    def make() -> weakref.ref[Any]:
        def dial() -> Any:
            return place.connection()

        assert created(dial) and database_of(dial) is database_of(dial)
        return weakref.ref(dial)

    made = make()
    gc.collect()
    assert made() is None
    with connect(lambda: place.connection()) as connection:
        assert connection.dialect == "sqlite"


def test_rows_are_plain_tuples_whatever_the_connection_makes_of_them(tmp_path: Path) -> None:
    place = sqlite_place(tmp_path)

    def dial() -> sqlite3.Connection:
        connection: sqlite3.Connection = place.connection()
        connection.row_factory, connection.text_factory = sqlite3.Row, bytes
        return connection

    assert [created(dial), created(dial)] == [True, False]
    with connect(dial) as connection:
        assert connection.run("SELECT email FROM customers").rows == [("ana@example.com",)]
        assert connection.handle.text_factory is bytes


@pytest.mark.parametrize(
    ("db", "says"),
    [
        ("crm.db", "is not a database known here; give a URL"),
        ("oracle://localhost/crm", "oracle:// is not a database known here"),
        ("mysql+pymysql://localhost/crm", "leave out the driver and write mysql://"),
        ("sqlite://crm.db", "three slashes"),
        ("sqlite:///:memory:", "three slashes"),
        ("mariadb://localhost/crm?charset=latin1", "charset= is not known"),
        (17, "int is not a database"),
    ],
)
def test_what_is_no_database_is_refused(db: Any, says: str) -> None:
    with pytest.raises(Misuse, match=says):
        created(db)


def test_a_connection_is_refused_where_a_source_of_them_is_meant() -> None:
    with contextlib.closing(sqlite3.connect(":memory:")) as one, pytest.raises(Misuse, match="write it as a function"):
        created(one)


def test_what_must_be_awaited_is_refused(tmp_path: Path) -> None:
    from sqlalchemy.ext.asyncio import create_async_engine

    async def dial() -> Any: ...

    for source in (dial, create_async_engine("postgresql+asyncpg://localhost:1/crm")):
        with pytest.raises(Misuse, match="give a blocking one"):
            created(source)


def test_a_database_out_of_reach_is_reported_without_its_password(tmp_path: Path) -> None:
    for url in ("postgresql://u:hunter2secret@127.0.0.1:1/crm", "mysql://u:hunter2secret@127.0.0.1:1/crm"):
        with pytest.raises(NotDone, match="could not be reached") as refusal:
            created(url)
        assert "hunter2secret" not in str(refusal.value) and refusal.value.__cause__ is None
    with pytest.raises(NotDone, match="there is no file"):
        created(f"sqlite:///{tmp_path / 'nowhere.db'}")
    assert not (tmp_path / "nowhere.db").exists()
