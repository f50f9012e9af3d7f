"""Broken connections, a killed server, a lost acknowledgement: nothing acknowledged is lost, nothing is told wrong."""

import contextlib
import os
import signal
import threading
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from twiceproof.clock import system_clock
from twiceproof.errors import Misuse, SchemaMismatch, StoreError, StoreFull, StoreUnavailable, StoreUnsafe
from twiceproof.records import Address, Conflict, Insert, Lost, Replace, Written
from twiceproof.stores.base import Disconnected
from twiceproof.stores.grouped import GroupedStore
from twiceproof.stores.postgres.connection import PostgresConnection, StatementRefused, named
from twiceproof.stores.postgres.engine import PostgresEngine

pytestmark = pytest.mark.server

HERE = Address("space", "claim", "self")
PAGE = Path(__file__).parents[3] / "docs/reference/stores.md"


@pytest.fixture
def proxy(postgres_dsn, fault_proxy):
    target = conninfo_to_dict(postgres_dsn)
    return fault_proxy(target["host"], int(target["port"]))


@pytest.fixture
def store(postgres_dsn, proxy):
    store = GroupedStore(PostgresEngine(proxy.url(postgres_dsn)))
    yield store
    store.close()


@pytest.fixture
def other(postgres_dsn):
    store = GroupedStore(PostgresEngine(postgres_dsn))
    yield store
    store.close()


# -- lost acknowledgements -----------------------------------------------------------------------


def test_an_insert_whose_answer_was_lost_is_written_not_a_conflict(store, proxy):
    proxy.drop_next_reply(b"twiceproof_insert")
    outcome = store.write(Insert(HERE, "mine", draw=True)).block()
    assert proxy.counters.replies_dropped == 1
    assert isinstance(outcome, Written)
    assert isinstance(store.write(Replace(HERE, "next", fence=outcome.fence)).block(), Written)


def test_a_batch_whose_answer_was_lost_is_written_not_a_conflict(store, proxy):
    proxy.drop_next_reply(b"twiceproof_commit")
    both = (Insert(HERE, "mine", draw=True), Insert(Address("space", "run", "self"), "run"))
    outcome = store.write(*both).block()
    assert proxy.counters.replies_dropped == 1
    assert isinstance(outcome, Written)
    assert store.read(HERE).block().record.fence == outcome.fence


def test_a_take_over_whose_answer_was_lost_and_that_was_overtaken_is_lost(store, proxy, other):
    """Held back at the proxy after the answer was lost, until somebody else has taken the record over."""
    first = store.write(Insert(HERE, "", draw=True)).block()
    proxy.drop_next_reply(b"twiceproof_replace")
    commit = store.engine.commit

    def commit_late(batches):
        if proxy.counters.replies_dropped:
            found = other.read(HERE).block().record
            other.write(Replace(HERE, "overtaken", version=found.version, draw=True)).block()
        return commit(batches)

    store.engine.commit = commit_late
    outcome = store.write(Replace(HERE, "mine", version=first.version, draw=True)).block()
    assert isinstance(outcome, Lost)
    assert outcome.found.body == "overtaken"


def test_a_lost_session_is_ended_before_its_work_is_sent_again(store, proxy, postgres_dsn, postgres_server):
    """Or it could wake up later and write the old over the new."""
    if not postgres_server.ours:
        pytest.skip("a session can only be stopped on a server of our own")
    first = store.write(Insert(HERE, "", draw=True)).block()
    with psycopg.connect(postgres_dsn, autocommit=True) as admin:
        (pid,) = admin.execute(
            "SELECT pid FROM pg_stat_activity WHERE application_name = 'twiceproof'"
            " AND datname = current_database() AND query LIKE '%twiceproof_insert%'"
        ).fetchone()
        os.kill(pid, signal.SIGSTOP)  # reads nothing; what we send stays in its socket
        try:
            threading.Timer(0.2, proxy.cut).start()
            pending = threading.Thread(target=store.write(Replace(HERE, "one", fence=first.fence)).block)
            pending.start()
            pending.join(0.6)
            assert pending.is_alive()  # not sent again while the stopped session could still carry it out
        finally:
            os.kill(pid, signal.SIGCONT)
        pending.join(10)
        assert not pending.is_alive()
        assert admin.execute("SELECT FROM pg_stat_activity WHERE pid = %s", (pid,)).fetchone() is None
    assert store.read(HERE).block().record.body == "one"


