"""The world outside of the product: a line for each effect, in files that the product cannot write to by itself."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from pathlib import Path
from typing import Any

__all__ = ["Outside"]

Noted = dict[tuple[str, int], list[Any]]

KINDS = ("effect", "since", "until", "told", "ended", "broken", "missed", "fence", "late", "raised")


class Outside:
    """Opened before a fork, used on both sides of it. Each line is one write, so that no kill can tear it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        flags = os.O_APPEND | os.O_CREAT | os.O_WRONLY
        self._files = {kind: os.open(directory / f"outside-{kind}", flags, 0o600) for kind in KINDS}
        self._known: dict[str, Noted] = {kind: defaultdict(list) for kind in KINDS}
        self._read_to = dict.fromkeys(KINDS, 0)

    def note(self, name: str, order: int, kind: str, what: Any) -> None:
        os.write(self._files[kind], json.dumps([name, order, what]).encode() + b"\n")

    def read(self, kind: str) -> Noted:
        """What was noted of a kind, in order, by scene and order. Reads on from where it was."""
        known = self._known[kind]
        with (self._directory / f"outside-{kind}").open("rb") as file:
            file.seek(self._read_to[kind])
            for line in file:
                name, order, what = json.loads(line)
                known[name, order].append(what)
            self._read_to[kind] = file.tell()
        return known

    def close(self) -> None:
        for file in self._files.values():
            os.close(file)
