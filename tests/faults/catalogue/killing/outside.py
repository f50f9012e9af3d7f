"""Effects outside of the product: one line for each, in files that only the test's own functions write."""

from __future__ import annotations

import contextlib
import json
import os
import resource
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["Outside"]

Noted = dict[tuple[str, int], list[Any]]

KINDS = ("effect", "since", "until", "told", "ended", "broken", "missed", "fence", "late", "raised")


class Outside:
    """Opened before a fork, used on both sides. Each line is one write, so that no kill can tear it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        flags = os.O_APPEND | os.O_CREAT | os.O_WRONLY
        self._files = {kind: os.open(directory / f"outside-{kind}", flags, 0o600) for kind in KINDS}
        self._known: dict[str, Noted] = {kind: defaultdict(list) for kind in KINDS}
        self._read_to = dict.fromkeys(KINDS, 0)

    def note(self, name: str, order: int, kind: str, what: Any) -> None:
        with _no_limit():
            os.write(self._files[kind], json.dumps([name, order, what]).encode() + b"\n")

    def read(self, kind: str) -> Noted:
        """Return the new lines of a kind, by scene and order, since the last read."""
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


@contextlib.contextmanager
def _no_limit() -> Iterator[None]:
    """A limit on the size of files (F3) is meant for the ledger, and would cut the test's own lines."""
    limit, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    if limit == hard:
        yield
        return
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
