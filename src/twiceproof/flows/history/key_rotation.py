"""Rotation: every stored value is sealed anew with the current key, a few at a time, beside whoever is at work.

What is held is left alone: its holder seals it anew when it ends. A run's entries are rewritten only on condition that
its claim is as it was seen, for a run in progress knows them by their versions.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection
from typing import Literal

from msgspec import Struct, structs

from ...claims.claim import CLAIM, DONE, HELD, RUN, body_of, claim_of
from ...claims.retention import POINTERS, run_or_claim
from ...errors import CannotOpen, Misuse
from ...operations import Operation, await_
from ...records import Check, Page, Record, Replace, Written
from ...stores.base import Store
from ...stores.encryption import EncryptedEngine, Keyring, key_id_of
from ...stores.grouped import GroupedStore
from ..engine.run_states import work_of

__all__ = ["KINDS", "RotationCount", "as_stored", "keys_in_use", "rotate"]


log = logging.getLogger("twiceproof")

# Every kind of record there is. A test looks for those that are missing.
KINDS = (
    CLAIM,
    RUN,
    "step",
    "evidence",
    "resource",
    "arrival",
    "approval",
    "undo",
    "schedule",
    "poll",
    "rate",
    "mark",
    "duplicates",
    "notice",
    "letter",
    "link",
    "signing",
    "token",
    "tenant",
    "clock",
    "worker",
    *POINTERS,
)
PAGE = 100
COUNTED = 1_000  # at a time

Fate = Literal["sealed", "current", "held", "changed", "shut"]


class RotationCount(Struct, frozen=True):
    """What became of the records: sealed anew, sealed so before, held by somebody, or changed while we looked.

    Those that are shut are bad rows: they do not open with the key that they name.
    """

    sealed: int = 0
    current: int = 0
    held: int = 0
    changed: int = 0
    shut: int = 0

    @property
    def left(self) -> int:
        return self.held + self.changed + self.shut


def keys_in_use(store: GroupedStore) -> dict[str, int]:
    """How many rows are sealed with which key; "" are plain. Opens nothing, and needs no key."""
    raw, counts = as_stored(store), Counter[str]()
    for kind in KINDS:
        after: str | None = None
        while True:
            page = raw.scan(kind, after=after, limit=COUNTED).block()
            counts.update(key_id_of(record.body) for record in page.records)
            after = page.after
            if after is None:
                break
    return dict(sorted(counts.items()))


def rotate(store: GroupedStore, progress: Callable[[int], None] = lambda seen: None) -> RotationCount:
    """One pass over everything. What is left is held or was just written: say it again later."""
    if not isinstance(store.engine, EncryptedEngine):
        raise Misuse("There are no keys to seal with; set TWICEPROOF_KEYS, then try again.")
    return asyncio.run(_rotate(store, store.engine.keyring, progress))


def as_stored(store: Store) -> Store:
    """The same records as they are stored."""
    engine = getattr(store, "engine", None)
    return GroupedStore(engine.inner) if isinstance(engine, EncryptedEngine) else store


async def _rotate(store: GroupedStore, keyring: Keyring, progress: Callable[[int], None]) -> RotationCount:
    raw, fates = as_stored(store), Counter[str]()
    for kind in KINDS:
        after: str | None = None
        while True:
            page: Page = await raw.scan(kind, after=after, limit=PAGE).wait()
            old = [record for record in page.records if key_id_of(record.body) != keyring.current]
            fates["current"] += len(page.records) - len(old)
            fates.update(await asyncio.gather(*(await_(_renewed(store, keyring.ids, record)) for record in old)))
            progress(fates.total())
            after = page.after
            if after is None:
                break
    return RotationCount(**fates)


def _renewed(store: GroupedStore, keys: Collection[str], raw: Record) -> Operation[Fate]:
    """A bad row must not keep the old key in use for all that come after it. What is amiss with
    the keys themselves stops it: one is wanting, or plain rows are not believed.
    """
    try:
        return (yield from _renew(store, raw))
    except CannotOpen as error:
        if error.data.get("key_id") not in keys:
            raise
        log.error("not sealed anew: %s", error)
        return "shut"


def _renew(store: GroupedStore, raw: Record) -> Operation[Fate]:
    """By version: whatever happened to it since makes this write fall."""
    found = yield from store.read(raw.at)
    record = found.record
    if record is None or record.version != raw.version:
        return "changed"
    owns = record.at.kind in (CLAIM, RUN)
    claim = record if owns else (yield from run_or_claim(store, record.at.space)).record
    if record.state == HELD or (claim is not None and _is_busy(claim)):
        return "held"
    beside = () if claim is None or claim is record else (Check(claim.at, version=claim.version),)
    written = yield from store.write(_rewrite(record, found.now), *beside)
    return "sealed" if isinstance(written, Written) else "changed"


def _is_busy(claim: Record) -> bool:
    """Somebody holds it, or did without a word: from the times in its ledger it is told what may be repeated."""
    return claim.state == HELD or (claim.state != DONE and work_of(claim_of(claim)).crash_unresolved)


def _rewrite(record: Record, now: float) -> Replace:
    body = record.body
    if record.at.kind in (CLAIM, RUN) and record.state == DONE and claim_of(record).finished_at is None:
        body = body_of(structs.replace(claim_of(record), finished_at=record.updated_at))
    return Replace(
        record.at,
        body,
        record.state,
        version=record.version,
        queue=record.queue,
        lease=_left(record.lease_until, now),
        due_in=None if record.due_at is None else max(0.0, record.due_at - now),
    )


def _left(until: float | None, now: float) -> float | None:
    return until - now if until is not None and until > now else None
