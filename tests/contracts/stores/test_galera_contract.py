"""The MariaDB store keeps the contract on a Galera cluster, whichever node each store has."""

from itertools import cycle

import pytest

from tests.contracts.stores.movable_mariadb import MovableMariadbEngine
from tests.contracts.stores.test_store_machines import compare
from twiceproof.prove.store_contract import DurableStoreContract
from twiceproof.stores.grouped import GroupedStore
from twiceproof.stores.mariadb.engine import MariadbEngine

pytestmark = [pytest.mark.server, pytest.mark.slow]


@pytest.fixture(scope="module")
def urls(galera_cluster):
    """One database for all tests: making one takes longer than most of them."""
    nodes = galera_cluster.nodes
    name = galera_cluster.create_database()
    MariadbEngine(nodes[0].url(name)).close()
    return [node.url(name) for node in nodes]


@pytest.fixture
def emptied(urls):
    engine = MariadbEngine(urls[0])
    facts = f"{engine.sql.ledger}.twiceproof_facts"
    engine._side.ask((f"DELETE FROM {engine.sql.ledger}.twiceproof_records", ()))
    engine._side.ask((f"DELETE FROM {facts} WHERE name = 'shift'", ()))
    engine.close()
    return urls


class TestGalera(DurableStoreContract):
    @pytest.fixture(autouse=True)
    def nodes(self, emptied):
        self.next_url = cycle(emptied)

    def make_store(self):
        return GroupedStore(MovableMariadbEngine(next(self.next_url)))

    open_again = make_store

    def advance(self, seconds):
        engine = MovableMariadbEngine(next(self.next_url))
        engine.advance(seconds)
        engine.close()


def test_galera_is_like_the_model(emptied):
    engine = MovableMariadbEngine(emptied[1])
    store = GroupedStore(engine)
    compare(store, engine.advance, examples=15, steps=20)
    store.close()
