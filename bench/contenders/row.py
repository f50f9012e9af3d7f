"""A raw row: as large as a claim of ours, in a table like ours, made by nobody but the loop that inserts it."""

from __future__ import annotations

import itertools
import time
from typing import Any

from ..orders import LEASE, TENANT, Keys, growing, typical_body

__all__ = ["COLUMNS", "Rows"]

COLUMNS = "space, kind, key, state, version, fence, nonce, created_at, updated_at, lease_until, queue, due_at, body"


class Rows:
    """Rows of one contender. Cheap on purpose: the raw side pays for the statement and nothing else."""

    def __init__(self, operation: str, keys: Keys | None = None) -> None:
        self._prefix = f"{TENANT}/{operation}/"
        self._keys = keys or growing()
        self._numbers = itertools.count(1)
        self._body = typical_body()

    def __call__(self) -> tuple[Any, ...]:
        now, number = time.time(), next(self._numbers)
        return (
            self._prefix + self._keys(),
            "claim",
            "self",
            "held",
            number,
            number,
            f"0123456789abcdef-{number:x}",
            now,
            now,
            now + LEASE,
            "",
            None,
            self._body,
        )

    def many(self, count: int) -> list[tuple[Any, ...]]:
        return [self() for _ in range(count)]
