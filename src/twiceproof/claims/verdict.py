"""What an error says about the work: surely not done, perhaps done, or a fault of the program."""

from __future__ import annotations

import socket
from typing import Literal

from ..errors import NotDone

__all__ = ["Verdict", "fault_of", "judge"]

from .claim import Fault

Verdict = Literal["clean", "ambiguous", "other"]

# The request never left, or the other side said no before doing anything.
CLEAN = (NotDone, ConnectionRefusedError, socket.gaierror)
# The request may have arrived, and no answer came back.
AMBIGUOUS = (TimeoutError, ConnectionError)
MAYBE_DONE_STATUS = frozenset({408, 409, 425})
LONGEST_MESSAGE = 500


def judge(error: BaseException) -> Verdict:
    """Clean: may be tried again. Ambiguous: nobody knows. Other: neither, so not without a word."""
    if isinstance(error, CLEAN):
        return "clean"
    if isinstance(error, AMBIGUOUS) or not isinstance(error, Exception):
        return "ambiguous"
    status = _http_status(error)
    if status is None:
        return "other"
    return "clean" if 400 <= status < 500 and status not in MAYBE_DONE_STATUS else "ambiguous"


def _http_status(error: BaseException) -> int | None:
    """The status of the answer that an HTTP client's error carries: httpx, requests, aiohttp and urllib alike."""
    carriers = (getattr(error, "response", None), error)
    for name in ("status_code", "status", "code"):
        for carrier in carriers:
            status = getattr(carrier, name, None)
            if type(status) is int and 400 <= status < 600:
                return status
    return None


def fault_of(error: BaseException, *, retryable: bool = False) -> Fault:
    message = " ".join(str(error).split())[:LONGEST_MESSAGE]
    return Fault(type(error).__name__, message.replace("\0", "\N{SYMBOL FOR NULL}"), retryable)
