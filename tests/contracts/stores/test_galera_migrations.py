"""On Galera one process at a time makes the ledger's tables: two nodes that define a view at once never go on."""

import threading
from contextlib import closing

import pytest

from twiceproof.clock import Clock
from twiceproof.errors import StoreUnavailable
from twiceproof.records import Address, Insert, Written
from twiceproof.stores.grouped import GroupedStore
from twiceproof.stores.mariadb import schema
from twiceproof.stores.mariadb.engine import MariadbEngine

pytestmark = [pytest.mark.server, pytest.mark.slow]

TURN = "INSERT INTO twiceproof_migrations VALUES (0, CONCAT('another ', UNIX_TIMESTAMP() - %s))"


@pytest.fixture
def urls(galera_cluster):
    name = galera_cluster.create_database()
    return [node.url(name) for node in galera_cluster.nodes]


@pytest.fixture
def database(galera_cluster, urls):
    """With no more of a ledger than the list of what was applied to it."""
    with galera_cluster.nodes[0].connect(urls[0].rpartition("/")[2]) as db, db.cursor() as cursor:
        cursor.execute(schema.LEDGER.replace("{ledger}.", ""))
        yield cursor


def numbers(cursor):
    cursor.execute("SET SESSION wsrep_sync_wait = 7")
    cursor.execute("SELECT number FROM twiceproof_migrations ORDER BY number")
    return [number for (number,) in cursor.fetchall()]


@pytest.mark.parametrize("round_", range(4))
def test_many_open_a_new_ledger_on_three_nodes_at_once(urls, round_):
    barrier, landed = threading.Barrier(9), []

    def work(nth):
        barrier.wait()
        with closing(GroupedStore(MariadbEngine(urls[nth % 3]))) as store:
            landed.append(store.write(Insert(Address(f"shop/{nth}", "claim", "self"), "", draw=True)).block())

    threads = [threading.Thread(target=work, args=(nth,), daemon=True) for nth in range(9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(50)
    assert [type(answer) for answer in landed] == [Written] * 9


def test_another_processes_turn_is_waited_for(urls, database):
    database.execute(TURN, (0,))
    waited = []

    def sleep(seconds):
        waited.append(numbers(database))
        if len(waited) == 3:
            database.execute("DELETE FROM twiceproof_migrations")

    MariadbEngine(urls[1], clock=Clock(sleep=sleep)).close()
    assert waited == [[0]] * 3
    assert numbers(database) == [1]


def test_the_turn_of_a_process_that_died_lapses(urls, database):
    database.execute(TURN, (schema.LONGEST_TURN + 1,))
    waited = []
    MariadbEngine(urls[1], clock=Clock(sleep=waited.append)).close()
    assert waited == []
    assert numbers(database) == [1]


def test_a_turn_that_is_never_over_is_given_up_with_nothing_written(urls, database):
    database.execute(TURN, (0,))
    time = [0.0]
    clock = Clock(monotonic=lambda: time[0], sleep=lambda _: time.__setitem__(0, time[0] + 10))
    with pytest.raises(StoreUnavailable, match="Another process has been creating"):
        MariadbEngine(urls[1], clock=clock)
    assert numbers(database) == [0]


def test_who_lost_its_turn_meanwhile_goes_no_further(urls, database, monkeypatch):
    """A statement took longer than the turn."""
    asked, missing = [], schema._missing

    def slow(sql, done):
        for nth, statement in enumerate(missing(sql, done)):
            if nth == 2 and not asked:
                asked.append(nth)
                database.execute("DELETE FROM twiceproof_migrations")
                database.execute(TURN, (0,))
            yield statement

    def sleep(seconds):
        assert numbers(database) == [0]
        database.execute("SHOW TABLES LIKE 'twiceproof_%'")
        asked.append(len(database.fetchall()))
        database.execute("DELETE FROM twiceproof_migrations")

    monkeypatch.setattr(schema, "_missing", slow)
    MariadbEngine(urls[0], clock=Clock(sleep=sleep)).close()
    assert asked == [2, 3]  # after two of the statements, with the list of what was applied
    assert numbers(database) == [1]
