"""Classifies exceptions by what they say about the work: clean, final, ambiguous or other; user declarations."""

from __future__ import annotations

import errno
import math
import socket
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC
from traceback import walk_tb
from typing import Any, Literal, get_args

from ..errors import Misuse, NotDone, OutcomeUnknown
from .claim import Fault
from .client_errors import is_refusal, may_have_retried, of_class, of_grpc, safe_getattr, says_key_was_used, status_of

__all__ = [
    "CLEAN_VERDICTS",
    "Ending",
    "ErrorRegistry",
    "Judge",
    "NotDoneErrors",
    "Verdict",
    "as_not_done",
    "classify",
    "earlier_requests",
    "fault_of",
    "of_driver",
    "retry_after",
    "worst",
]


# Exactly these: what descends from them carries the server's answer, or is a mistake in how the driver was called.
UNANSWERED = frozenset(
    {
        "psycopg.OperationalError",
        "psycopg.InterfaceError",
        "psycopg2.OperationalError",
        "psycopg2.InterfaceError",
        "asyncpg.exceptions._base.InterfaceError",
    }
)
NEVER_CONNECTED = frozenset({"psycopg.errors.ConnectionTimeout", "sqlalchemy.exc.TimeoutError"})
TURNED_AWAY_STATES = frozenset({"08001", "08004", "53300", "57P03"})
# The server closed the connection: a commit under way may have been made.
CUT_OFF_STATES = frozenset({"40003", "57P01", "57P02", "57P04", "57P05"})


def of_driver(error: BaseException) -> Literal["clean", "ambiguous"] | None:
    """Classify an error of psycopg, asyncpg, or SQLAlchemy about any driver; None: it is not known."""
    name = f"{type(error).__module__}.{type(error).__qualname__}"
    if name in NEVER_CONNECTED or safe_getattr(error, "pgconn") is not None:  # psycopg: only while it connects
        return "clean"
    if safe_getattr(error, "connection_invalidated") is True:
        return "ambiguous"
    state = safe_getattr(error, "sqlstate") or safe_getattr(error, "pgcode")
    if isinstance(state, str):
        return _of_state(state)
    return "ambiguous" if name in UNANSWERED else None


def _of_state(state: str) -> Literal["clean", "ambiguous"] | None:
    if state in TURNED_AWAY_STATES:
        return "clean"
    return "ambiguous" if state in CUT_OFF_STATES or state.startswith("08") else None


# How an earlier request ended: with an error, with a status, or (None) in an unknown way.
Ending = Exception | int | None


def earlier_requests(error: BaseException) -> list[Ending]:
    """Return how the requests ended that the client sent before the one this error is about.

    Only what is public: attributes of the error and of its answer (redirects that were followed, retries of urllib3 and
    botocore), and which public functions it was raised in. Other retries are not seen here; see `may_have_retried`.
    """
    answer = safe_getattr(error, "response")
    if isinstance(answer, Mapping):  # botocore's, parsed already
        return [None] if _retry_attempts(answer) else []
    found = _statuses(safe_getattr(answer, "history")) + _statuses(safe_getattr(error, "history"))  # aiohttp: its own
    retries = safe_getattr(safe_getattr(answer, "raw"), "retries")  # requests, with an adapter that retries
    found += [one.error or one.status for one in _listed(safe_getattr(retries, "history"))]
    return found or ([None] if _raised_in_a_repetition(error) else [])


# Public functions of clients that send a further request, and how often each is in a traceback when it has done so.
# By their names: to import a client, only to know its functions, would cost each program that uses another one.
REPEATING = {
    ("urllib.request", "http_error_302"): 1,  # a redirect
    ("requests.sessions", "resolve_redirects"): 1,
    ("urllib3.poolmanager", "urlopen"): 2,  # calls itself to follow a redirect,
    ("urllib3.connectionpool", "urlopen"): 2,  # or to try again
    ("google.api_core.retry.retry_unary", "retry_target"): 1,  # tries again, if need be
    ("google.api_core.retry.retry_unary_async", "retry_target"): 1,
}


def _raised_in_a_repetition(error: BaseException) -> bool:
    frames = {id(frame): frame for frame, _ in walk_tb(error.__traceback__)}  # one is there twice if it raised again
    seen = Counter((frame.f_globals.get("__name__"), frame.f_code.co_name) for frame in frames.values())
    if type(error).__name__ == "MaxRetryError" and not seen["urllib3.connectionpool", "urlopen"]:
        return True  # urllib3 retried, and the traceback that shows how often is lost
    return any(seen[function] >= often for function, often in REPEATING.items())


