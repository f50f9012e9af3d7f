"""The broken brokers by name, with the tests of the contract that must catch each."""

from __future__ import annotations

from typing import NamedTuple

from twiceproof.brokers.memory import MemoryBroker

BROKEN: list[Broken] = []


class Broken(NamedTuple):
    name: str
    caught_by: tuple[str, ...]
    make: type[MemoryBroker]
    dedupe: float


def breaks(*caught_by, dedupe=120.0):
    """The tests that must catch it; others may."""

    def declare(kind):
        BROKEN.append(Broken(kind.__name__, tuple(f"test_{name}" for name in caught_by), kind, dedupe))
        return kind

    return declare
