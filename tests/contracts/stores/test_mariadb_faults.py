"""Broken connections, a killed server, a lost acknowledgement: nothing acknowledged is lost, nothing is told wrong."""

import os
import signal
import threading
from urllib.parse import urlsplit

import pymysql
import pytest

from tests.contracts.stores.row_race import kill_under_batches
from twiceproof.errors import (
    BadWrite,
    Misuse,
    SchemaMismatch,
    StoreError,
    StoreFull,
    StoreUnavailable,
    StoreUnsafe,
)
from twiceproof.records import Address, Check, Conflict, Insert, Lost, Replace, Written
from twiceproof.stores.base import Disconnected
from twiceproof.stores.grouped import GroupedStore
from twiceproof.stores.mariadb.connection import MariadbRefusal, named
from twiceproof.stores.mariadb.engine import MariadbEngine

pytestmark = pytest.mark.server

HERE = Address("space", "claim", "self")
BESIDE = Address("space", "run", "self")


@pytest.fixture
def proxy(mariadb_url, fault_proxy):
    target = urlsplit(mariadb_url)
    return fault_proxy(target.hostname, target.port)


@pytest.fixture
def store(mariadb_url, proxy):
    store = GroupedStore(MariadbEngine(proxy.url(mariadb_url)))
    yield store
    store.close()


@pytest.fixture
def other(mariadb_url):
    store = GroupedStore(MariadbEngine(mariadb_url))
    yield store
    store.close()


# -- lost acknowledgements -----------------------------------------------------------------------


def test_an_insert_whose_answer_was_lost_is_written_not_a_conflict(store, proxy):
    proxy.drop_next_reply(b"INSERT INTO")
    outcome = store.write(Insert(HERE, "mine", draw=True)).block()
    assert proxy.counters.replies_dropped == 1
    assert isinstance(outcome, Written)
    assert isinstance(store.write(Replace(HERE, "next", fence=outcome.fence)).block(), Written)


def test_a_planted_store_that_does_not_know_its_own_write_conflicts_with_it(store, proxy, monkeypatch):
    """The control: what was written is found, and told as somebody else's."""
    monkeypatch.setattr(GroupedStore, "_recognise_lost_acknowledgement", lambda self, batch, answer: answer)
    proxy.drop_next_reply(b"INSERT INTO")
    assert isinstance(store.write(Insert(HERE, "mine", draw=True)).block(), Conflict)


def test_a_batch_whose_answer_was_lost_is_written_not_a_conflict(store, proxy):
    proxy.drop_next_reply(b"INSERT INTO")
    outcome = store.write(Insert(HERE, "mine", draw=True), Insert(BESIDE, "run")).block()
    assert proxy.counters.replies_dropped == 1
    assert isinstance(outcome, Written)
    assert store.read(HERE).block().record.fence == outcome.fence


def test_a_take_over_whose_answer_was_lost_and_that_was_overtaken_is_lost(store, proxy, other):
    """Held back at the proxy after the answer was lost, until somebody else has taken the record over."""
    first = store.write(Insert(HERE, "", draw=True)).block()
    proxy.drop_next_reply(b"UPDATE (")
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


# -- broken connections --------------------------------------------------------------------------


def test_a_connection_that_was_cut_is_made_anew(store, proxy):
    store.write(Insert(HERE, "")).block()
    proxy.cut()
    assert isinstance(store.write(Insert(BESIDE, "")).block(), Written)
    assert store.read(HERE).block().record is not None


def test_a_server_that_is_away_for_a_moment_costs_no_error(store, proxy):
    proxy.refuse()
    proxy.cut()
    threading.Timer(0.3, proxy.accept).start()
    assert isinstance(store.write(Insert(HERE, "")).block(), Written)


def test_a_server_without_a_free_connection_is_waited_for(mariadb_server, mariadb_url):
    store = GroupedStore(MariadbEngine(mariadb_url))
    with mariadb_server.connect() as admin, admin.cursor() as cursor:
        cursor.execute("SET GLOBAL max_connections = 10")
        held = []
        try:
            with pytest.raises(pymysql.err.OperationalError):
                for _ in range(40):
                    held.append(mariadb_server.connect())
            threading.Timer(0.3, lambda: [one.close() for one in held]).start()
            assert isinstance(store.write(Insert(HERE, "")).block(), Written)
        finally:
            cursor.execute("SET GLOBAL max_connections = 200")
    store.close()


