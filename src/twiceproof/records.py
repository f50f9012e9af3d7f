"""Plain data that crosses the store seam. Imports nothing of ours.

A store keeps records and knows none of their meaning. Times go in as durations and come out as the
store's own time, in seconds.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

__all__ = [
    "Address",
    "Batch",
    "Check",
    "Conflict",
    "Due",
    "Found",
    "Insert",
    "Lost",
    "Outcome",
    "Page",
    "Record",
    "Remove",
    "Replace",
    "Write",
    "Written",
]


class Address(Struct, frozen=True, gc=False):
    """Where a record lives. Everything about one unit of work shares one space."""

    space: str
    kind: str
    key: str


class Record(Struct, frozen=True, gc=False):
    """What is stored at an address. `version` changes with every write, `fence` only when one is drawn."""

    at: Address
    body: str
    state: str
    version: str
    fence: int
    nonce: str
    created_at: float
    updated_at: float
    lease_until: float | None = None
    queue: str = ""
    due_at: float | None = None


class Insert(Struct, frozen=True, gc=False):
    """Put a record where there is none."""

    at: Address
    body: str
    state: str = ""
    draw: bool = False  # draw a fence for the new record
    lease: float | None = None
    queue: str = ""
    due_in: float | None = None


class Replace(Struct, frozen=True, gc=False):
    """Put a record in another's place, if its fence or its version is still the one given.

    What is not given is cleared (lease, queue, due), except the body: None leaves it as it is.
    """

    at: Address
    body: str | None = None
    state: str = ""
    fence: int | None = None
    version: str | None = None
    draw: bool = False  # draw a new fence: whoever knew the old one can no longer write
    lease: float | None = None
    queue: str = ""
    due_in: float | None = None


class Remove(Struct, frozen=True, gc=False):
    """Take a record away, if its fence or its version is still the one given."""

    at: Address
    fence: int | None = None
    version: str | None = None


class Check(Struct, frozen=True, gc=False):
    """Write nothing, but let the batch land only if this holds: a fence, a version, or absence."""

    at: Address
    fence: int | None = None
    version: str | None = None
    absent: bool = False


Write = Insert | Replace | Remove | Check


class Batch(Struct, frozen=True, gc=False):
    """Writes to one space that land together or not at all. The nonce recognises them again.

    `also` is a batch of another space that goes into the same commit and lands or not on its own.
    """

    writes: Sequence[Write]
    nonce: str
    also: Batch | None = None

    @property
    def space(self) -> str:
        return self.writes[0].at.space


class Found(Struct, frozen=True, gc=False):
    """The answer to a read."""

    record: Record | None
    now: float


class Written(Struct, frozen=True, gc=False):
    """The batch landed. Its records share one version; a fence drawn in it has the number `fence`."""

    version: str
    fence: int
    now: float


class Conflict(Struct, frozen=True, gc=False):
    """Nothing was written: the write at `at` did not fit what was found there."""

    at: Address
    found: Record | None
    now: float


class Lost(Struct, frozen=True, gc=False):
    """An acknowledgement was lost and what was written cannot be recognised any more.

    It may have landed and been overwritten since, or never have landed. Read, and decide afresh.
    """

    at: Address
    found: Record | None
    now: float


Outcome = Written | Conflict | Lost


class Page(Struct, frozen=True, gc=False):
    """Part of a scan. `after` continues it; None means that this was the last part."""

    records: Sequence[Record]
    after: str | None
    now: float


class Due(Struct, frozen=True, gc=False):
    """Records that are due, the longest overdue first, and in how many seconds the next one will be."""

    records: Sequence[Record]
    next_in: float | None
    now: float
