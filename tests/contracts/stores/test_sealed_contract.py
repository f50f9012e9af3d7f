"""A sealed store keeps the whole contract, on every engine."""

import pytest

from tests.contracts.stores.test_contract_sqlite import TestSqlite as Sqlite
from tests.contracts.stores.test_postgres import TestPostgres as Postgres
from tests.contracts.stores.test_postgres import class_database  # noqa: F401 - a fixture
from tests.contracts.stores.test_redis_contract import TestRedis as Redis
from twiceproof.prove.clocks import ShiftedClock
from twiceproof.prove.store_contract import StoreContract
from twiceproof.stores.encryption import EncryptedEngine, Keyring
from twiceproof.stores.grouped import GroupedStore
from twiceproof.stores.memory import MemoryEngine

KEYS = Keyring({"new": b"n" * 32, "old": b"o" * 32}, plain=False)  # a body that slipped through unsealed is refused


def sealed(store: GroupedStore) -> GroupedStore:
    return GroupedStore(EncryptedEngine(store.engine, KEYS), clock=store._clock)


class TestSealedMemory(StoreContract):
    def make_store(self):
        self.clock = ShiftedClock()
        return sealed(GroupedStore(MemoryEngine(self.clock), clock=self.clock))

    def advance(self, seconds):
        self.clock.advance(seconds)


class TestSealedSqlite(Sqlite):
    def make_store(self):
        return sealed(super().make_store())

    open_again = make_store


@pytest.mark.server
class TestSealedPostgres(Postgres):
    def make_store(self):
        return sealed(super().make_store())

    open_again = make_store


@pytest.mark.server
class TestSealedRedis(Redis):
    def make_store(self):
        return sealed(super().make_store())

    open_again = make_store


del Sqlite, Postgres, Redis
