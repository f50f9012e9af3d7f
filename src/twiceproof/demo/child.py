"""What every process of the demo has in common: it tells its parent things, and ends when its parent does."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import Any

__all__ = ["Book", "stay", "tell"]

_speaking = threading.Lock()


def tell(**what: Any) -> None:
    """One line to the parent."""
    with _speaking:
        sys.stdout.write(json.dumps(what) + "\n")
        sys.stdout.flush()


def stay() -> None:
    """Until the parent closes our input, or is gone: nobody is left behind, whatever it died of."""
    sys.stdin.buffer.read()


class Book:
    """What a service of the outside world remembers: a file that it alone writes, a line for each thing done."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8", buffering=1)
        self._writing = threading.Lock()
        self.lines: list[dict[str, Any]] = []

    def write(self, **line: Any) -> None:
        with self._writing:
            self.lines.append(line)
            self._file.write(json.dumps(line) + "\n")

    def close(self) -> None:
        self._file.close()

    @staticmethod
    def read(path: Path) -> list[dict[str, Any]]:
        lines = path.read_text("utf-8").splitlines() if path.exists() else []
        return [json.loads(line) for line in lines]
