"""The list of broken stores, and the subjects of the contract that notice each of them."""

from collections.abc import Callable
from dataclasses import dataclass

from twiceproof.clock import Clock
from twiceproof.stores.base import Store
from twiceproof.stores.grouped import GroupedStore
from twiceproof.stores.memory import MemoryEngine

BROKEN: list["Broken"] = []


@dataclass(frozen=True)
class Broken:
    name: str
    make: Callable[[Clock], Store]
    subjects: frozenset[str]


def breaks(*subjects: str):
    """An engine that breaks a promise, which these subjects must notice, and no others."""

    def add(engine):
        BROKEN.append(Broken(engine.__name__, lambda clock: grouped(engine(clock), clock), frozenset(subjects)))
        return engine

    return add


def breaks_above(*subjects: str):
    """The same for a store that is broken above its engine, which is healthy."""

    def add(store):
        BROKEN.append(
            Broken(
                store.__name__, lambda clock: store(gathering(MemoryEngine(clock)), clock=clock), frozenset(subjects)
            )
        )
        return store

    return add


def grouped(engine, clock):
    return GroupedStore(gathering(engine), clock=clock)


def gathering(engine):
    """Its writes go in groups, as those of a store that waits for a disk do."""
    engine.instant = False
    return engine