def test_a_session_that_was_killed_costs_no_error(store, mariadb_server):
    store.write(Insert(HERE, "")).block()
    with mariadb_server.connect() as admin, admin.cursor() as cursor:
        cursor.execute("SELECT id FROM information_schema.processlist WHERE db LIKE 'tp\\_%' AND id <> CONNECTION_ID()")
        for (number,) in cursor.fetchall():
            cursor.execute(f"KILL {number}")
    assert isinstance(store.write(Insert(BESIDE, "")).block(), Written)


def test_a_server_that_was_stopped_past_the_lease_has_one_holder(killable_mariadb):
    """Its answer comes late: the claim is its own by its nonce, and the time is the server's."""
    store = GroupedStore(MariadbEngine(killable_mariadb.create_database()))
    store.read(HERE).block()
    os.kill(killable_mariadb.pid, signal.SIGSTOP)
    threading.Timer(1.0, os.kill, [killable_mariadb.pid, signal.SIGCONT]).start()
    outcome = store.write(Insert(HERE, "", "held", draw=True, lease=0.5)).block()
    assert isinstance(outcome, Written)
    found = store.read(HERE).block()
    assert found.record.lease_until == pytest.approx(found.record.updated_at + 0.5)
    store.close()


@pytest.mark.slow
def test_what_was_acknowledged_survives_a_kill_of_the_server(killable_mariadb):
    store = GroupedStore(MariadbEngine(killable_mariadb.create_database()))
    acknowledged, errors = [], []
    killed = threading.Event()

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

    threads = [threading.Thread(target=claim, args=(part,)) for part in range(16)]
    for thread in threads:
        thread.start()
    while len(acknowledged) < 500:
        threads[0].join(0.01)
    killable_mariadb.kill()
    killed.set()
    killable_mariadb.start()
    for thread in threads:
        thread.join(30)
    found = [store.read(at).block().record for at in acknowledged]
    store.close()
    assert errors == []
    assert all(record is not None for record in found)


def test_after_a_kill_batches_are_whole_and_nothing_is_lost(killable_mariadb):
    store = GroupedStore(MariadbEngine(killable_mariadb.create_database()))
    kill_under_batches(store, killable_mariadb.kill, killable_mariadb.start)
    store.close()


# -- locks ---------------------------------------------------------------------------------------


def test_a_record_that_a_user_has_locked_by_hand_holds_up_nobody_else(store, mariadb_server, mariadb_url):
    first = store.write(Insert(HERE, "", draw=True)).block()
    with mariadb_server.connect(urlsplit(mariadb_url).path[1:]) as user, user.cursor() as cursor:
        cursor.execute("SET tx_isolation = 'READ-COMMITTED'")  # or it would lock the gaps around it, too
        cursor.execute("BEGIN")
        cursor.execute("SELECT * FROM twiceproof_records WHERE space = 'space' FOR UPDATE")
        waiting = threading.Thread(target=store.write(Replace(HERE, "late", fence=first.fence)).block)
        waiting.start()
        for n in range(20):
            assert isinstance(store.write(Insert(Address(f"other {n}", "claim", "self"), "")).block(), Written)
        assert waiting.is_alive()
        cursor.execute("COMMIT")
        waiting.join(10)
    assert store.read(HERE).block().record.body == "late"


def test_duplicate_misfit_and_held_of_one_group_are_told_apart(store, other, mariadb_server, mariadb_url):
    first = other.write(Insert(HERE, "first", draw=True)).block()
    elsewhere = [Address(f"other {n}", "claim", "self") for n in range(3)]
    with mariadb_server.connect(urlsplit(mariadb_url).path[1:]) as user, user.cursor() as cursor:
        other.write(Insert(elsewhere[0], "held", draw=True)).block()
        cursor.execute("BEGIN")
        cursor.execute("SELECT * FROM twiceproof_records WHERE space = 'other 0' FOR UPDATE")
        threading.Timer(0.3, cursor.execute, ["COMMIT"]).start()
        answers = store.write_each(
            [
                [Insert(HERE, "second")],
                [Check(elsewhere[0], fence=1), Insert(Address("other 0", "step", "x"), "")],
                [Insert(elsewhere[1], "new"), Insert(Address("other 1", "step", "x"), "")],
                [Insert(elsewhere[2], "new")],
            ]
        ).block()
    assert [type(answer) for answer in answers] == [Conflict, Conflict, Written, Written]
    assert answers[0].found.body == "first" and answers[0].found.fence == first.fence
    assert answers[1].found.body == "held"
    assert store.read(Address("other 0", "step", "x")).block().record is None