def test_what_landed_is_written_although_the_look_at_the_ledger_found_none(store, monkeypatch):
    def find_no_server(*_):
        monkeypatch.undo()
        raise Disconnected(OSError("refused"), sent=False)

    store.engine._newest = 2**62  # as if numbers had shrunk
    monkeypatch.setattr(store.engine._primary, "look_again", find_no_server)
    outcome = store.write(Insert(HERE, "mine", draw=True)).block()
    assert isinstance(outcome, Written)
    assert store.read(HERE).block().record.fence == outcome.fence


# -- broken connections --------------------------------------------------------------------------


def test_a_server_that_reads_nothing_is_given_up_on_in_the_middle_of_sending(postgres_dsn, postgres_server):
    """What is larger than a socket's buffer. TCP gives up by itself; a local socket never does."""
    if not postgres_server.ours:
        pytest.skip("a session can only be stopped on a server of our own")
    patience_of_tcp = {"tcp_user_timeout": 0}  # as of a local socket
    link = PostgresConnection(
        lambda: psycopg.connect(postgres_dsn, autocommit=True, **patience_of_tcp),
        system_clock,
        patience=20.0,
        writes=True,
    )
    assert link.ask(b"SELECT length($1)", [b"x" * 9_000_000]) == [[b"9000000"]]
    pid = link._db.info.backend_pid
    link._patience = 0.2  # a busy machine takes longer for nine megabytes
    os.kill(pid, signal.SIGSTOP)
    told = []
    asking = threading.Thread(target=lambda: told.append(_fault_of(link)), daemon=True)
    try:
        asking.start()
        asking.join(10)
    finally:
        os.kill(pid, signal.SIGCONT)
    asking.join(10)
    assert told == [True]
    link._patience = 20.0
    assert link.ask(b"SELECT 1") == [[b"1"]]
    link.close()


def _fault_of(link):
    """Whether what was sent may have arrived."""
    try:
        link.ask(b"SELECT length($1)", [b"x" * 9_000_000])
    except Disconnected as error:
        return error.sent
    return None


def test_idle_connections_that_were_cut_are_opened_again_unnoticed(store, proxy):
    store.write(Insert(HERE, "")).block()
    store.read(HERE).block()
    store.scan("claim").block()
    proxy.cut()
    assert isinstance(store.write(Insert(HERE, "")).block(), Conflict)  # not Lost: nothing was sent
    assert store.read(HERE).block().record is not None
    assert len(store.scan("claim").block().records) == 1


def test_a_session_ended_by_an_administrator_is_opened_again(store, postgres_dsn):
    store.write(Insert(HERE, "")).block()
    with psycopg.connect(postgres_dsn, autocommit=True) as admin:
        admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    # Conflict if the end was seen before anything was sent, else Lost.
    assert not isinstance(store.write(Insert(HERE, "")).block(), Written)
    assert isinstance(store.write(Insert(Address("next", "claim", "self"), "")).block(), Written)


def test_an_answer_that_never_comes_is_given_up(postgres_dsn, proxy):
    dsn = proxy.url(postgres_dsn)
    link = PostgresConnection(lambda: psycopg.connect(dsn, autocommit=True), system_clock, patience=0.2)
    assert link.ask(b"SELECT 1") == [[b"1"]]
    proxy.hold()
    with pytest.raises(Disconnected, match=r"no answer for 0\.2 s"):
        link.ask(b"SELECT 1")
    proxy.resume()
    assert link.ask(b"SELECT 2") == [[b"2"]]
    link.close()


