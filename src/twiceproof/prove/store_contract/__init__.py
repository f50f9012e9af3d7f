"""The contract that every store fulfils, as tests. Subclass it, return your store, and run pytest:

    from twiceproof.prove.store_contract import StoreContract

    class TestMyStore(StoreContract):
        def make_store(self):
            return GroupedStore(MyEngine(...))      # fresh and empty

        def advance(self, seconds):
            ...                                     # move the store's own clock, also backwards

A store whose data outlives the object takes `DurableStoreContract`, which adds tests (`open_again`).
"""

from __future__ import annotations

import pytest

# Before the modules are imported, so that a failing assertion shows its values.
pytest.register_assert_rewrite(
    *(
        f"{__name__}.{module}"
        for module in (
            "case",
            "batches",
            "concurrency",
            "due",
            "fences",
            "lifecycle",
            "lists",
            "reads",
            "refusals",
            "writes",
        )
    )
)

from .batches import Batches, LinkedSpaces  # noqa: E402
from .concurrency import LostAnswers, Races  # noqa: E402
from .due import DueRecords, HiddenRecords  # noqa: E402
from .fences import Fences, Leases  # noqa: E402
from .lifecycle import Durable, LifecycleTests  # noqa: E402
from .lists import FamilyLists, ListsByAge, ListsByPrefix  # noqa: E402
from .reads import AddressTests, Reads, Scans  # noqa: E402
from .refusals import Refusals  # noqa: E402
from .writes import Checks, Inserts, Removes, Replaces  # noqa: E402

__all__ = ["DurableStoreContract", "StoreContract"]


class StoreContract(
    Reads,
    AddressTests,
    Inserts,
    Replaces,
    Removes,
    Checks,
    Batches,
    LinkedSpaces,
    Fences,
    Leases,
    DueRecords,
    HiddenRecords,
    Scans,
    ListsByAge,
    ListsByPrefix,
    FamilyLists,
    Refusals,
    LostAnswers,
    Races,
    LifecycleTests,
):
    """What every store guarantees. A capability may add tests to it, never skip one."""


class DurableStoreContract(Durable, StoreContract):
    """In addition, what a store guarantees whose data outlives the object that opened it."""
