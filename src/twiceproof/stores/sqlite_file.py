"""The SQLite file by its identity: one that was replaced or removed still takes writes, and nobody finds them."""

from __future__ import annotations

from pathlib import Path

from ..errors import StoreUnsafe
from .base import Finding

__all__ = ["LOOK_EVERY", "SameFile"]

LOOK_EVERY = 0.25  # seconds: a look costs a thirtieth of a commit that is not synced


class SameFile:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: tuple[int, int] | None = None
        self._looked_at = 0.0

    def learn(self) -> None:
        """When it is open for writing: on an overlay file system that makes another file of it."""
        self._known = self._identity()

    def insist(self) -> None:
        """Before another connection to it is opened."""
        if self._known is not None and self._identity() != self._known:
            finding = Finding(
                "refuse", "file", f"{self._path} was replaced or removed while the store was open",
                "Bring it back; or settle what was under way, then open the store again.",
            )  # fmt: skip
            raise StoreUnsafe(f"{finding.found}: what is written now is lost. {finding.advice}", findings=[finding])

    def look(self, now: float) -> None:
        """Now and then."""
        if not 0.0 <= now - self._looked_at < LOOK_EVERY:
            self.insist()
            self._looked_at = now  # not before: what is refused is refused the next time, too

    def _identity(self) -> tuple[int, int]:
        try:
            found = self._path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return 0, 0
        except PermissionError:  # it cannot be seen from here any more, nor that it has changed
            return self._known or (0, 0)
        return found.st_dev, found.st_ino
