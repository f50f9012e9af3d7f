"""The suite that every store passes."""

from __future__ import annotations

import pytest

from .concurrency import LostAnswers, Races
from .due import DueRecords, HiddenRecords
from .fences import Fences, Leases
from .lifecycle import Durable, LifecycleTests
from .reads import AddressTests, Reads, Scans
from .refusals import Refusals
from .writes import Batches, Checks, Inserts, Removes, Replaces

__all__ = ["DurableStoreContract", "StoreContract"]


class StoreContract(
    Reads,
    AddressTests,
    Inserts,
    Replaces,
    Removes,
    Checks,
    Batches,
    Fences,
    Leases,
    DueRecords,
    HiddenRecords,
    Scans,
    Refusals,
    LostAnswers,
    Races,
    LifecycleTests,
):
    """What every store guarantees. A capability may add tests to it, never skip one."""


class DurableStoreContract(Durable, StoreContract):
    """In addition, what a store guarantees whose data outlives the object that opened it."""


# Before the modules are imported, so that a failing assertion shows its values.
pytest.register_assert_rewrite(
    *(
        f"{__name__}.{module}"
        for module in (
            "asking",
            "batches",
            "case",
            "checks",
            "due",
            "durable",
            "fences",
            "hidden",
            "inserts",
            "leases",
            "life",
            "lost",
            "places",
            "races",
            "reads",
            "refusals",
            "removes",
            "replaces",
            "scans",
        )
    )
)
