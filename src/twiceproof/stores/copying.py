"""Copies a whole ledger into another one: to outgrow a file, to back up, to restore.

Records are copied as they are, with their versions, fences, times and sealed bodies. The target is locked until all of
it is there and equal: a half-copied ledger would repeat the work that it lacks. The lock also keeps out processes that
have had it open. A copy that was broken off goes on where it stopped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from hashlib import blake2b, sha256
from pathlib import Path
from typing import Protocol

from msgspec import Struct
from msgspec.msgpack import Encoder

from ..errors import Misuse, StoreUnsafe
from ..records import Record
from .base import LedgerLock
from .open import sqlite_file

__all__ = ["CopyReport", "LedgerBulk", "copy_ledger", "open_bulk", "unlock_ledger"]

PAGE = 5_000  # records that are written by one commit
_encode = Encoder().encode
Progress = Callable[[int, int], None]


class LedgerBulk(Protocol):
    """A whole ledger, of a store that can be copied."""

    identity: str

    def rows(self, after: int = 0, *, size: int) -> Iterator[list[tuple[int, Record]]]: ...
    def count(self) -> int: ...
    def leases(self) -> Sequence[str]: ...
    def lock(self) -> LedgerLock | None: ...
    def lock_empty(self, lock: LedgerLock) -> bool: ...
    def set_lock(self, lock: LedgerLock | None) -> None: ...
    def load(self, rows: Iterable[tuple[int, Record]], lock: LedgerLock | None) -> None: ...
    def empty(self) -> None: ...
    def advance(self, highest: int) -> None: ...
    def close(self) -> None: ...


class CopyReport(Struct, frozen=True):
    """What was copied: records by kind, and the digest that both ledgers have. `resumed`: an earlier copy went on."""

    records: dict[str, int]
    digest: str
    resumed: bool

    @property
    def total(self) -> int:
        return sum(self.records.values())


class _Summary:
    """Counts by kind, and a digest that does not depend on the order of the records."""

    def __init__(self) -> None:
        self.kinds: Counter[str] = Counter()
        self.highest = 0
        self._sum = 0

    def add(self, page: Iterable[tuple[int, Record]]) -> None:
        for _, record in page:
            self.kinds[record.at.kind] += 1
            self.highest = max(self.highest, int(record.version), record.fence)
            self._sum += int.from_bytes(blake2b(_encode(record), digest_size=16).digest())

    @property
    def digest(self) -> str:
        return f"{self._sum % 2**128:032x}"


def open_bulk(url: str, *, create: bool = False) -> LedgerBulk:
    """Open a ledger as a whole. SQLite and PostgreSQL can; what else there is, is refused."""
    scheme = url.partition(":")[0]
    path = sqlite_file(url) if scheme == "sqlite" else None
    if path is not None:
        from .sqlite.bulk import SqliteBulk

        return SqliteBulk(Path(path), create=create)
    if scheme in ("postgresql", "postgres"):
        try:
            from .postgres.bulk import PostgresBulk
        except ImportError as error:
            raise Misuse("This needs psycopg; run: pip install 'twiceproof[postgres]'") from error
        return PostgresBulk(url, create=create)
    raise Misuse("Ledgers are copied between sqlite:///FILE and postgresql://…; name two of these.")


def copy_ledger(
    source: LedgerBulk,
    target: LedgerBulk,
    *,
    in_use: bool = False,
    seal: bool = False,
    progress: Progress = lambda done, total: None,
) -> CopyReport:
    """Copy all records. `in_use`: the source may be in use, and is copied as it is now. `seal`: lock it afterwards.

    A source that is not in use must not change meanwhile: it is compared once more at the end.
    """
    if source.identity == target.identity:
        raise Misuse("The source and the target are the same ledger; name two.")
    if not in_use:
        _refuse_leases(source)
    begun = _begun(source, target)
    copied = _load(source, target, begun, progress, whole=in_use)
    with _sealed(source) if seal else nullcontext():
        _verify(copied if in_use else _summary(source), target, source)
        target.advance(copied.highest)
    target.set_lock(None)  # from here on the source stays locked, whatever happens: the target may be in use
    return CopyReport(dict(sorted(copied.kinds.items())), copied.digest, begun > 0)


@contextmanager
def _sealed(source: LedgerBulk) -> Iterator[None]:
    """Lock the source, for good if what follows succeeds. It is compared only then: nothing can be written to it after
    it was read for the last time, also by processes that have had it open all the time.
    """
    before = source.lock()
    source.set_lock(LedgerLock("moved"))
    try:
        yield
    except BaseException:
        source.set_lock(before)
        raise


def unlock_ledger(ledger: LedgerBulk) -> bool:
    """Unlock a ledger that was moved. False: it is not locked."""
    lock = ledger.lock()
    if lock is not None and lock.what == "copying":
        raise Misuse("A copy into this ledger has not ended, so work would be repeated; finish it, or drop the ledger.")
    if lock is not None:
        ledger.set_lock(None)
    return lock is not None


def _refuse_leases(source: LedgerBulk) -> None:
    held = source.leases()
    if held:
        raise StoreUnsafe(
            f"The ledger is in use: leases are held in {', '.join(held)}. Stop the workers, servers and scripts that "
            "use it, wait until their leases are over, and run this again.",
            findings=[],
        )


def _begun(source: LedgerBulk, target: LedgerBulk) -> int:
    """Lock the target, and return the id up to which an earlier copy came. A target with anything else in it is
    refused.
    """
    mark, lock = _mark(source), target.lock()
    if lock is None:
        if not target.lock_empty(LedgerLock("copying", mark, 0)):
            raise Misuse("The target is not empty, and what it holds would be mixed with the copy; name an empty one.")
        return 0
    if lock.what != "copying" or lock.source != mark:
        raise Misuse("The target is locked by a copy from another ledger; finish that one, or name an empty target.")
    return lock.after


def _mark(source: LedgerBulk) -> str:
    return sha256(source.identity.encode()).hexdigest()[:16]


def _load(source: LedgerBulk, target: LedgerBulk, begun: int, progress: Progress, *, whole: bool) -> _Summary:
    """Copy what is missing, page by page. `whole`: an earlier attempt is dropped, as its snapshot is gone."""
    if whole and begun:
        target.empty()
        begun = 0
    done, total, summary = target.count(), source.count(), _Summary()
    mark = _mark(source)
    for page in source.rows(begun, size=PAGE):
        target.load(page, LedgerLock("copying", mark, page[-1][0]))
        summary.add(page)
        done += len(page)
        progress(done, max(done, total))
    return summary if begun == 0 else _summary(target)


def _summary(ledger: LedgerBulk) -> _Summary:
    found = _Summary()
    for page in ledger.rows(size=PAGE):
        found.add(page)
    return found


def _verify(expected: _Summary, target: LedgerBulk, source: LedgerBulk) -> None:
    if expected.digest == _summary(target).digest:
        return
    target.empty()
    target.set_lock(LedgerLock("copying", _mark(source), 0))
    raise StoreUnsafe(
        "The source changed while it was copied, and the copy was dropped; stop what uses the source, and run this "
        "again.",
        findings=[],
    )
