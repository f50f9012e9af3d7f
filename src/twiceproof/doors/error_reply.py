"""Errors as a door tells them: one status each, one line, and the next move."""

from __future__ import annotations

import re

from ..errors import (
    ClaimError,
    InProgress,
    Misuse,
    NoSuchWait,
    PayloadMismatch,
    StoreError,
    StoreUnsafe,
    TwiceproofError,
)
from .reply import Reply, problem, retry_after

__all__ = ["error_reply"]

STORE_PAUSE = 5.0
_CAMEL = re.compile(r"(?<!^)(?=[A-Z])")


def error_reply(error: TwiceproofError, status: int | None = None) -> Reply:
    """`status` where the door knows better than the error's kind does."""
    headers = []
    if isinstance(error, InProgress):
        headers = [retry_after(error.retry_after)]
    elif isinstance(error, StoreError) and not isinstance(error, StoreUnsafe):
        headers = [retry_after(STORE_PAUSE)]
    detail, move = _parted(error)
    kind = _CAMEL.sub("-", type(error).__name__).lower()
    return problem(status or _status(error), kind, detail, next_move=move, headers=headers)


def _status(error: TwiceproofError) -> int:
    if isinstance(error, NoSuchWait):
        return 404
    if isinstance(error, PayloadMismatch):
        return 422
    if isinstance(error, ClaimError):
        return 409
    if isinstance(error, StoreError):
        return 503
    return 400 if isinstance(error, Misuse) else 500


def _parted(error: TwiceproofError) -> tuple[str, str]:
    """Errors end with the next move, behind a semicolon. What a store says may hold addresses: it stays here."""
    if isinstance(error, StoreError) and not isinstance(error, StoreUnsafe):
        return (
            "The ledger cannot be reached now; whether anything was written is not known.",
            "Send it again, unchanged.",
        )
    detail, semicolon, move = str(error).rpartition("; ")
    return (detail + ".", move) if semicolon else (str(error), "Look at what was sent, and at the run or the claim.")
