"""Matching: rows of all sources in a temporary SQLite file, sorted once by the digest of their keys.

Keys are compared here as bytes, never by the collations of two databases. Memory is bounded by SQLite's cache for any
number of rows. The file holds digests, and unless the ledger is encrypted also keys and ids, so that suspects can be
named. It is in a directory that only its owner can enter, and is removed at the end, or by the next run if this process
is killed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import sqlite3
import stat
import tempfile
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from ..errors import Misuse, NotDone
from .sources import KeyedSource, SourceRow, number_of

__all__ = ["MatchedRow", "Workspace", "are_apart"]

BATCH = 10_000  # rows that are inserted together
CACHE = 32 * 1024  # KB of SQLite's cache, which is also the memory of its sort
LOCK, PREFIX = "lock", "run-"
OLD = 3_600.0  # seconds after which a directory without a lock was left behind

TABLE = "CREATE TABLE rows (digest BLOB, source INT, ref TEXT, mark, key TEXT, at REAL)"
INDEX = "CREATE INDEX sorted ON rows (digest, source, ref, mark)"
INSERT = "INSERT INTO rows VALUES (?, ?, ?, ?, ?, ?)"


class MatchedRow(Struct, frozen=True):
    """A row of a suspect, as stored in the file: without `key` and `ref` if the ledger is encrypted."""

    source: int
    key: str | None
    ref: str | None
    at: float | None


class Workspace:
    """The temporary file of one run."""

    def __init__(self, directory: Path | None, *, sealed: bool, most_pages: int | None = None) -> None:
        self.sealed = sealed
        self._secret = secrets.token_bytes(16) if sealed else b""  # a salt, without which likely keys could be guessed
        self._home = _own_directory(_base(directory))
        self._lock = _locked(self._home / LOCK)
        self._waiting: list[tuple[Any, ...]] = []
        path = self._home / "rows.sqlite3"
        path.touch(mode=0o600)
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._db.create_function("apart", 3, are_apart, deterministic=True)
        for setting in (
            "journal_mode = OFF",
            "synchronous = OFF",
            "locking_mode = EXCLUSIVE",
            "temp_store = FILE",
            f"cache_size = -{CACHE}",
            *([f"max_page_count = {most_pages}"] if most_pages else []),
        ):
            self._db.execute(f"PRAGMA {setting}")
        self._db.execute(TABLE)
        self._db.execute("BEGIN")

    def digest(self, key: str) -> bytes:
        return blake2b(key.encode(), digest_size=16, key=self._secret).digest()

    def keep(self, view: KeyedSource, found: SourceRow) -> None:
        """Add a row. It is written with the next batch."""
        mark = view.mark(found.row, plain=not self.sealed)
        ref = self.digest(found.ref).hex() if self.sealed and found.ref else found.ref
        key = None if self.sealed else found.key
        self._waiting.append((self.digest(found.key), view.number, ref, mark, key, found.at))
        if len(self._waiting) >= BATCH:
            self._write()

    def _write(self) -> None:
        with _full_disk_told():
            self._db.executemany(INSERT, self._waiting)
        self._waiting.clear()

    def sort(self) -> None:
        self._write()
        with _full_disk_told():
            self._db.execute("COMMIT")
            self._db.execute(INDEX)

    # -- asking ----------------------------------------------------------------------------------

    def suspects(self, having: str, sources: tuple[int, ...], values: tuple[Any, ...], limit: int) -> list[bytes]:
        """Return the digests of the keys whose rows together meet a condition."""
        return [row[0] for row in self._db.execute(f"{_grouped(having, sources)} LIMIT ?", (*sources, *values, limit))]

    def count(self, having: str, sources: tuple[int, ...], values: tuple[Any, ...]) -> int:
        found = self._db.execute(f"SELECT count(*) FROM ({_grouped(having, sources)})", (*sources, *values))  # noqa: S608 - made of our own texts
        return int(found.fetchone()[0])

    def rows_of(self, digest: bytes) -> list[MatchedRow]:
        found = self._db.execute("SELECT source, key, ref, at FROM rows WHERE digest = ?", (digest,))
        return [MatchedRow(*row) for row in found]

    def repeated(self, view: KeyedSource) -> int:
        """Count keys that have a row with the same id more than once: the source changed while it was read."""
        having = "count(*) > count(DISTINCT ref)"
        return self.count(having, (view.number,), ()) if view.has_ids else 0

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return sum(path.stat().st_size for path in self._home.iterdir())

    # -- ending ----------------------------------------------------------------------------------

    def close(self) -> None:
        self._db.close()
        shutil.rmtree(self._home, ignore_errors=True)
        os.close(self._lock)


def _grouped(having: str, sources: tuple[int, ...]) -> str:
    places = ", ".join("?" * len(sources))
    return f"SELECT digest FROM rows INDEXED BY sorted WHERE source IN ({places}) GROUP BY digest HAVING {having}"  # noqa: S608 - made of our own texts


def are_apart(one: str, other: str, tolerances: str) -> bool:
    """Whether two lists of values, as JSON, differ by more than the tolerance."""
    for left, right, tolerance in zip(*map(msgspec.json.decode, (one, other, tolerances)), strict=True):
        if left == right:
            continue
        numbers = number_of(left), number_of(right)
        if tolerance is None or numbers[0] is None or numbers[1] is None:
            return True
        if abs(numbers[0] - numbers[1]) > number_of(tolerance):  # type: ignore[operator]
            return True
    return False


@contextlib.contextmanager
def _full_disk_told() -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as error:
        if "full" not in str(error):
            raise
        raise NotDone(
            "The directory for temporary files is full, and nothing was compared; make room there, or give another "
            "one: @app.reconcile(directory=…).",
            final=True,
        ) from error


# -- directories ---------------------------------------------------------------------------------


def _base(given: Path | None) -> Path:
    """Return our directory, which only this user can enter; refused if another user has made it first."""
    base = (given or Path(tempfile.gettempdir())) / f"twiceproof-reconcile-{os.getuid()}"
    base.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = base.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise Misuse(f"{base} is not a directory of this user alone; run chmod 700 on it, or give directory=.")
    return base


def _own_directory(base: Path) -> Path:
    """Make a directory for this run, and remove those whose process is gone."""
    for left in base.glob(f"{PREFIX}*"):
        if _is_abandoned(left):
            shutil.rmtree(left, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))


def _is_abandoned(directory: Path) -> bool:
    """Whether no living process holds its lock. A directory without a lock is just being made, or was abandoned that
    early.
    """
    try:
        handle = os.open(directory / LOCK, os.O_RDWR)
    except OSError:
        return _is_old(directory)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


def _is_old(directory: Path) -> bool:
    """Whether another run was begun long after this one, by the times of the file system."""
    with contextlib.suppress(OSError):
        return directory.parent.stat().st_mtime - directory.stat().st_mtime > OLD
    return False


def _locked(path: Path) -> int:
    """Hold a lock as long as this process lives. The file gets its name only after it is locked, so others never see it
    free.
    """
    unnamed = path.with_suffix(".new")
    handle = os.open(unnamed, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    fcntl.flock(handle, fcntl.LOCK_EX)
    unnamed.rename(path)
    return handle