def test_a_server_that_falls_silent_before_it_has_said_who_we_are_is_given_up(postgres_dsn, proxy):
    """In between connecting and the first question there are others: who we are to it, and is our lost session gone."""
    dsn = proxy.url(postgres_dsn)

    def connect_and_lose():
        db = psycopg.connect(dsn, autocommit=True)
        proxy.hold()
        return db

    link = PostgresConnection(connect_and_lose, system_clock, patience=0.2, writes=True)
    told = []
    asking = threading.Thread(target=lambda: told.append(_fault_of(link)), daemon=True)
    asking.start()
    asking.join(5)
    proxy.resume()
    asking.join(5)
    assert told == [False]  # the question itself was not sent


def test_a_server_that_falls_silent_under_the_doctor_is_given_up(store, proxy, monkeypatch):
    """The doctor would hang, and with it whoever scans on the same connection."""
    settings = store.engine._settings

    def last_words():
        told = settings()
        proxy.hold()
        return told

    monkeypatch.setattr(store.engine, "_settings", last_words)
    monkeypatch.setattr(store.engine._side, "_patience", 0.2)
    monkeypatch.setattr(store, "_patience", 0.0)
    told = []
    asking = threading.Thread(target=lambda: told.append(_error_of(store.examine)), daemon=True)
    asking.start()
    asking.join(10)
    proxy.resume()
    assert [type(error) for error in told] == [StoreUnavailable]
    monkeypatch.setattr(store.engine, "_settings", settings)
    assert any(finding.name == "server" for finding in store.examine())


def _error_of(ask):
    try:
        ask()
    except Exception as error:  # noqa: BLE001 - told by the test
        return error
    return None


def test_a_server_that_is_away_for_a_moment_costs_no_error(store, proxy):
    proxy.refuse()
    proxy.cut()
    threading.Timer(0.3, proxy.accept).start()
    assert isinstance(store.write(Insert(HERE, "")).block(), Written)


@pytest.mark.slow
def test_what_was_acknowledged_survives_a_kill_of_the_server(killable_postgres):
    dsn = killable_postgres.create_database()
    store = GroupedStore(PostgresEngine(dsn))
    acknowledged, errors = [], []

    def claim(part):
        for n in range(10_000):
            at = Address(f"{part}/{n}", "claim", "self")
            try:
                if isinstance(store.write(Insert(at, "", draw=True)).block(), Written):
                    acknowledged.append(at)
            except StoreError as error:
                errors.append(error)
            if killed.is_set():
                return

    killed = threading.Event()
    threads = [threading.Thread(target=claim, args=(part,)) for part in range(16)]
    for thread in threads:
        thread.start()
    while len(acknowledged) < 500:
        threads[0].join(0.01)
    killable_postgres.kill()
    killed.set()
    killable_postgres.start()
    for thread in threads:
        thread.join(30)
    found = [store.read(at).block().record for at in acknowledged]
    store.close()
    assert errors == []
    assert all(record is not None for record in found)


def test_a_forked_child_has_connections_of_its_own(store, postgres_dsn):
    store.write(Insert(HERE, "parent")).block()
    store.read(HERE).block()
    child = os.fork()
    if child == 0:
        outcome = store.write(Insert(Address("child", "claim", "self"), "")).block()
        os._exit(0 if isinstance(outcome, Written) else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert store.read(Address("child", "claim", "self")).block().record is not None
    assert isinstance(store.write(Insert(Address("parent", "claim", "self"), "")).block(), Written)


# -- what errors say -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://user:s3cret@127.0.0.1:1/db",
        "postgresql://user:p@s3cret@127.0.0.1:1/db",
        "postgresql://user:p/s3cret@127.0.0.1:1/db",
        "postgresql://user:s3cret/p@127.0.0.1:1/db",
        "postgresql://user:p?s3cret@127.0.0.1:1/db",
        "postgresql://user:s3cret%@127.0.0.1:1/db",
    ],
)
def test_no_error_tells_the_password(url):
    with pytest.raises((StoreUnavailable, Misuse)) as caught:
        PostgresEngine(url)
    error = caught.value
    while error is not None:
        assert "s3cret" not in str(error)
        error = error.__cause__


