"""What an error says about the work: surely not done, perhaps done, or a fault of the program."""

from __future__ import annotations

import errno
import socket
from typing import Literal

from ..errors import NotDone
from .claim import Fault
from .client_errors import is_refusal, of_class, of_grpc, status_of
from .driver_errors import of_driver
from .said_by import said_by
from .sent import Ending, sent_before

__all__ = ["CLEAN_VERDICTS", "Verdict", "fault_of", "judge", "worst"]

# Nothing was done; nothing was done, and trying again cures nothing; no answer came; nothing is told of it.
Verdict = Literal["clean", "final", "ambiguous", "other"]
CLEAN_VERDICTS = ("clean", "final")

# The request never left, or the other side said no before doing anything.
CLEAN = (ConnectionRefusedError, socket.gaierror)
# The request may have arrived, and no answer came back.
AMBIGUOUS = (TimeoutError, ConnectionError)
# Said of a connection that could not be made, and, after minutes of silence, of one on which all was sent.
UNREACHABLE = frozenset({errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN})
LONGEST_MESSAGE = 500
WEIGHED: tuple[Verdict, ...] = ("ambiguous", "other", "final", "clean")


def judge(error: BaseException) -> Verdict:
    """Clean, final: nothing was done. Ambiguous: no answer came. Other: it does not tell whether it was done."""
    if isinstance(error, BaseExceptionGroup):
        return worst({judge(one) for one in error.exceptions})
    if isinstance(error, NotDone):
        return "final" if error.data.get("final") else "clean"
    verdict = _of_its_own(error)
    return "ambiguous" if verdict != "ambiguous" and _is_one_of_several(error) else verdict


def _of_its_own(error: BaseException) -> Verdict:
    known = of_class(type(error))
    if isinstance(error, CLEAN) or known == "clean" or _while_connecting(error):
        return "clean"
    if isinstance(error, AMBIGUOUS) or not isinstance(error, Exception):
        return "ambiguous"
    answered = of_grpc(error) or _of_http(error)
    if answered is not None:
        return answered
    doubt = _leaves_a_doubt(error)
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
    inner = _inner(error, known=_leaves_a_doubt(error) or of_class(type(error)) is not None)
    return inner is not None and _is_one_of_several(inner)


def _may_be_done(ending: Ending) -> bool:
    if isinstance(ending, Exception):
        return judge(ending) not in CLEAN_VERDICTS
    return ending is None or not is_refusal(ending)


def _while_connecting(error: BaseException) -> bool:
    """Whether it came out of the socket's own making: nothing was sent on a connection that never was."""
    frame = error.__traceback__ if isinstance(error, OSError) else None
    while frame is not None:
        if frame.tb_frame.f_code is socket.create_connection.__code__:
            return True
        frame = frame.tb_next
    return False


def _leaves_a_doubt(error: BaseException) -> bool:
    return (isinstance(error, OSError) and error.errno in UNREACHABLE) or of_class(type(error)) == "ambiguous"


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
    return next((verdict for verdict in WEIGHED if verdict in verdicts), "other")


def fault_of(error: BaseException, *, retryable: bool = False) -> Fault:
    message = " ".join(_text_of(error).split())[:LONGEST_MESSAGE]
    return Fault(type(error).__name__, message.replace("\0", "\N{SYMBOL FOR NULL}"), retryable)


def _text_of(error: BaseException) -> str:
    """Never fails: an error whose text cannot be written must not hide the error itself."""
    try:
        return str(error).encode(errors="replace").decode()
    except Exception as worse:  # noqa: BLE001 - its own __str__ is broken
        return f"(its text could not be had: {type(worse).__name__})"
