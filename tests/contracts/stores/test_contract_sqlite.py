"""The SQLite store keeps the contract, whether it syncs every commit or leaves that to the system."""

import pytest

from twiceproof.prove.clocks import ShiftedClock
from twiceproof.prove.store_contract import DurableStoreContract
from twiceproof.stores.grouped import GroupedStore
from twiceproof.stores.sqlite.engine import SqliteEngine


class TestSqlite(DurableStoreContract):
    durability = "process"  # the same code without waiting for the disk

    @pytest.fixture(autouse=True)
    def file(self, tmp_path):
        self.path = tmp_path / "twiceproof.db"
        self.clock = ShiftedClock()

    def make_store(self):
        engine = SqliteEngine(self.path, clock=self.clock, durability=self.durability)
        return GroupedStore(engine, clock=self.clock)

    open_again = make_store

    def advance(self, seconds):
        self.clock.advance(seconds)


@pytest.mark.slow
class TestSqliteSyncingEveryCommit(TestSqlite):
    durability = "power"
