"""The MariaDB store keeps the contract."""

import ssl
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.contracts.stores.movable_mariadb import MovableMariadbEngine
from twiceproof.cli.doctor import check_ledger
from twiceproof.clock import system_clock
from twiceproof.errors import BadWrite
from twiceproof.prove.store_contract import DurableStoreContract
from twiceproof.records import Address, Batch, Check, Conflict, Insert, Remove, Replace, Written
from twiceproof.stores.base import migrations
from twiceproof.stores.grouped import GroupedStore
from twiceproof.stores.mariadb.engine import MariadbEngine


@pytest.fixture(scope="class")
def class_database(mariadb_server):
    """One database for a class: making one takes longer than most tests."""
    url = mariadb_server.create_database()
    MariadbEngine(url).close()
    yield url
    mariadb_server.drop_database(url)


@pytest.mark.server
class TestMariadb(DurableStoreContract):
    @pytest.fixture(autouse=True)
    def database(self, class_database, mariadb_server):
        self.url = class_database
        with mariadb_server.connect(class_database.rpartition("/")[2]) as db, db.cursor() as cursor:
            cursor.execute("DELETE FROM twiceproof_records")
            cursor.execute("DELETE FROM twiceproof_facts WHERE name = 'shift'")
            yield

    def make_store(self):
        return GroupedStore(MovableMariadbEngine(self.url))

    open_again = make_store

    def advance(self, seconds):
        engine = MovableMariadbEngine(self.url)
        engine.advance(seconds)
        engine.close()

    @pytest.mark.parametrize("after", ["x", "-1", "lane-3:x", "1" * 30])
    def test_a_cursor_of_another_store_is_refused(self, store, after):
        with pytest.raises(BadWrite, match="cursor"):
            store.scan("claim", after=after).block()


@pytest.mark.server
def test_duplicates_in_a_group_cost_the_same_requests_however_many_they_are(mariadb_url):
    engine = MariadbEngine(mariadb_url)
    try:
        engine.commit([_claim(number, "first") for number in range(50)])
        requests = _requests(engine)
        answers = engine.commit([_claim(number, "second") for number in range(100)])
        assert [type(answer) for answer in answers] == [Conflict] * 50 + [Written] * 50
        assert len(requests) <= 4  # the packet that is refused, its rollback, the look with locks, the writes
    finally:
        engine.close()


@pytest.mark.server
def test_the_doctor_says_which_schema_the_ledger_has(mariadb_url):
    store = GroupedStore(MariadbEngine(mariadb_url))
    found = {one.name: one.found for one in check_ledger(store, "mariadb", system_clock)}
    store.close()
    assert found["schema"] == f"version {len(migrations('mariadb'))}, current"


@pytest.mark.server
def test_a_commit_is_one_packet_whatever_is_in_it(mariadb_url):
    """A take, a completion and a duplicate, each by itself, and sixty-four takes together."""
    engine = MariadbEngine(mariadb_url)
    try:
        engine.commit([_claim(0, "warm")])
        at, requests = Address("default/charge/1", "claim", "self"), _requests(engine)
        (taken,) = engine.commit([Batch([Insert(at, "", "held", draw=True, lease=30.0)], "n1")])
        (done,) = engine.commit([Batch([Replace(at, "done", "done", fence=taken.fence, draw=True)], "n2")])
        (again,) = engine.commit([Batch([Insert(at, "", "held", draw=True)], "n3")])
        together = engine.commit([_claim(number, "many") for number in range(10, 74)])
        assert [type(answer) for answer in (taken, done, again)] == [Written, Written, Conflict]
        assert again.found.body == "done"
        assert {type(answer) for answer in together} == {Written}
        assert len(requests) == 4
    finally:
        engine.close()


