"""The memory store keeps the contract: when it commits on the spot, and when its writes go in groups."""

from twiceproof.prove.clocks import ShiftedClock
from twiceproof.prove.store_contract import StoreContract
from twiceproof.stores.grouped import GroupedStore
from twiceproof.stores.memory import MemoryEngine


class TestMemory(StoreContract):
    def make_store(self):
        self.clock = ShiftedClock()
        return GroupedStore(MemoryEngine(self.clock), clock=self.clock)

    def advance(self, seconds):
        self.clock.advance(seconds)


class TestMemoryInGroups(TestMemory):
    def make_store(self):
        self.clock = ShiftedClock()
        engine = MemoryEngine(self.clock)
        engine.instant = False
        return GroupedStore(engine, clock=self.clock)
