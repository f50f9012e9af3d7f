"""The broken brokers by name, with the tests of the contract that must catch each."""

from __future__ import annotations

from typing import NamedTuple

from twiceproof.brokers.memory import MemoryBroker
from twiceproof.prove.broker_contract import LeasedBrokerContract

BROKEN: list[Broken] = []


class Broken(NamedTuple):
    name: str
    caught_by: tuple[str, ...]
    make: type[MemoryBroker]
    dedupe: float
    contract: type


def breaks(*caught_by, dedupe=120.0, contract=LeasedBrokerContract):
    """The tests that must catch it; others may."""

    def declare(kind):
        BROKEN.append(Broken(kind.__name__, tuple(f"test_{name}" for name in caught_by), kind, dedupe, contract))
        return kind

    return declare
