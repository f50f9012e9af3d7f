"""Stores that each break one promise. The contract suite must catch every one of them."""

from tests.contracts.stores.broken import (
    addresses,
    batches,
    bodies,
    conditions,
    due,
    fences,
    grouping,
    life,
    lists,
    lost,
    reads,
    refusals,
    scans,
    times,
)
from tests.contracts.stores.broken.catalogue import BROKEN, Broken

__all__ = [
    "BROKEN",
    "Broken",
    "addresses",
    "batches",
    "bodies",
    "conditions",
    "due",
    "fences",
    "grouping",
    "life",
    "lists",
    "lost",
    "reads",
    "refusals",
    "scans",
    "times",
]
