"""The memory broker keeps the contract, with keys kept and without."""

from twiceproof.brokers.memory import MemoryBroker, MemoryQueues
from twiceproof.prove.broker_contract import LeasedBrokerContract
from twiceproof.prove.clocks import ManualClock


class TestMemoryBroker(LeasedBrokerContract):
    dedupe = 120.0

    def make_broker(self):
        self.clock = ManualClock()
        self.queues = MemoryQueues({self.place}, dedupe=self.dedupe, lease=self.lease)
        return self.open_again()

    def open_again(self):
        return MemoryBroker(self.queues, clock=self.clock)

    def lose_answers(self):
        for broker in self.opened:
            broker.lose_answers = 1_000

    def heal(self):
        for broker in self.opened:
            broker.lose_answers = 0

    def monotonic(self):
        return self.clock.monotonic()


class TestMemoryBrokerWithoutDedupe(TestMemoryBroker):
    dedupe = 0.0
