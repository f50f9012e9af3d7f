"""All subjects together: what a store's test class inherits."""

from __future__ import annotations

from .batches import Batches
from .checks import Checks
from .due import DueRecords
from .durable import Durable
from .fences import Fences
from .hidden import HiddenRecords
from .inserts import Inserts
from .leases import Leases
from .life import Life
from .lost import LostAnswers
from .places import Places
from .races import Races
from .reads import Reads
from .refusals import Refusals
from .removes import Removes
from .replaces import Replaces
from .scans import Scans

__all__ = ["DurableStoreContract", "StoreContract"]


class StoreContract(
    Reads,
    Places,
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
    Life,
):
    """What every store keeps. A capability may add tests to it, never leave one out."""


class DurableStoreContract(Durable, StoreContract):
    """And what a store keeps whose data outlives the object that opened it."""
