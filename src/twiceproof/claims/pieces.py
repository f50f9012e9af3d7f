"""What lies beside a run's claim in its space: it goes before the claim does, or nobody would own it."""

from __future__ import annotations

from ..drive import Operation
from ..records import Check, Record, Remove, Written
from ..stores.base import Store
from .shelving import drop

__all__ = ["PIECES", "forget", "remove_pieces"]

PIECES = ("step", "arrival", "approval", "evidence", "resource", "undo")
BATCH = 50


def forget(store: Store, record: Record) -> Operation[None]:
    """A claim that may be forgotten, and everything beside it, unless somebody took it meanwhile."""
    if (yield from remove_pieces(store, Check(record.at, version=record.version))) >= 0:
        yield from store.write(Remove(record.at, version=record.version))


def remove_pieces(store: Store, owner: Check) -> Operation[int]:
    """How many went; -1 if the claim is no longer the one in `owner`: whoever took it may need the rest."""
    gone = 0
    size = max(1, min(BATCH, store.batch_limit - 1))
    for kind in PIECES:
        while True:
            page = yield from store.scan(kind, space=owner.at.space, limit=size)
            if not page.records:
                break
            removals = [Remove(record.at, version=record.version) for record in page.records]
            written = yield from store.write(owner, *removals)
            if isinstance(written, Written):
                gone += len(removals)
                yield from drop(page.records)
            elif written.at == owner.at:
                return -1
    return gone
