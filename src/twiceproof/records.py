"""Plain data that crosses the store seam. Imports nothing of ours.

A store keeps records and knows none of their meaning. Times go in as durations and come out as the
store's own time, in seconds.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

__all__ = [
    "RECORD_KINDS",
    "SELF",
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
    "RecordKind",
    "Remove",
    "Replace",
    "Write",
    "Written",
    "expiring_kinds",
    "kinds_beside_runs",
    "record_kind",
]

SELF = "self"  # the key of a record that is the only one of its kind in its space


class RecordKind(Struct, frozen=True):
    """What a sweep must know of one kind of record."""

    name: str
    beside_run: bool = False  # lies in a run's space and is removed with that run
    expires: bool = False  # has a time of its own, after which a sweep removes it
    points_to_run: bool = False  # leads to a run from another space, and is kept for as long as that run
    by_family: bool = False  # SQL stores have an index of it by the first two parts of its space


RECORD_KINDS: dict[str, RecordKind] = {}  # by name, in the order in which they were registered


def record_kind(
    name: str,
    *,
    beside_run: bool = False,
    expires: bool = False,
    points_to_run: bool = False,
    by_family: bool = False,
) -> str:
    """Register a kind of record and return its name. The module that writes such records calls this at import.

    `by_family` needs an index in the schema of each SQL store, which names the kind.
    """
    if not (name.isascii() and name.islower() and len(name) <= 64):
        raise ValueError(f"{name!r} is not the name of a kind of record; use up to 64 small letters.")
    kind = RecordKind(name, beside_run, expires, points_to_run, by_family)
    if RECORD_KINDS.setdefault(name, kind) != kind:
        raise ValueError(f"The kind of record {name!r} is registered twice, with different properties.")
    return name


def kinds_beside_runs() -> tuple[str, ...]:
    """Return the kinds of records that are removed with the run in whose space they lie."""
    return tuple(kind.name for kind in RECORD_KINDS.values() if kind.beside_run)


def expiring_kinds() -> tuple[str, ...]:
    """Return the kinds of records that a sweep looks for by themselves."""
    return tuple(kind.name for kind in RECORD_KINDS.values() if kind.expires)


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
    draw: bool = False  # draw a new fence: holders of the old one can no longer write
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
    """Writes that land together or not at all, to one space or, for engines that link spaces, to that of the first
    write and to `others`, space by space. The nonce recognises them again.

    `also` is a batch of another space that goes into the same commit and lands or not on its own.
    """

    writes: Sequence[Write]
    nonce: str
    also: Batch | None = None
    others: tuple[str, ...] = ()

    @property
    def space(self) -> str:
        return self.writes[0].at.space

    @property
    def spaces(self) -> tuple[str, ...]:
        return self.writes[0].at.space, *self.others


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
    """Part of a scan. `after` continues it; None means that this was the last part.

    `cursors` has one for each record, in order, so that a reader can stop within a page, or go back from its first
    record. It is empty where one space was asked for, or where the service continues only whole pages.
    """

    records: Sequence[Record]
    after: str | None
    now: float
    cursors: Sequence[str] = ()


class Due(Struct, frozen=True, gc=False):
    """Records that are due, the longest overdue first, and in how many seconds the next one will be."""

    records: Sequence[Record]
    next_in: float | None
    now: float