@pytest.mark.server
def test_a_record_has_a_larger_number_than_what_was_removed_meanwhile(mariadb_url, mariadb_server):
    """Its transaction drew its number before another's, and landed after it."""
    late, prompt = MariadbEngine(mariadb_url), MariadbEngine(mariadb_url)
    try:
        (first,) = prompt.commit([_claim(1, "first")])
        with mariadb_server.connect() as db, db.cursor() as gate, ThreadPoolExecutor(1) as pool:
            gate.execute("SELECT GET_LOCK('gate', 0)")
            _wait_at_gate(late)
            landing = pool.submit(late.commit, [_claim(1, "late")])
            _until(gate, "SELECT COUNT(*) FROM information_schema.processlist WHERE state = 'User lock'", 1)
            (gone,) = prompt.commit([_removal(first)])
            gate.execute("SELECT RELEASE_LOCK('gate')")
            (second,) = landing.result(60)
        (found,) = prompt.fetch([Address("default/charge/1", "claim", "self")])
        assert (found.record.version, found.record.fence) == (second.version, second.fence)
        assert first.fence < gone.fence < second.fence
    finally:
        late.close()
        prompt.close()


def _wait_at_gate(engine):
    """Let its commits wait for a lock of the test's, once their number is drawn."""
    commit = engine.sql.commit

    def gated(batches):
        begin, stamp, *rest = commit(batches)
        return [begin, stamp, ("DO GET_LOCK('gate', 60)", ()), *rest]

    engine.sql.commit = gated


def _until(cursor, sql, wanted):
    until = time.monotonic() + 60
    while True:
        cursor.execute(sql)
        if cursor.fetchone()[0] == wanted:
            return
        assert time.monotonic() < until


def _removal(claim):
    at = Address("default/charge/1", "claim", "self")
    return Batch([Remove(at, fence=claim.fence)], "removal")


def _claim(number, nonce):
    """A claim as it is taken: its record, and a check that no run has the key."""
    space = f"default/charge/{number}"
    taken = Insert(Address(space, "claim", "self"), "", "held", draw=True)
    return Batch([taken, Check(Address(space, "run", "self"), absent=True)], f"{nonce}-{number}")


def _requests(engine):
    """What is sent on the connection that commits, from now on."""
    sent, db = [], engine._commits._db
    query = db.query
    db.query = lambda text, *args, **kwargs: (sent.append(text), query(text, *args, **kwargs))[1]
    return sent


# Not innodb_trx: that view stays as it is while somebody reads it more often than every 0.1 s.
ROW_LOCKS_AWAITED = (
    "SELECT CAST(variable_value AS INT) FROM information_schema.global_status"
    " WHERE variable_name = 'INNODB_ROW_LOCK_CURRENT_WAITS'"
)


@pytest.mark.server
def test_the_systems_certificates_are_not_read_for_each_connection(mariadb_url, monkeypatch):
    """It takes longer than to connect, and nothing is compared with them."""
    MariadbEngine(mariadb_url).close()
    monkeypatch.delattr(ssl.SSLContext, "load_default_certs")
    MariadbEngine(mariadb_url).close()


@pytest.mark.server
def test_whoever_opens_the_ledger_waits_for_another_that_notes_the_same(mariadb_url, mariadb_server):
    """Both found no note of the server, and write it: the later one must not be refused."""
    MariadbEngine(mariadb_url).close()
    name = mariadb_url.rpartition("/")[2]
    with mariadb_server.connect(name) as other, other.cursor() as cursor, ThreadPoolExecutor(1) as pool:
        cursor.execute("DELETE FROM twiceproof_facts WHERE name = 'server'")
        other.begin()
        cursor.execute("INSERT INTO twiceproof_facts VALUES ('server', 'another')")
        opening = pool.submit(MariadbEngine, mariadb_url)
        with mariadb_server.connect() as admin, admin.cursor() as look:
            _until(look, ROW_LOCKS_AWAITED, 1)
        other.rollback()
        opening.result(60).close()


@pytest.mark.server
def test_a_record_that_moved_to_another_queue_after_it_was_found_is_not_handed_out(mariadb_url, monkeypatch):
    """What is due is found without locks, and then locked."""
    store, at = GroupedStore(MariadbEngine(mariadb_url)), Address("shop/1", "run", "self")
    first = store.write(Insert(at, "", queue="shop/flow@1", due_in=0.0)).block()
    look = store.engine._look

    def overtaken(*asked):
        found = look(*asked)
        store.write(Replace(at, "", version=first.version, queue="shop/flow@2", due_in=0.0)).block()
        return found

    monkeypatch.setattr(store.engine, "_look", overtaken)
    assert store.due("run", queues=["shop/flow@1"]).block().records == []
    monkeypatch.undo()
    assert [record.at for record in store.due("run", queues=["shop/flow@2"]).block().records] == [at]
    store.close()
