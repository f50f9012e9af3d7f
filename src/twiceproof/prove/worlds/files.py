"""Files under a directory: contents are compared, and restored before each scenario."""

from __future__ import annotations

import shutil
import tempfile
from hashlib import sha256
from pathlib import Path

from ...errors import Misuse

__all__ = ["Files"]


LEFT_OUT = {"__pycache__", ".twiceproof-prove"}


class Files:
    """A file is known by its name and its lines, so that a line written twice is noticed.

    `apart`: names begin with the directory's, because several directories are observed.
    """

    def __init__(self, directory: Path, *, apart: bool = False) -> None:
        if not directory.is_dir():
            raise Misuse(f"{directory} is not a directory; --files takes the directory that the flow writes into.")
        self._directory = directory
        self._begins = f"{directory}/" if apart else ""
        self._kept = Path(tempfile.mkdtemp(prefix="twiceproof-prove-")) / "files"
        shutil.copytree(directory, self._kept, ignore=shutil.ignore_patterns(*LEFT_OUT))

    def reset(self) -> None:
        for path in self._paths(reverse=True):
            path.unlink() if path.is_file() or path.is_symlink() else _remove_empty(path)
        shutil.copytree(self._kept, self._directory, dirs_exist_ok=True)

    def look(self) -> dict[str, int]:
        seen: dict[str, int] = {}
        for path in self._paths():
            if path.is_file():
                for line in _lines(path):
                    name = f"{self._begins}{path.relative_to(self._directory)}: {line}"
                    seen[name] = seen.get(name, 0) + 1
        return seen

    def close(self) -> None:
        shutil.rmtree(self._kept.parent, ignore_errors=True)

    def _paths(self, *, reverse: bool = False) -> list[Path]:
        found = [path for path in self._directory.rglob("*") if LEFT_OUT.isdisjoint(path.parts)]
        return sorted(found, reverse=reverse)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text("utf-8").splitlines() or ["(empty)"]
    except (UnicodeDecodeError, OSError):
        return [sha256(path.read_bytes()).hexdigest()]


def _remove_empty(path: Path) -> None:
    if not any(path.iterdir()):
        path.rmdir()
