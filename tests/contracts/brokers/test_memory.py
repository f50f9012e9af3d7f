"""The memory broker keeps the contract, with keys kept and without."""

from tests.contracts.brokers.broken.runner import Case


class TestMemoryBroker(Case):
    dedupe = 120.0


class TestMemoryBrokerWithoutDedupe(Case):
    dedupe = 0.0
