"""`store.join(connection)`: a write in the user's own transaction lands when they commit, and only then."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing
from urllib.parse import urlsplit

import psycopg
import pymysql
import pytest
import sqlalchemy
from sqlalchemy import orm

from twiceproof import Misuse
from twiceproof.clock import Clock
from twiceproof.errors import BadWrite, StoreUnavailable
from twiceproof.operations import block
from twiceproof.records import Address, Batch, Check, Conflict, Insert, Remove, Replace, Written
from twiceproof.stores.base import SpaceBusy
from twiceproof.stores.grouped import GroupedStore
from twiceproof.stores.memory import MemoryEngine
from twiceproof.stores.open import open_store
from twiceproof.stores.postgres.join import PostgresJoins
from twiceproof.stores.user_transaction import TransactionEnded

CLAIM, STEP, OTHER = (Address("shop/order/17", kind, "x") for kind in ("claim", "step", "other"))


class Site:
    """A store, and connections to its database in an open write transaction."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.store = open_store(url)
        self.is_file = url.startswith("sqlite")

    def open(self):
        if self.url.startswith("mariadb"):
            parts = urlsplit(self.url)
            where = {"host": parts.hostname, "port": parts.port, "user": "root", "database": parts.path[1:]}
            return pymysql.connect(**where)
        if not self.is_file:
            return psycopg.connect(self.url)
        db = sqlite3.connect(self.url.removeprefix("sqlite:///"), isolation_level=None)
        db.execute("BEGIN IMMEDIATE")
        return db


SERVERS = {"postgres": "postgres_dsn", "mariadb": "mariadb_url"}


@pytest.fixture(params=["sqlite", *(pytest.param(name, marks=pytest.mark.server) for name in SERVERS)])
def site(request, tmp_path):
    file = f"sqlite:///{tmp_path}/a.db"
    url = file if request.param == "sqlite" else request.getfixturevalue(SERVERS[request.param])
    made = Site(url)
    yield made
    made.store.close()


def there(site, at):
    return site.store.read(at).block().record


def test_what_is_written_lands_with_the_users_commit(site):
    with closing(site.open()) as db:
        answer = block(site.store.join(db).write(Insert(CLAIM, "body", "held", draw=True, lease=5.0)))
        assert isinstance(answer, Written)
        assert there(site, CLAIM) is None
        db.commit()
    record = there(site, CLAIM)
    assert (record.body, record.state, record.version, record.fence) == (
        "body",
        "held",
        answer.version,
        answer.fence,
    )
    assert record.lease_until == pytest.approx(record.updated_at + 5.0)
    assert record.updated_at == answer.now


def test_what_is_written_goes_with_the_users_rollback(site):
    with closing(site.open()) as db:
        assert isinstance(block(site.store.join(db).write(Insert(CLAIM, ""))), Written)
        db.rollback()
    assert there(site, CLAIM) is None


def test_every_kind_of_write_keeps_its_condition(site):
    first = site.store.write(Insert(CLAIM, "", draw=True), Insert(OTHER, "")).block()
    with closing(site.open()) as db:
        join = site.store.join(db)
        writes = Check(CLAIM, fence=first.fence), Insert(STEP, "s"), Remove(OTHER, version=first.version)
        second = block(join.write(*writes))
        assert isinstance(second, Written)
        third = block(join.write(Replace(STEP, "t", version=second.version)))
        assert isinstance(third, Written)
        db.commit()
    assert there(site, OTHER) is None
    assert there(site, STEP).body == "t"


def test_a_misfit_is_told_with_what_was_found_and_nothing_is_written(site):
    first = site.store.write(Insert(CLAIM, "mine", draw=True)).block()
    with closing(site.open()) as db:
        answer = block(site.store.join(db).write(Insert(STEP, ""), Check(CLAIM, fence=first.fence + 1)))
        assert isinstance(answer, Conflict)
        assert answer.at == CLAIM
        assert answer.found.body == "mine"
        db.commit()
    assert there(site, STEP) is None


def test_numbers_drawn_in_a_users_transaction_are_nobody_elses(site):
    with closing(site.open()) as db:
        mine = block(site.store.join(db).write(Insert(CLAIM, "", draw=True)))
        db.commit()
    other = site.store.write(Insert(OTHER, "", draw=True)).block()
    assert other.fence > mine.fence
    assert other.version != mine.version


def test_what_a_store_refuses_it_refuses_here(site):
    with closing(site.open()) as db, pytest.raises(BadWrite):
        block(site.store.join(db).write(Insert(CLAIM, ""), Insert(Address("elsewhere", "step", "x"), "")))


def test_others_wait_for_the_users_commit_and_are_not_lost(site):
    """A heartbeat that comes between the ledger's write and the commit."""
    first = site.store.write(Insert(CLAIM, "", "held", draw=True, lease=5.0)).block()
    answers = []
    with closing(site.open()) as db:
        block(site.store.join(db).write(Check(CLAIM, fence=first.fence), Insert(STEP, "")))
        beat = Replace(CLAIM, None, "held", fence=first.fence, lease=9.0)
        beating = threading.Thread(target=lambda: answers.append(site.store.write(beat).block()))
        beating.start()
        db.commit()
    beating.join()
    assert isinstance(answers[0], Written)
    assert there(site, STEP) is not None


