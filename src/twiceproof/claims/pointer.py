"""A pointer: from a name elsewhere to a unit of work. It is kept while what it points to has a history."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from ..records import Address, Found, Insert, Record, Remove, Replace
from .claim import DONE, TRIMMED, body_of, claim_of, run_address
from .states import EXPIRE, TRIM, is_expired

__all__ = ["EXTERNAL", "POINTERS", "Pointer", "owner_of", "pointer_of", "pointer_write", "renewal"]

EXTERNAL = "external"  # an id that the outside gave
POINTERS = (EXTERNAL, "callback")
LOOK_AGAIN = 30 * 86_400.0


class Pointer(Struct, frozen=True, omit_defaults=True):
    """Which unit of work, by its space, and which step of it."""

    space: str
    step: str
    key: str
    flow: str


def pointer_of(record: Record) -> Pointer:
    return msgspec.json.decode(record.body, type=Pointer)


def pointer_write(at: Address, pointer: Pointer) -> Insert:
    """Due from time to time, to see whether what it points to is still there."""
    return Insert(at, body_of(pointer), queue=EXPIRE, due_in=LOOK_AGAIN)


def owner_of(record: Record) -> Address:
    return run_address(pointer_of(record).space)


def renewal(record: Record, found: Found) -> Remove | Replace:
    """A pointer that is due: it goes if its unit of work has gone, or only left a tombstone."""
    owner = found.record
    if owner is None or is_expired(owner, found.now) or _is_tombstone(owner):
        return Remove(record.at, version=record.version)
    left = LOOK_AGAIN
    if owner.queue in (EXPIRE, TRIM) and owner.due_at is not None:
        left = max(1.0, owner.due_at - found.now)
    return Replace(record.at, None, record.state, version=record.version, queue=EXPIRE, due_in=left)


def _is_tombstone(owner: Record) -> bool:
    """Done, and trimmed: its history is gone, and with it the step that was pointed to."""
    return owner.state == DONE and claim_of(owner).work == TRIMMED