def _statuses(history: Any) -> list[Ending]:
    """Anything may be called `history`: only answers count, which have a status."""
    found: list[Ending] = []
    for answer in _listed(history):
        told = (safe_getattr(answer, name) for name in ("status_code", "status"))
        found += [status for status in told if isinstance(status, int)][:1]
    return found


def _listed(history: Any) -> Sequence[Any]:
    return history if isinstance(history, list | tuple) else ()


def _retry_attempts(answer: Mapping[Any, Any]) -> Any:
    metadata = answer.get("ResponseMetadata")
    return metadata.get("RetryAttempts") if isinstance(metadata, Mapping) else None


# Nothing was done; the same, and a retry is useless; no answer came; it says nothing.
Verdict = Literal["clean", "final", "ambiguous", "other"]
CLEAN_VERDICTS = ("clean", "final")

# The request never left, or the other side said no before doing anything.
CLEAN = (ConnectionRefusedError, socket.gaierror)
# The request may have arrived, and no answer came back.
AMBIGUOUS = (TimeoutError, ConnectionError)
# Raised when a connection cannot be made, and also, after minutes, on one on which all was sent.
UNREACHABLE = frozenset({errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN})
LONGEST_MESSAGE = 500
WEIGHED: tuple[Verdict, ...] = ("ambiguous", "other", "final", "clean")


def classify(error: BaseException, *, retries_itself: bool | None = None) -> Verdict:
    """Return what an error says about the work.

    "clean" and "final": nothing was done. "ambiguous": no answer came. "other": it does not tell. `retries_itself` is
    whether the client sends a request again by itself; None: as it is known to do by default.
    """
    if isinstance(error, BaseExceptionGroup):
        return worst({classify(one, retries_itself=retries_itself) for one in error.exceptions})
    if isinstance(error, NotDone):
        return "final" if error.data.get("final") else "clean"
    if isinstance(error, OutcomeUnknown):
        return "ambiguous"
    verdict = _of_its_own(error)
    if verdict == "ambiguous":
        return verdict
    retried = may_have_retried(error) if retries_itself is None else retries_itself
    return "ambiguous" if retried or _is_one_of_several(error) else verdict


def _of_its_own(error: BaseException) -> Verdict:
    known = of_class(type(error))
    if isinstance(error, CLEAN) or known == "clean" or _while_connecting(error):
        return "clean"
    if isinstance(error, AMBIGUOUS) or not isinstance(error, Exception) or says_key_was_used(error):
        return "ambiguous"
    answered = of_grpc(error) or _of_http(error)
    if answered is not None:
        return answered
    doubt = _leaves_a_doubt(error)
    inner = _inner(error, known=doubt)
    found = of_driver(error) or ("other" if inner is None else classify(inner, retries_itself=False))
    return "ambiguous" if doubt and found == "other" else found


def _of_http(error: BaseException) -> Verdict | None:
    status = status_of(error)
    return None if status is None else "clean" if is_refusal(status) else "ambiguous"


def _is_one_of_several(error: BaseException) -> bool:
    """Return whether an earlier request of the same call may have been carried out."""
    if any(_may_be_done(ending) for ending in earlier_requests(error)):
        return True
    inner = _inner(error, known=_leaves_a_doubt(error) or of_class(type(error)) is not None)
    return inner is not None and _is_one_of_several(inner)


def _may_be_done(ending: Ending) -> bool:
    if isinstance(ending, Exception):
        return classify(ending) not in CLEAN_VERDICTS
    return ending is None or not is_refusal(ending)


def _while_connecting(error: BaseException) -> bool:
    """Return whether it was raised while the socket connected: nothing was sent then."""
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
    told = [safe_getattr(error, "reason"), safe_getattr(error, "orig")]
    if known:
        words = safe_getattr(error, "kwargs")
        told += [safe_getattr(error, "original_error"), *error.args[:1]]
        told += [words.get("error")] if isinstance(words, dict) else []
    return next((one for one in told if isinstance(one, Exception) and one is not error), None)