def test_a_store_without_sql_says_so():
    with (
        closing(sqlite3.connect(":memory:")) as db,
        pytest.raises(Misuse, match=r"use sqlite:///, postgresql:// or mariadb://"),
    ):
        GroupedStore(MemoryEngine()).join(db)


def test_a_connection_of_another_kind_is_refused(site, tmp_path):
    wrong = "postgresql+psycopg://nobody@127.0.0.1:1/none" if site.is_file else f"sqlite:///{tmp_path}/other.db"
    engine = sqlalchemy.create_engine(wrong)
    session = orm.Session(engine)
    with pytest.raises(Misuse, match=r"commit together only in one database"):
        site.store.join(session)
    engine.dispose()


# -- SQLite --------------------------------------------------------------------------------------


@pytest.fixture
def file_store(tmp_path):
    made = Site(f"sqlite:///{tmp_path}/a.db")
    yield made
    made.store.close()


def test_a_sqlite_connection_in_no_transaction_is_refused(file_store):
    with closing(file_store.open()) as db:
        db.rollback()
        with pytest.raises(Misuse, match="run BEGIN IMMEDIATE on it first"):
            block(file_store.store.join(db).write(Insert(CLAIM, "")))


def test_a_sqlite_transaction_with_an_old_view_cannot_write_and_one_without_can(file_store):
    with closing(file_store.open()) as db:
        db.rollback()
        db.execute("BEGIN")
        db.execute("SELECT * FROM twiceproof_records").fetchall()
        file_store.store.write(Insert(CLAIM, "newer")).block()
        with pytest.raises(Misuse, match="open it with BEGIN IMMEDIATE"):
            block(file_store.store.join(db).write(Check(CLAIM, absent=True)))
        db.rollback()
        db.execute("BEGIN")
        assert isinstance(block(file_store.store.join(db).write(Check(CLAIM, absent=True))), Conflict)


# -- PostgreSQL ----------------------------------------------------------------------------------


@pytest.fixture
def server_store(postgres_dsn):
    made = Site(postgres_dsn)
    yield made
    made.store.close()


@pytest.mark.server
@pytest.mark.parametrize(
    ("setting", "why"),
    [
        ("SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL REPEATABLE READ", "READ COMMITTED"),
        ("SET synchronous_commit = off", "synchronous_commit=on"),
    ],
)
def test_a_session_that_breaks_a_promise_is_refused(server_store, setting, why):
    with psycopg.connect(server_store.url, autocommit=True) as db:
        db.execute(setting)
        db.autocommit = False
        with pytest.raises(Misuse, match=why):
            block(server_store.store.join(db).write(Insert(CLAIM, "")))
        db.rollback()
    assert there(server_store, CLAIM) is None


@pytest.mark.server
def test_a_connection_that_commits_by_itself_is_refused(server_store):
    with (
        psycopg.connect(server_store.url, autocommit=True) as db,
        pytest.raises(Misuse, match="turn its autocommit mode off"),
    ):
        block(server_store.store.join(db).write(Insert(CLAIM, "")))
    assert there(server_store, CLAIM) is None


@pytest.mark.server
def test_a_space_that_another_transaction_holds_is_waited_for(server_store):
    """Never in the server: each try answers at once, and in between the one who holds it goes on."""
    with closing(server_store.open()) as first, closing(server_store.open()) as second:
        block(server_store.store.join(first).write(Insert(STEP, "first")))
        joins: PostgresJoins = server_store.store.joins
        waited = []

        def let_go(seconds):
            waited.append(seconds)
            first.commit()

        joins._clock = Clock(sleep=let_go)
        answer = block(server_store.store.join(second).write(Insert(STEP, "second")))
        assert len(waited) == 1
        assert isinstance(answer, Conflict)
        assert answer.found.body == "first"


@pytest.mark.server
def test_a_space_that_is_never_let_go_is_given_up_with_nothing_written(server_store):
    with closing(server_store.open()) as first, closing(server_store.open()) as second:
        block(server_store.store.join(first).write(Insert(STEP, "first")))
        time = [0.0]
        server_store.store.joins._clock = Clock(
            monotonic=lambda: time[0], sleep=lambda s: time.__setitem__(0, time[0] + 1)
        )
        with pytest.raises(StoreUnavailable, match="nothing was written"):
            block(server_store.store.join(second).write(Insert(STEP, "second")))


# -- MariaDB -------------------------------------------------------------------------------------


@pytest.fixture
def mariadb_site(mariadb_url):
    made = Site(mariadb_url)
    yield made
    made.store.close()


@pytest.mark.server
def test_a_mariadb_connection_that_commits_by_itself_is_refused(mariadb_site):
    with closing(mariadb_site.open()) as db:
        db.autocommit(True)
        with pytest.raises(Misuse, match=r"open one with connection\.begin"):
            block(mariadb_site.store.join(db).write(Insert(CLAIM, "")))
        db.begin()
        assert isinstance(block(mariadb_site.store.join(db).write(Insert(CLAIM, ""))), Written)
        db.commit()
    assert there(mariadb_site, CLAIM) is not None


