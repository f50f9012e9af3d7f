"""The work: what a run adds to its claim. Which version it began on, its input, and what it waits for."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw, Struct, structs

from ..claims.claim import NO_RESULT, Claim, Spill

__all__ = ["Work", "encoded", "queue_of", "with_work", "work_of"]


class Work(Struct, frozen=True, omit_defaults=True, gc=False):
    """Kept in the claim's record as JSON."""

    version: str = "1"
    input: Raw = NO_RESULT
    spill: Spill | None = None  # where the input is, if it is large
    correlation: str = ""
    crashes: int = 0  # holders that stopped without a word, or were interrupted
    since: float = 0.0  # a time in the ledger before its holder took it
    adrift: bool = False  # a holder stopped without a word, and nothing was finished since
    undoing: str = ""  # why it is being undone: "settled", "cancelled"
    by: str = ""  # who said so
    parent: str = ""
    born: str = ""  # which start of its key it is: what an earlier one was promised is not this one's
    follows: str = ""  # the run that must have ended before this one begins
    gap_until: float = 0.0  # for how long it waits for the versions before its own
    forked_from: str = ""  # the run that this one was started after, under another key
    awaits: tuple[str, ...] = ()  # runs that it lay down for, where it waits
    waiters: tuple[str, ...] = ()  # runs that lie down until this one has ended, whoever started it
    ordered: tuple[str, str, str] | None = None  # of an ordered flow: its object, its version's kind and text
    unawaited: tuple[str, ...] = ()  # calls that were made and never awaited: they come late, and are no change
    starter: str = ""  # who asked for it, where that is known: not the one to approve it


_decode = msgspec.json.Decoder(Work).decode
_encode = msgspec.json.Encoder().encode


def work_of(claim: Claim) -> Work:
    return _decode(claim.work) if claim.work else Work()


def with_work(claim: Claim, **changes: Any) -> Claim:
    return structs.replace(claim, work=Raw(_encode(structs.replace(work_of(claim), **changes))))


def encoded(work: Work) -> Raw:
    return Raw(_encode(work))


def queue_of(tenant: str, operation: str, version: str) -> str:
    """Where workers that have this version of this flow look for runs."""
    return f"{tenant}/{operation}@{version}"
