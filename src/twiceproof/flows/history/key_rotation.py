"""Key rotation: re-encrypt every stored value with the current key, in small batches, beside running work.

Held records are skipped: their holder encrypts them with the new key when it writes. A run's entries are rewritten
only if its claim is unchanged, because a run in progress knows them by their versions.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection
from typing import Literal

from msgspec import Struct, structs

from ...claims.claim import CLAIM, DONE, HELD, RUN, body_of, claim_of
from ...claims.retention import run_or_claim
from ...errors import CannotOpen, Misuse
from ...operations import Operation, await_
from ...records import RECORD_KINDS, Check, Page, Record, Replace, Written
from ...stores.base import Store
from ...stores.encryption import EncryptedEngine, Keyring, key_id_of
from ...stores.grouped import GroupedStore
from ..engine.run_states import work_of

__all__ = ["RotationCount", "as_stored", "keys_in_use", "rotate"]


log = logging.getLogger("twiceproof")

PAGE = 100
COUNTED = 1_000  # records per batch

Fate = Literal["sealed", "current", "held", "changed", "shut"]


class RotationCount(Struct, frozen=True):
    """Counts of records: re-encrypted, already current, held, or changed meanwhile.

    `shut` counts bad rows: they cannot be decrypted with the key they name.
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
    """Count rows per encryption key; "" stands for plain rows. Decrypts nothing and needs no key."""
    raw, counts = as_stored(store), Counter[str]()
    for kind in list(RECORD_KINDS):
        after: str | None = None
        while True:
            page = raw.scan(kind, after=after, limit=COUNTED).block()
            counts.update(key_id_of(record.body) for record in page.records)
            after = page.after
            if after is None:
                break
    return dict(sorted(counts.items()))


def rotate(store: GroupedStore, progress: Callable[[int], None] = lambda seen: None) -> RotationCount:
    """Re-encrypt everything in one pass. What is left was held or just written: run it again later."""
    if not isinstance(store.engine, EncryptedEngine):
        raise Misuse("There are no keys to seal with; set TWICEPROOF_KEYS, then try again.")
    return asyncio.run(_rotate(store, store.engine.keyring, progress))


def as_stored(store: Store) -> Store:
    """The same records in their stored (encrypted) form."""
    engine = getattr(store, "engine", None)
    return GroupedStore(engine.inner) if isinstance(engine, EncryptedEngine) else store


async def _rotate(store: GroupedStore, keyring: Keyring, progress: Callable[[int], None]) -> RotationCount:
    raw, fates = as_stored(store), Counter[str]()
    for kind in list(RECORD_KINDS):
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
    """Re-encrypt one batch. A bad row does not stop the pass, or it would keep the old key in use for all later rows.
    A missing key, or plain rows where none are accepted, does stop it.
    """
    try:
        return (yield from _renew(store, raw))
    except CannotOpen as error:
        if error.data.get("key_id") not in keys:
            raise
        log.error("not sealed anew: %s", error)
        return "shut"


def _renew(store: GroupedStore, raw: Record) -> Operation[Fate]:
    """Conditional on the version: any change since the read makes this write fail."""
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
    """Whether it is held, or was held by a crashed process: the times in its ledger decide what may be repeated."""
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
