"""What an exception says about the work: clean, ambiguous, other; the user's registry."""

from __future__ import annotations

import errno
import math
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC
from types import FrameType
from typing import Any, Literal, get_args

from ..errors import Misuse, NotDone
from .claim import Fault
from .client_errors import is_refusal, of_class, of_grpc, safe_getattr, status_of

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
# The server's last words before it hung up: a commit that it was at may have been made.
CUT_OFF_STATES = frozenset({"40003", "57P01", "57P02", "57P04", "57P05"})


def of_driver(error: BaseException) -> Literal["clean", "ambiguous"] | None:
    """psycopg, asyncpg, and what SQLAlchemy says about a connection of any driver; None: nothing is known."""
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


# How an earlier request ended: with an error, with a status, or nobody knows how.
Ending = Exception | int | None
Found = list[Ending]


def earlier_requests(error: BaseException) -> Found:
    """The requests that went out on the way to it, by the answer that it carries and by the calls that it came from."""
    answer = safe_getattr(error, "response")
    found = _of_aws(answer) if isinstance(answer, dict) else _answers(safe_getattr(answer, "history"))
    found += _answers(safe_getattr(error, "history"))  # aiohttp
    found += _tries(safe_getattr(safe_getattr(answer, "raw"), "retries"))  # requests, with an adapter that retries
    found += _of_azure(error)
    seen = [look(frame) if frame.f_locals else [None] for frame, look in _frames(error)]  # cleared: nobody knows
    if not seen and type(error).__name__ == "MaxRetryError":  # urllib3 retried, and where it says how is lost
        return [*found, None]
    return [*found, *(one for each in seen for one in each)]


def _frames(error: BaseException) -> Iterator[tuple[FrameType, Callable[[FrameType], Found]]]:
    trace = error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        look = LOOKS.get(frame.f_code.co_name)
        if look is not None and frame.f_globals.get("__name__") in look[0]:
            yield frame, look[1]
        trace = trace.tb_next


def _answers(history: Any) -> Found:
    """Anything may be called `history`: only answers count, which have a status."""
    return [status for one in _listed(history) if (status := _status_of(one)) is not None]


def _status_of(answer: Any) -> int | None:
    told = (safe_getattr(answer, name) for name in ("status_code", "status"))
    return next((status for status in told if isinstance(status, int)), None)


def _tries(retries: Any) -> Found:
    return [one.error or one.status for one in _listed(safe_getattr(retries, "history"))]


def _listed(history: Any) -> Sequence[Any]:
    return history if isinstance(history, list | tuple) else ()


def _of_aws(answer: dict[Any, Any]) -> Found:
    return [None] if (answer.get("ResponseMetadata") or {}).get("RetryAttempts") else []


def _of_azure(error: BaseException) -> Found:
    """Its pipeline tries again, and hands the last answer to the client's method, which raises.

    Raised anywhere else (`response.raise_for_status()`), the answer does not say what was tried before it.
    """
    if AZURE_REFUSAL not in {f"{kind.__module__}.{kind.__name__}" for kind in type(error).__mro__}:
        return []
    trace = error.__traceback__
    while trace is not None:
        if str(trace.tb_frame.f_globals.get("__name__")).startswith("azure."):
            context = safe_getattr(trace.tb_frame.f_locals.get("pipeline_response"), "context")
            if isinstance(context, dict):
                return _of_pipeline(context.get("history"))
        trace = trace.tb_next
    return [None]


def _of_pipeline(history: Any) -> Found:
    return [safe_getattr(one, "error") or _status_of(safe_getattr(one, "http_response")) for one in _listed(history)]


# -- the calls that follow a redirect or try again ---------------------------------------------------


def _in_urllib(frame: FrameType) -> Found:
    return [frame.f_locals.get("code")]


def _in_requests(frame: FrameType) -> Found:
    return _answers(frame.f_locals.get("hist")) or [None]


def _in_httpx(frame: FrameType) -> Found:
    return _answers(frame.f_locals.get("history"))


def _in_aiohttp(frame: FrameType) -> Found:
    at = frame.f_locals
    retries = getattr(at.get("self"), "_retry_connection", False) and at.get("method") in IDEMPOTENT
    tried_again = retries and at.get("retry_persistent_connection") is False
    return _answers(at.get("history")) or ([None] if tried_again else [])  # a redirect leaves a doubt by itself


def _in_urllib3(frame: FrameType) -> Found:
    return _tries(frame.f_locals.get("self"))


def _in_botocore(frame: FrameType) -> Found:
    return [None] if frame.f_locals.get("attempts", 2) > 1 else []


def _in_google(frame: FrameType) -> Found:
    """It notes each try that failed, the last one too."""
    return list(_listed(frame.f_locals.get("error_list"))[:-1])