def test_a_half_that_landed_is_written_although_the_other_found_no_server(
    store, other, proxy, mariadb_server, mariadb_url, monkeypatch
):
    """One is held by another transaction, so that the group is halved; in between the server is out of reach."""
    mine, held = Address("mine", "claim", "self"), Address("held", "claim", "self")
    before = [other.write(Insert(at, "before", draw=True)).block() for at in (mine, held)]
    commit_half = store.engine._half
    with mariadb_server.connect(urlsplit(mariadb_url).path[1:]) as user, user.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute("SELECT * FROM twiceproof_records WHERE space = 'held' FOR UPDATE")

        def commit_half_and_break(batches):
            answers = commit_half(batches)
            monkeypatch.undo()
            cursor.execute("COMMIT")
            proxy.refuse()
            proxy.cut()
            threading.Timer(0.3, proxy.accept).start()
            return answers

        monkeypatch.setattr(store.engine, "_half", commit_half_and_break)
        taken = [
            Replace(at, "taken", version=old.version, draw=True) for at, old in zip((mine, held), before, strict=True)
        ]
        answers = store.write_each([[write] for write in taken]).block()
    assert [type(answer) for answer in answers] == [Written, Written]
    assert store.read(mine).block().record.fence == answers[0].fence


def test_what_landed_is_written_although_the_look_at_the_ledger_found_none(store, monkeypatch):
    def find_no_server(*_):
        monkeypatch.undo()
        raise Disconnected(OSError("refused"), sent=False)

    store.engine._newest = 2**62  # as if numbers had shrunk
    monkeypatch.setattr(store.engine._primary, "skip", find_no_server)
    outcome = store.write(Insert(HERE, "mine", draw=True)).block()
    assert isinstance(outcome, Written)
    assert store.read(HERE).block().record.fence == outcome.fence


# -- a full disk ---------------------------------------------------------------------------------


def test_a_full_disk_is_told_and_loses_nothing_that_was_acknowledged():
    """All tables are in one file that may not grow: for InnoDB the disk is full. Then it gets a larger one."""
    from tests.servers import MariadbServer

    with MariadbServer(disk_of("40M")) as server:
        store = GroupedStore(MariadbEngine(server.create_database()))
        landed, refused = filled(store)
        assert len(landed) > 5
        assert all_there(store, landed) and not any_there(store, refused)
        server.stop()
        server.settings |= disk_of("80M")
        server.start()
        assert all_there(store, landed) and not any_there(store, refused)
        again = store.write(*(Insert(at, "x" * 400_000, draw=True) for at in refused)).block()
        assert isinstance(again, Written)
        store.close()


def disk_of(size):
    return {"innodb-file-per-table": "0", "innodb-data-file-path": f"ibdata1:12M:autoextend:max:{size}"}


def filled(store):
    """Batches of two records, until the server has no room: what landed, and the two that did not."""
    landed = []
    for n in range(200):
        batch = Address(f"big {n}", "claim", "self"), Address(f"big {n}", "step", "one")
        try:
            assert isinstance(store.write(*(Insert(at, "x" * 400_000, draw=True) for at in batch)).block(), Written)
        except StoreFull as error:
            assert "nothing was written" in str(error)
            return landed, batch
        landed += batch
    raise AssertionError("the disk did not fill")


def all_there(store, addresses):
    return all(store.read(at).block().record is not None for at in addresses)


def any_there(store, addresses):
    return any(store.read(at).block().record is not None for at in addresses)


# -- what errors say -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "mariadb://user:s3cret@127.0.0.1:1/db",
        "mariadb://user:p@s3cret@127.0.0.1:1/db",
        "mariadb://user:p/s3cret@127.0.0.1:1/db",
        "mariadb://user:s3cret/p@127.0.0.1:1/db",
        "mariadb://user:p?s3cret@127.0.0.1:1/db",
    ],
)
def test_no_error_tells_the_password(url):
    with pytest.raises((StoreUnavailable, Misuse)) as caught:
        MariadbEngine(url)
    error = caught.value
    while error is not None:
        assert "s3cret" not in str(error)
        error = error.__cause__


