"""What every contract test stands on: a fresh store, and a clock that can be moved."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from ...stores.base import Store
from ..faulty_engine import FaultyEngine

__all__ = ["StoreCase"]


class StoreCase:
    """The hooks a store's test class fills in. Pytest makes a new object of it for each test."""

    def make_store(self) -> Store:
        """A fresh, empty store."""
        raise NotImplementedError("Return a fresh, empty store from make_store().")

    def advance(self, seconds: float) -> None:
        """Move the store's clock, forwards or (seconds < 0) backwards."""
        raise NotImplementedError("Move the store's clock in advance(seconds).")

    def make_faulty(self, store: Any) -> FaultyEngine:
        """Put a faulty engine under the store. A store that is not a `GroupedStore` has its own way."""
        faulty = store.engine = FaultyEngine(store.engine)
        return faulty

    @pytest.fixture
    def store(self) -> Iterator[Store]:
        store = self.make_store()
        yield store
        store.close()