def test_a_wrong_password_is_told_with_the_next_move_and_without_the_password(killable_postgres):
    dsn = killable_postgres.create_database()
    with psycopg.connect(dsn, autocommit=True) as db:
        db.execute("CREATE ROLE clerk LOGIN PASSWORD 'right'")
    data = killable_postgres.directory / "data" / "pg_hba.conf"
    data.write_text("host all postgres 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n")
    killable_postgres.restart()
    with pytest.raises(StoreUnavailable, match="Check that it runs") as caught:
        PostgresEngine(dsn.replace("postgres@", "clerk:s3cret@"))
    assert "s3cret" not in str(caught.value)


def test_a_role_without_rights_is_told_what_to_grant(postgres_dsn):
    with psycopg.connect(postgres_dsn, autocommit=True) as db:
        db.execute("DROP ROLE IF EXISTS visitor")
        db.execute("CREATE ROLE visitor LOGIN")
        db.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    try:
        with pytest.raises(StoreError, match="grant it CREATE on the database"):
            PostgresEngine(postgres_dsn.replace("postgres@", "visitor@"))
    finally:
        with psycopg.connect(postgres_dsn, autocommit=True) as db:
            db.execute("DROP ROLE visitor")


@pytest.mark.parametrize("left_out", ["twiceproof_migrations", "twiceproof_records TO", "SEQUENCE"])
def test_the_rights_that_the_page_lists_are_enough_and_a_missing_one_is_told(postgres_dsn, left_out):
    PostgresEngine(postgres_dsn).close()
    grants = [line for line in PAGE.read_text("utf-8").splitlines() if line.endswith("TO shop;")]
    assert len(grants) == 5 and sum(left_out in line for line in grants) == 1
    with psycopg.connect(postgres_dsn, autocommit=True) as db:
        db.execute("DROP ROLE IF EXISTS shop")
        db.execute("CREATE ROLE shop LOGIN")
        try:
            for line in grants:
                db.execute(line if left_out not in line else "SELECT 1")
            with pytest.raises(StoreError, match=r"stores\.md lists under Rights"):
                used(postgres_dsn.replace("postgres@", "shop@"))
            for line in grants:
                db.execute(line)
            assert isinstance(used(postgres_dsn.replace("postgres@", "shop@")), Written)
        finally:
            db.execute("DROP OWNED BY shop")
            db.execute("DROP ROLE shop")


def used(dsn):
    with contextlib.closing(GroupedStore(PostgresEngine(dsn), patience=5.0)) as store:
        return store.write(Insert(HERE, "mine", draw=True)).block()


@pytest.mark.parametrize(
    ("code", "kind", "move"),
    [
        ("53100", StoreFull, "Free some space"),
        ("53200", StoreError, "max_locks_per_transaction"),
        ("25006", StoreUnsafe, "Point the URL at the primary"),
        ("57014", StoreUnavailable, "Raise statement_timeout"),
        ("42P01", SchemaMismatch, "open the store again"),
        ("XX000", StoreError, "report"),
    ],
)
def test_each_refusal_has_its_name_and_its_next_move(code, kind, move):
    error = named(StatementRefused(code, "what the server said"))
    assert type(error) is kind
    assert move in str(error)


def test_a_store_that_turned_read_only_says_so_and_works_again_afterwards(store, postgres_dsn):
    database = f'"{conninfo_to_dict(postgres_dsn)["dbname"]}"'
    with psycopg.connect(postgres_dsn, autocommit=True) as admin:
        admin.execute(f"ALTER DATABASE {database} SET default_transaction_read_only = on")
        with pytest.raises(StoreUnsafe, match="primary"):
            store.write(Insert(HERE, "")).block()
        admin.execute(f"ALTER DATABASE {database} SET default_transaction_read_only = off")
    assert isinstance(store.write(Insert(HERE, "")).block(), Written)
