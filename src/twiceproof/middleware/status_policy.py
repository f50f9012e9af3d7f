"""Decides from a response what happens to the claim, and whether the handler was reached at all.

Answers given before any handler ran (no such route, an invalid body) are not recorded. Only 4xx are considered:
repeating those has no effect outside.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any, Literal

import msgspec

from ..errors import NotDone
from .responses import Recording
from .routes import RouteRule

__all__ = [
    "NEVER_KEPT",
    "STATE_KEY",
    "ClaimAction",
    "flask_routing_failed",
    "handler_not_reached",
    "not_begun",
    "of_error",
    "of_status",
]


STATE_KEY = "twiceproof.idempotency"  # the key of the held request in an ASGI scope or a WSGI environ

Carrier = MutableMapping[str, Any]  # an ASGI scope or a WSGI environ


def not_begun(carrier: Carrier) -> None:
    """Report that this request is refused before its work began: its response is not stored, whatever its status."""
    held = carrier.get(STATE_KEY)
    if held is not None:
        held.begun = False


def handler_not_reached(carrier: Carrier, recording: Recording) -> bool:
    if not 400 <= recording.status < 500:
        return False
    return _routing_failed(carrier) or _validation_failed(recording)


def _routing_failed(scope: Carrier) -> bool:
    """Whether routing failed: Starlette and FastAPI set the endpoint that they found, Litestar its handler.

    For a mounted app they set the app itself until it has found an endpoint; apps and routers have `routes`.
    """
    if "app" not in scope or "route_handler" in scope:
        return False
    return "endpoint" not in scope or hasattr(scope["endpoint"], "routes")


def flask_routing_failed(status: int, environ: Carrier) -> bool:
    """Whether Flask's routing failed. Flask keeps its request in the environ until its response begins."""
    found = getattr(environ.get("werkzeug.request"), "routing_exception", None)
    return 400 <= status < 500 and found is not None


def _validation_failed(recording: Recording) -> bool:
    """Recognise validation errors of FastAPI and Litestar. Other apps call `not_begun`."""
    if recording.status not in (400, 422):
        return False
    try:
        document = msgspec.json.decode(recording.body)
    except msgspec.MsgspecError:
        return False
    detail = document.get("detail") if isinstance(document, dict) else None
    if isinstance(detail, str):
        return recording.status == 400 and detail.startswith("Validation failed for ")
    return isinstance(detail, list) and bool(detail) and all(_is_fault(item) for item in detail)


def _is_fault(item: Any) -> bool:
    return isinstance(item, dict) and {"loc", "msg", "type"} <= item.keys()


# keep: final, replayed · release: as if it was never received · retry: failed, a retry runs · park: goes to review
ClaimAction = Literal["keep", "release", "retry", "park"]

# Authentication, rate limits, too early, too slow: about this attempt, not about the request itself.
NEVER_KEPT = frozenset({401, 403, 407, 408, 425, 429})


def of_status(status: int, rule: RouteRule) -> ClaimAction:
    if status in NEVER_KEPT:
        return "release"
    if status < 400:
        return "keep"
    if status < 500:
        return _of_refusal(rule)
    if rule.keeps == "all":
        return "keep"
    return "retry" if rule.reruns or status in rule.clean else "park"


def _of_refusal(rule: RouteRule) -> ClaimAction:
    """4xx: the app refused, and nothing was done."""
    if rule.keeps in ("2xx+4xx", "all"):
        return "keep"
    return "retry" if rule.keeps == "resume" else "release"


def of_error(error: BaseException, rule: RouteRule) -> ClaimAction:
    """The action for an error raised by the app. It may have been raised after the work was done."""
    if rule.reruns or _says_not_done(error):
        return "retry"
    return "keep" if rule.keeps == "all" and isinstance(error, Exception) else "park"


def _says_not_done(error: BaseException) -> bool:
    """Only `NotDone` counts. A refused connection is about one call, and a handler makes several: it may have charged
    the card before the mail server was down."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(_says_not_done, error.exceptions))
    return isinstance(error, NotDone)