@pytest.mark.parametrize(
    ("code", "kind", "move"),
    [
        (1114, StoreFull, "Free some space"),
        (1290, StoreUnsafe, "Point the URL at the primary"),
        (1969, StoreUnavailable, "Raise max_statement_time"),
        (1205, StoreUnavailable, "long-running transaction"),
        (1146, SchemaMismatch, "open the store again"),
        (1142, StoreError, "under Rights"),
        (1153, BadWrite, "raise max_allowed_packet"),
        (1064, StoreError, "report"),
    ],
)
def test_each_refusal_has_its_name_and_its_next_move(code, kind, move):
    error = named(MariadbRefusal(code, "what the server said"))
    assert type(error) is kind
    assert move in str(error)


def test_a_body_that_is_larger_than_a_packet_is_refused_and_its_neighbour_lands(mariadb_server, mariadb_url):
    with mariadb_server.connect() as admin, admin.cursor() as cursor:
        cursor.execute("SET GLOBAL max_allowed_packet = 1048576")
        store = GroupedStore(MariadbEngine(mariadb_url))
        try:
            answers = store.write_each([[Insert(HERE, "x" * 2_000_000)], [Insert(Address("b", "c", "d"), "")]]).block()
        finally:
            cursor.execute("SET GLOBAL max_allowed_packet = 67108864")
    store.close()
    assert isinstance(answers[0], BadWrite)
    assert isinstance(answers[1], Written)


# -- what is refused at opening ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"innodb-flush-log-at-trx-commit": "2"}, "a power cut loses acknowledged writes"),
        ({"innodb-flush-log-at-trx-commit": "0"}, "a crash of the server loses"),
        ({"innodb-doublewrite": "0"}, "tear pages"),
        ({"log-bin": "log", "sync-binlog": "0"}, "recovery rolls back what is not in it"),
        ({"read-only": "1"}, "as a replica is"),
    ],
)
def test_a_server_that_loses_writes_is_refused(settings, why):
    from tests.servers import MariadbServer

    with MariadbServer(settings) as server, pytest.raises(StoreUnsafe, match=why):
        MariadbEngine(server.create_database())


@pytest.mark.parametrize(
    ("spoilt", "why"),
    [
        ("ALTER TABLE twiceproof_number ENGINE=Aria", "twiceproof_number is kept by Aria, which has no transactions"),
        ("ALTER TABLE twiceproof_facts ENGINE=MyISAM", "twiceproof_facts is kept by MyISAM"),
        (
            "ALTER TABLE twiceproof_records MODIFY `key` VARCHAR(255) CHARACTER SET utf8mb4 "
            "COLLATE utf8mb4_general_ci NOT NULL",
            "compared by utf8mb4_general_ci",
        ),
    ],
)
def test_a_ledger_whose_tables_were_converted_is_refused(mariadb_url, mariadb_server, spoilt, why):
    MariadbEngine(mariadb_url).close()
    with mariadb_server.connect(urlsplit(mariadb_url).path[1:]) as admin, admin.cursor() as cursor:
        cursor.execute(spoilt)
    with pytest.raises(StoreUnsafe, match=why):
        MariadbEngine(mariadb_url)


def test_a_server_that_survives_only_a_crash_is_taken_if_the_url_says_so():
    from tests.servers import MariadbServer

    lax = {"innodb-flush-log-at-trx-commit": "2", "log-bin": "log", "sync-binlog": "0"}
    with MariadbServer(lax) as server:
        store = GroupedStore(MariadbEngine(server.create_database() + "?durability=process"))
        assert isinstance(store.write(Insert(HERE, "")).block(), Written)
        warned = {finding.name for finding in store.examine() if finding.level == "warn"}
        store.close()
    assert {"innodb_flush_log_at_trx_commit", "sync_binlog"} <= warned


def test_another_server_with_the_ledger_is_refused_until_it_is_accepted(mariadb_url, mariadb_server):
    from twiceproof.stores.open import accept_server

    store = GroupedStore(MariadbEngine(mariadb_url))
    before = store.write(Insert(HERE, "", draw=True)).block().fence
    store.close()
    with mariadb_server.connect() as admin, admin.cursor() as cursor:
        cursor.execute("SET GLOBAL server_id = 2")
        try:
            with pytest.raises(StoreUnsafe, match="another server has taken over"):
                MariadbEngine(mariadb_url)
            accept_server(mariadb_url)
            store = GroupedStore(MariadbEngine(mariadb_url))
            assert store.write(Insert(BESIDE, "", draw=True)).block().fence > before + 2**30
            store.close()
        finally:
            cursor.execute("SET GLOBAL server_id = 1")
