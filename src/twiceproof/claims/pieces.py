"""What lies beside a run's claim in its space: it goes before the claim does, or nobody would own it."""

from __future__ import annotations

from ..drive import Operation
from ..records import Check, Remove, Written
from ..stores.base import Store

__all__ = ["PIECES", "remove_pieces"]

PIECES = ("step", "arrival", "approval", "evidence", "resource")
BATCH = 50


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
            elif written.at == owner.at:
                return -1
    return gone