def worst(verdicts: set[Verdict]) -> Verdict:
    """Return the verdict on several errors at once: one doubt is a doubt about all."""
    return next((verdict for verdict in WEIGHED if verdict in verdicts), "other")


def fault_of(error: BaseException, *, retryable: bool = False) -> Fault:
    message = " ".join(_text_of(error).split())[:LONGEST_MESSAGE]
    return Fault(type(error).__name__, message.replace("\0", "\N{SYMBOL FOR NULL}"), retryable)


def _text_of(error: BaseException) -> str:
    """Return an error's text. Never fails: a broken `__str__` must not hide the error itself."""
    try:
        return str(error).encode(errors="replace").decode()
    except Exception as worse:  # noqa: BLE001 - its own __str__ is broken
        return f"(its text could not be had: {type(worse).__name__})"


NotDoneErrors = type[BaseException] | tuple[type[BaseException], ...]
Judge = Callable[[Any], Verdict | None]
LONGEST = 7 * 86_400.0  # a Retry-After beyond a week is a mistake of the other side


class ErrorRegistry:
    """What a program has declared about errors, the latest first; then what is known of well-known clients."""

    def __init__(self) -> None:
        self._known: list[tuple[type[BaseException], Judge]] = []
        self._retrying: list[tuple[type[BaseException], bool]] = []

    def add(self, kind: type[BaseException], verdict: Verdict | Judge) -> None:
        """Declare what errors of a class mean: a verdict, or a function of the error that returns one, or None."""
        _refuse_no_error(kind)
        if not callable(verdict) and verdict not in get_args(Verdict):
            raise Misuse(f'{verdict!r} is not a verdict; say "clean", "final", "ambiguous" or "other".')
        word = verdict
        self._known.insert(0, (kind, word if callable(word) else lambda error: word))

    def add_retrying(self, kind: type[BaseException], retries_itself: bool) -> None:
        """Declare whether the client that raises errors of a class sends requests again by itself."""
        _refuse_no_error(kind)
        self._retrying.insert(0, (kind, bool(retries_itself)))

    def judge(self, error: BaseException, not_done: tuple[type[BaseException], ...] = ()) -> Verdict:
        """Return the verdict on an error. `not_done`: errors by which one operation says that nothing was done."""
        if isinstance(error, not_done):
            return "clean"
        for kind, word in self._known:
            found = word(error) if isinstance(error, kind) else None
            if found is not None:
                return found
        if isinstance(error, BaseExceptionGroup):  # a task group's: what is declared is about the errors in it
            return worst({self.judge(one, not_done) for one in error.exceptions})
        retrying = (retries for kind, retries in self._retrying if isinstance(error, kind))
        return classify(error, retries_itself=next(retrying, None))


def as_not_done(given: NotDoneErrors) -> tuple[type[BaseException], ...]:
    """Return the classes in `not_done=`. Interrupts are refused: they may come after the work was done."""
    kinds = given if isinstance(given, tuple) else (given,)
    for kind in kinds:
        _refuse_no_error(kind)
        if not issubclass(kind, Exception):
            raise Misuse(
                f"not_done={kind.__name__}: it may come after the work was done; name what your client raises."
            )
    return kinds


def _refuse_no_error(kind: object) -> None:
    if not (isinstance(kind, type) and issubclass(kind, BaseException)):
        raise Misuse(f"{kind!r} is not an exception class; name the class that your client raises.")


def retry_after(error: BaseException, now: float) -> float | None:
    """Return the pause that the other side asks for, in seconds: an attribute of the error, or Retry-After."""
    value = safe_getattr(error, "retry_after")
    if value is None:
        value = _header(safe_getattr(error, "response")) or _header(error)
    return None if value is None else _seconds(value, now)


def _header(answer: object) -> object:
    headers = safe_getattr(answer, "headers")
    if headers is None or not (isinstance(headers, Mapping) or hasattr(headers, "get")):
        return None
    found: object = headers.get("Retry-After") or headers.get("retry-after")
    return found


def _seconds(value: object, now: float) -> float | None:
    try:
        found = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        found = _until(str(value), now)
    return min(max(found, 0.0), LONGEST) if math.isfinite(found) else None


def _until(date: str, now: float) -> float:
    from email.utils import parsedate_to_datetime  # costs milliseconds, and is seldom needed

    try:
        when = parsedate_to_datetime(date)
    except (TypeError, ValueError):
        return math.nan
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() - now