def _in_azure(frame: FrameType) -> Found:
    settings = frame.f_locals.get("retry_settings")
    return _of_pipeline(settings.get("history") if isinstance(settings, dict) else None)


def _in_redis(frame: FrameType) -> Found:
    """It counts the tries that failed; the last one among them only when there are no more."""
    failures, most = frame.f_locals.get("failures", 1), getattr(frame.f_locals.get("self"), "_retries", -1)
    return [None] * (failures - 1 if 0 <= most < failures else failures)


AZURE_REFUSAL = "azure.core.exceptions.HttpResponseError"
IDEMPOTENT = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"})  # what aiohttp sends once more
# By their names: to import a client, only to know its functions, would cost each program that uses another one.
LOOKS: dict[str, tuple[frozenset[str], Callable[[FrameType], Found]]] = {
    "http_error_302": (frozenset({"urllib.request"}), _in_urllib),
    "resolve_redirects": (frozenset({"requests.sessions"}), _in_requests),
    "_send_handling_redirects": (frozenset({"httpx._client", "httpx2._client"}), _in_httpx),
    "_request": (frozenset({"aiohttp.client"}), _in_aiohttp),
    "increment": (frozenset({"urllib3.util.retry"}), _in_urllib3),
    "retry_target": (
        frozenset({"google.api_core.retry.retry_unary", "google.api_core.retry.retry_unary_async"}),
        _in_google,
    ),
    "call_with_retry": (frozenset({"redis.retry", "redis.asyncio.retry"}), _in_redis),
    "send": (
        frozenset({"azure.core.pipeline.policies._retry", "azure.core.pipeline.policies._retry_async"}),
        _in_azure,
    ),
    "_send_request": (frozenset({"botocore.endpoint"}), _in_botocore),
}


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


def classify(error: BaseException) -> Verdict:
    """Clean, final: nothing was done. Ambiguous: no answer came. Other: it does not tell whether it was done."""
    if isinstance(error, BaseExceptionGroup):
        return worst({classify(one) for one in error.exceptions})
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
    found = of_driver(error) or ("other" if inner is None else classify(inner))
    return "ambiguous" if doubt and found == "other" else found


def _of_http(error: BaseException) -> Verdict | None:
    status = status_of(error)
    return None if status is None else "clean" if is_refusal(status) else "ambiguous"


def _is_one_of_several(error: BaseException) -> bool:
    """Whether a request before it, of the same call, may have been carried out: it says nothing about that one."""
    if any(_may_be_done(ending) for ending in earlier_requests(error)):
        return True
    inner = _inner(error, known=_leaves_a_doubt(error) or of_class(type(error)) is not None)
    return inner is not None and _is_one_of_several(inner)


def _may_be_done(ending: Ending) -> bool:
    if isinstance(ending, Exception):
        return classify(ending) not in CLEAN_VERDICTS
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
    told = [safe_getattr(error, "reason"), safe_getattr(error, "orig")]
    if known:
        words = safe_getattr(error, "kwargs")
        told += [safe_getattr(error, "original_error"), *error.args[:1]]
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


NotDoneErrors = type[BaseException] | tuple[type[BaseException], ...]
Judge = Callable[[Any], Verdict | None]
LONGEST = 7 * 86_400.0  # a Retry-After beyond a week is a mistake of the other side


class ErrorRegistry:
    """The user's own words first, the latest first; then what is known of sockets, HTTP clients and `NotDone`."""

    def __init__(self) -> None:
        self._known: list[tuple[type[BaseException], Judge]] = []

    def add(self, kind: type[BaseException], verdict: Verdict | Judge) -> None:
        """`verdict` is one of the four words, or a function of the error that returns one, or None."""
        _refuse_no_error(kind)
        if not callable(verdict) and verdict not in get_args(Verdict):
            raise Misuse(f'{verdict!r} is not a verdict; say "clean", "final", "ambiguous" or "other".')
        word = verdict
        self._known.insert(0, (kind, word if callable(word) else lambda error: word))

    def judge(self, error: BaseException, not_done: tuple[type[BaseException], ...] = ()) -> Verdict:
        """`not_done`: what this one operation declares to mean that nothing was done."""
        if isinstance(error, not_done):
            return "clean"
        for kind, word in self._known:
            found = word(error) if isinstance(error, kind) else None
            if found is not None:
                return found
        if isinstance(error, BaseExceptionGroup):  # a task group's: the user's words are about what is in it
            return worst({self.judge(one, not_done) for one in error.exceptions})
        return classify(error)


def as_not_done(given: NotDoneErrors) -> tuple[type[BaseException], ...]:
    """What stands in `not_done=`, checked where it is declared. An interrupt may come at any moment."""
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
    """When the other side wants to be asked again, in seconds: an attribute of the error, or the HTTP header."""
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
