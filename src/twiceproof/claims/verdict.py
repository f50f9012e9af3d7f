"""What an error says about the work: surely not done, perhaps done, or a fault of the program."""

from __future__ import annotations

import errno
import socket
from typing import Literal

from ..errors import NotDone
from .claim import Fault
from .client_errors import is_refusal, names_of, of_grpc, status_of
from .driver_errors import of_driver
from .said_by import said_by
from .sent import Ending, sent_before

__all__ = ["Verdict", "fault_of", "judge", "worst"]

Verdict = Literal["clean", "ambiguous", "other"]

# The request never left, or the other side said no before doing anything.
CLEAN = (ConnectionRefusedError, socket.gaierror)
# The request may have arrived, and no answer came back.
AMBIGUOUS = (TimeoutError, ConnectionError)
# Said of a connection that could not be made, and, after minutes of silence, of one on which all was sent.
UNREACHABLE = frozenset({errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN})
# HTTP and mail clients' own errors descend from none of the above; they are known by the names of their classes.
CLEAN_NAMES = frozenset({
    "ConnectError", "ConnectTimeout", "PoolTimeout", "ClientConnectorError", "NewConnectionError",
    "ConnectTimeoutError", "EndpointConnectionError", "SSLCertVerificationError", "SMTPConnectError", "SMTPHeloError",
    "SMTPAuthenticationError", "SMTPSenderRefused", "SMTPRecipientsRefused", "SMTPDataError",
})  # fmt: skip
AMBIGUOUS_NAMES = frozenset({
    "TransportError", "Timeout", "TimeoutError", "TimeoutExpired", "ConnectionError", "ConnectionClosedError",
    "ClientConnectionError", "ClientPayloadError", "HTTPClientError", "SMTPServerDisconnected", "IncompleteRead",
    "IncompleteReadError", "BadStatusLine", "SSLError", "ReadTimeoutError", "ProtocolError", "ProxyError",
    "MaxRetryError", "ChunkedEncodingError", "APIConnectionError", "ServiceResponseError",
})  # fmt: skip
# Names that other packages give to other things.
AMBIGUOUS_CLASSES = frozenset({
    "requests.exceptions.ContentDecodingError", "requests.exceptions.RetryError", "urllib3.exceptions.DecodeError",
    "urllib3.exceptions.ResponseError", "httpx.DecodingError", "httpx2.DecodingError",
    "google.api_core.exceptions.RetryError",
})  # fmt: skip
LONGEST_MESSAGE = 500


def judge(error: BaseException) -> Verdict:
    """Clean: may be tried again. Ambiguous: nobody knows. Other: neither, so not without a word."""
    if isinstance(error, BaseExceptionGroup):
        return worst({judge(one) for one in error.exceptions})
    if isinstance(error, NotDone):
        return "clean"
    verdict = _of_its_own(error)
    return "ambiguous" if verdict != "ambiguous" and _is_one_of_several(error) else verdict


def _of_its_own(error: BaseException) -> Verdict:
    names = {kind.__name__ for kind in type(error).__mro__}
    if isinstance(error, CLEAN) or not CLEAN_NAMES.isdisjoint(names) or _while_connecting(error):
        return "clean"
    if isinstance(error, AMBIGUOUS) or not isinstance(error, Exception):
        return "ambiguous"
    answered = of_grpc(error) or _of_http(error)
    if answered is not None:
        return answered
    doubt = _leaves_a_doubt(error, names)
    inner = _inner(error, known=doubt)
    found = of_driver(error) or ("other" if inner is None else judge(inner))
    return "ambiguous" if doubt and found == "other" else found


def _of_http(error: BaseException) -> Verdict | None:
    status = status_of(error)
    return None if status is None else "clean" if is_refusal(status) else "ambiguous"


def _is_one_of_several(error: BaseException) -> bool:
    """Whether a request before it, of the same call, may have been carried out: it says nothing about that one."""
    if any(_may_be_done(ending) for ending in sent_before(error)):
        return True
    inner = _inner(error, known=_leaves_a_doubt(error, {kind.__name__ for kind in type(error).__mro__}))
    return inner is not None and _is_one_of_several(inner)


def _may_be_done(ending: Ending) -> bool:
    if isinstance(ending, Exception):
        return judge(ending) != "clean"
    return ending is None or not is_refusal(ending)


def _while_connecting(error: BaseException) -> bool:
    """Whether it came out of the socket's own making: nothing was sent on a connection that never was."""
    frame = error.__traceback__ if isinstance(error, OSError) else None
    while frame is not None:
        if frame.tb_frame.f_code is socket.create_connection.__code__:
            return True
        frame = frame.tb_next
    return False


def _leaves_a_doubt(error: BaseException, names: set[str]) -> bool:
    if isinstance(error, OSError) and error.errno in UNREACHABLE:
        return True
    return not (AMBIGUOUS_NAMES.isdisjoint(names) and AMBIGUOUS_CLASSES.isdisjoint(names_of(type(error))))


def _inner(error: BaseException, *, known: bool) -> Exception | None:
    """What it hands on: as `reason` (urllib, urllib3) or `orig` (SQLAlchemy); what is known to be a client's also as
    `original_error` (a proxy), as its first argument (requests), or as `error` among its words (botocore)."""
    told = [said_by(error, "reason"), said_by(error, "orig")]
    if known:
        words = said_by(error, "kwargs")
        told += [said_by(error, "original_error"), *error.args[:1]]
        told += [words.get("error")] if isinstance(words, dict) else []
    return next((one for one in told if isinstance(one, Exception) and one is not error), None)


def worst(verdicts: set[Verdict]) -> Verdict:
    """Of several errors at once: one that leaves a doubt leaves it for all of them."""
    if "ambiguous" in verdicts:
        return "ambiguous"
    return "clean" if verdicts == {"clean"} else "other"


def fault_of(error: BaseException, *, retryable: bool = False) -> Fault:
    message = " ".join(_text_of(error).split())[:LONGEST_MESSAGE]
    return Fault(type(error).__name__, message.replace("\0", "\N{SYMBOL FOR NULL}"), retryable)


def _text_of(error: BaseException) -> str:
    """Never fails: an error whose text cannot be written must not hide the error itself."""
    try:
        return str(error).encode(errors="replace").decode()
    except Exception as worse:  # noqa: BLE001 - its own __str__ is broken
        return f"(its text could not be had: {type(worse).__name__})"
