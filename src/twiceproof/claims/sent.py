"""What an HTTP client had sent before its error came: it follows redirects and tries again by itself, and the error
tells of the last request only. A charge answered with a redirect is made, though the page behind it be a 404."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any

from .said_by import said_by

__all__ = ["Ending", "sent_before"]

# How an earlier request ended: with an error, with a status, or nobody knows how.
Ending = Exception | int | None
Found = list[Ending]


def sent_before(error: BaseException) -> Found:
    """The requests that went out on the way to it, by the answer that it carries and by the calls that it came from."""
    answer = said_by(error, "response")
    found = _of_aws(answer) if isinstance(answer, dict) else _answers(said_by(answer, "history"))
    found += _answers(said_by(error, "history"))  # aiohttp
    found += _tries(said_by(said_by(answer, "raw"), "retries"))  # requests, with an adapter that retries
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
    told = (said_by(answer, name) for name in ("status_code", "status"))
    return next((status for status in told if isinstance(status, int)), None)


def _tries(retries: Any) -> Found:
    return [one.error or one.status for one in _listed(said_by(retries, "history"))]


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
            context = said_by(trace.tb_frame.f_locals.get("pipeline_response"), "context")
            if isinstance(context, dict):
                return _of_pipeline(context.get("history"))
        trace = trace.tb_next
    return [None]


def _of_pipeline(history: Any) -> Found:
    return [said_by(one, "error") or _status_of(said_by(one, "http_response")) for one in _listed(history)]


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
