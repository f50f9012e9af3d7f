"""What an error says about the work: surely not done, perhaps done, or a fault of the program."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Literal

from ..errors import NotDone
from .claim import Fault

__all__ = ["Verdict", "fault_of", "judge", "worst"]

Verdict = Literal["clean", "ambiguous", "other"]

# The request never left, or the other side said no before doing anything.
CLEAN = (NotDone, ConnectionRefusedError, socket.gaierror)
# The request may have arrived, and no answer came back.
AMBIGUOUS = (TimeoutError, ConnectionError)
MAYBE_DONE_STATUS = frozenset({408, 409, 425})
STATUS_NAMES = ("status_code", "status", "code", "http_status")
# HTTP and mail clients' own errors descend from none of the above; they are known by the names of their classes.
CLEAN_NAMES = frozenset({
    "ConnectError", "ConnectTimeout", "PoolTimeout", "ClientConnectorError", "NewConnectionError",
    "ConnectTimeoutError", "SSLCertVerificationError", "SMTPConnectError", "SMTPHeloError", "SMTPAuthenticationError",
    "SMTPSenderRefused", "SMTPRecipientsRefused", "SMTPDataError",
})  # fmt: skip
AMBIGUOUS_NAMES = frozenset({
    "TransportError", "Timeout", "TimeoutExpired", "ConnectionError", "ClientConnectionError", "ClientPayloadError",
    "SMTPServerDisconnected", "IncompleteRead", "BadStatusLine", "SSLError", "ReadTimeoutError", "ProtocolError",
    "TimeoutError", "ConnectionClosedError", "APIConnectionError", "ServiceResponseError",
})  # fmt: skip
LONGEST_MESSAGE = 500


def judge(error: BaseException) -> Verdict:
    """Clean: may be tried again. Ambiguous: nobody knows. Other: neither, so not without a word."""
    if isinstance(error, BaseExceptionGroup):
        return worst({judge(one) for one in error.exceptions})
    names = {kind.__name__ for kind in type(error).__mro__}
    if isinstance(error, CLEAN) or not CLEAN_NAMES.isdisjoint(names):
        return "clean"
    if isinstance(error, AMBIGUOUS) or not AMBIGUOUS_NAMES.isdisjoint(names) or not isinstance(error, Exception):
        return "ambiguous"
    status = _http_status(error)
    if status is None:
        return _inner(error)
    return "clean" if 400 <= status < 500 and status not in MAYBE_DONE_STATUS else "ambiguous"


def _inner(error: BaseException) -> Verdict:
    """urllib and urllib3 hand on what went wrong as the `reason` of an error of their own."""
    reason = getattr(error, "reason", None)
    return judge(reason) if isinstance(reason, Exception) and reason is not error else "other"


def worst(verdicts: set[Verdict]) -> Verdict:
    """Of several errors at once: one that leaves a doubt leaves it for all of them."""
    if "ambiguous" in verdicts:
        return "ambiguous"
    return "clean" if verdicts == {"clean"} else "other"


def _http_status(error: BaseException) -> int | None:
    """The status of the answer that an HTTP client's error carries: httpx, requests, aiohttp, urllib, Stripe, boto."""
    response = getattr(error, "response", None)
    found = [getattr(carrier, name, None) for name in STATUS_NAMES for carrier in (response, error)]
    metadata = response.get("ResponseMetadata") if isinstance(response, Mapping) else None  # botocore's: parsed already
    if isinstance(metadata, Mapping):
        found.append(metadata.get("HTTPStatusCode"))
    return next((status for status in found if isinstance(status, int) and 400 <= status < 600), None)


def fault_of(error: BaseException, *, retryable: bool = False) -> Fault:
    message = " ".join(_text_of(error).split())[:LONGEST_MESSAGE]
    return Fault(type(error).__name__, message.replace("\0", "\N{SYMBOL FOR NULL}"), retryable)


def _text_of(error: BaseException) -> str:
    """Never fails: an error whose text cannot be written must not hide the error itself."""
    try:
        return str(error).encode(errors="replace").decode()
    except Exception as worse:  # noqa: BLE001 - its own __str__ is broken
        return f"(its text could not be had: {type(worse).__name__})"