@pytest.mark.server
def test_an_old_view_of_a_mariadb_transaction_does_not_decide(mariadb_site):
    """REPEATABLE READ, which is MariaDB's default, goes on showing what was there at the first read."""
    with closing(mariadb_site.open()) as db, db.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM twiceproof_records")
        mariadb_site.store.write(Insert(CLAIM, "newer")).block()
        answer = block(mariadb_site.store.join(db).write(Check(CLAIM, absent=True), Insert(STEP, "")))
        assert isinstance(answer, Conflict)
        assert answer.found.body == "newer"
        db.rollback()


@pytest.mark.server
def test_a_mariadb_record_that_another_transaction_holds_is_waited_for(mariadb_site):
    with closing(mariadb_site.open()) as first, closing(mariadb_site.open()) as second:
        block(mariadb_site.store.join(first).write(Insert(STEP, "first")))
        waited = []

        def let_go(seconds):
            waited.append(seconds)
            first.commit()

        mariadb_site.store.joins._clock = Clock(sleep=let_go)
        answer = block(mariadb_site.store.join(second).write(Insert(STEP, "second")))
        assert len(waited) == 1
        assert isinstance(answer, Conflict)
        assert answer.found.body == "first"


@pytest.mark.server
@pytest.mark.parametrize(("level", "free"), [("READ-COMMITTED", True), ("REPEATABLE-READ", False)])
def test_a_mariadb_transaction_holds_up_its_neighbours_only_in_repeatable_read(mariadb_site, level, free):
    """There its locks cover the gap between two records, into which others insert theirs."""
    near = [Address(f"shop/order/{number}", "claim", "x") for number in (100, 900)]
    for at in near:
        mariadb_site.store.write(Insert(at, "")).block()
    with closing(mariadb_site.open()) as db, db.cursor() as cursor:
        cursor.execute(f"SET SESSION tx_isolation = '{level}'")
        block(mariadb_site.store.join(db).write(Insert(CLAIM, "")))
        other = Batch((Insert(Address("shop/order/500", "claim", "x"), ""),), "other")
        (answer,) = mariadb_site.store.engine.commit([other])
        assert isinstance(answer, Written if free else SpaceBusy)
        db.commit()
    assert isinstance(mariadb_site.store.engine.commit([other])[0], Conflict if free else Written)


@pytest.mark.server
def test_a_mariadb_transaction_that_was_ended_is_noticed(mariadb_site):
    with closing(mariadb_site.open()) as db:
        join = mariadb_site.store.join(db)
        block(join.write(Insert(CLAIM, "")))
        db.commit()
        with pytest.raises(TransactionEnded):
            block(join.write(Insert(STEP, "")))


@pytest.mark.server
def test_a_mariadb_connection_to_another_database_is_refused(mariadb_site, mariadb_server):
    other = Site(mariadb_server.create_database())
    with closing(mariadb_site.open()) as db:
        assert isinstance(block(mariadb_site.store.join(db).write(Insert(CLAIM, ""))), Written)
        db.rollback()
    with mariadb_server.connect() as admin, admin.cursor() as cursor:
        name = urlsplit(mariadb_site.url).path[1:]
        cursor.execute("DROP USER IF EXISTS shop")
        cursor.execute("CREATE USER shop")
        cursor.execute(f"GRANT ALL ON {urlsplit(other.url).path[1:]}.* TO shop")
        parts = urlsplit(other.url)
        stranger = pymysql.connect(host=parts.hostname, port=parts.port, user="shop", database=parts.path[1:])
        with closing(stranger), pytest.raises(Misuse, match="commit together only in one"):
            block(mariadb_site.store.join(stranger).write(Insert(CLAIM, "")))
        cursor.execute("DROP USER shop")
    other.store.close()
    assert name


@pytest.mark.server
@pytest.mark.parametrize("kind", ["connection", "session"])
def test_sqlalchemy_on_mariadb_joins_and_both_land_or_neither(mariadb_site, kind):
    engine = sqlalchemy.create_engine(mariadb_site.url.replace("mariadb://", "mariadb+pymysql://"))
    with engine.begin() as setup:
        setup.exec_driver_sql("CREATE TABLE parcels (name VARCHAR(20))")
    for commits in (False, True):
        opened = engine.connect() if kind == "connection" else orm.Session(engine)
        with opened as handle:
            handle.execute(sqlalchemy.text("INSERT INTO parcels VALUES ('a')"))
            assert isinstance(block(mariadb_site.store.join(handle).write(Insert(CLAIM, ""))), Written)
            (handle.commit if commits else handle.rollback)()
        with engine.connect() as look:
            assert look.exec_driver_sql("SELECT count(*) FROM parcels").scalar() == int(commits)
        assert (there(mariadb_site, CLAIM) is not None) == commits
    engine.dispose()
