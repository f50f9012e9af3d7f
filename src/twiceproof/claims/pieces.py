"""What lies beside a run's claim in its space: it goes before the claim does, or nobody would own it."""

from __future__ import annotations

from ..drive import Operation
from ..records import Check, Found, Record, Remove, Written
from ..stores.base import Store
from .claim import other_kind, run_address
from .shelving import drop
from .states import EXPIRE, is_expired

__all__ = ["INPUT", "PIECES", "forget", "is_of_a_run_to_come", "remove_pieces", "run_or_claim"]

INPUT = "input-"  # how the name of a large input begins
PIECES = ("step", "arrival", "approval", "evidence", "resource", "undo")
BATCH = 50


def run_or_claim(store: Store, space: str) -> Operation[Found]:
    """Whichever of them is in this space."""
    run, claim = yield from store.read_each([run_address(space), other_kind(run_address(space))])
    return run if run.record is not None and (claim.record is None or not is_expired(run.record, run.now)) else claim


def forget(store: Store, record: Record) -> Operation[None]:
    """A claim that may be forgotten, and everything beside it, unless somebody took it meanwhile."""
    if (yield from remove_pieces(store, Check(record.at, version=record.version))) >= 0:
        yield from store.write(Remove(record.at, version=record.version))


def remove_pieces(store: Store, owner: Check) -> Operation[int]:
    """How many went; -1 if the claim is no longer the one in `owner`: whoever took it may need the rest."""
    gone = 0
    size = max(1, min(BATCH, store.batch_limit - 1))
    for kind in PIECES:
        after: str | None = None
        while True:
            page = yield from store.scan(kind, space=owner.at.space, after=after, limit=size)
            old = [record for record in page.records if not is_of_a_run_to_come(record, page.now)]
            if old:
                removals = [Remove(record.at, version=record.version) for record in old]
                written = yield from store.write(owner, *removals)
                if not isinstance(written, Written):
                    if written.at == owner.at:
                        return -1
                    continue
                gone += len(removals)
                yield from drop(old)
            after = page.after
            if after is None:
                break
    return gone


def is_of_a_run_to_come(record: Record, now: float) -> bool:
    """A large input is there before its run, which makes it its own as it begins; without a run, its time runs out.

    Cleared away with an earlier run of the key, it would leave a run that can never be carried out.
    """
    named = record.at.kind == "resource" and record.at.key.startswith(INPUT)
    return named and record.queue == EXPIRE and record.due_at is not None and record.due_at > now
