"""Counts how often the database is called: a fact, where a time would only be a hint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from twiceproof import App
from twiceproof.operations import block
from twiceproof.records import Address, Batch
from twiceproof.stores.base import Engine
from twiceproof.stores.grouped import GroupedStore

from .contenders.ours import finish
from .orders import Asks, growing

__all__ = ["calls_per_replay"]

REPLAYS = 10


class _Counting:
    """An engine that counts. Whatever it does not count goes straight through."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.calls = 0

    def commit(self, batches: Sequence[Batch]) -> Any:
        self.calls += 1
        return self.engine.commit(batches)

    def fetch(self, addresses: Sequence[Address]) -> Any:
        self.calls += 1
        return self.engine.fetch(addresses)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)


def calls_per_replay(app: App) -> float:
    """How often a duplicate's `take` calls the database, reads and writes together."""
    store = cast(GroupedStore, app.store)
    asks = Asks("counted", growing())
    keys = finish(app, asks, REPLAYS)
    counting = _Counting(store.engine)
    store.engine = cast(Engine, counting)
    try:
        for key in keys:
            block(app.claims.take(asks.of(key)))
    finally:
        store.engine = counting.engine
    return counting.calls / REPLAYS
