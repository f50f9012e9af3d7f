"""MariaDB engines that each make a mistake which MariaDB invites, and a test of the contract that notices it."""

import pytest

from twiceproof.prove.store_contract import DurableStoreContract
from twiceproof.records import Written
from twiceproof.stores.grouped import GroupedStore
from twiceproof.stores.mariadb.connection import SESSION
from twiceproof.stores.mariadb.engine import MariadbEngine

pytestmark = pytest.mark.server


class IsolationMisread(MariadbEngine):
    """Reads in a transaction that stays open, as a driver without autocommit does, at MariaDB's default level."""

    def __init__(self, url):
        super().__init__(url)
        dial = self._reads._connect
        ours, planted = (b"autocommit = 1", b"READ-COMMITTED"), (b"autocommit = 0", b"REPEATABLE-READ")
        assert all(setting in SESSION.encode() for setting in ours)

        def dialled():
            db = dial()
            query = db.query
            db.query = lambda text: query(text.replace(ours[0], planted[0]).replace(ours[1], planted[1]))
            return db

        self._reads._connect = dialled


class AffectedTakenForMatched(MariadbEngine):
    """Takes a statement that was carried out for a write that landed: a duplicate is one, too."""

    def _answers(self, batches, results):
        ((now, number),) = results[0]
        return [Written(str(number + place), number + place, now) for place in range(1, len(batches) + 1)]


def passes(engine, url, test):
    store, other = GroupedStore(engine(url)), GroupedStore(engine(url))
    try:
        test(DurableStoreContract(), store, other)
    except AssertionError:
        return False
    finally:
        store.close()
        other.close()
    return True


def seen(case, store, other):
    case.test_each_sees_what_the_other_was_told_has_landed(store, other)


def refused(case, store, other):
    case.test_a_refused_insert_leaves_everything_as_it_was(store)


@pytest.mark.parametrize(("broken", "test"), [(IsolationMisread, seen), (AffectedTakenForMatched, refused)])
def test_the_contract_notices_the_mistake_and_passes_without_it(mariadb_server, broken, test):
    for engine, expected in ((broken, False), (MariadbEngine, True)):
        url = mariadb_server.create_database()
        assert passes(engine, url, test) == expected
        mariadb_server.drop_database(url)
