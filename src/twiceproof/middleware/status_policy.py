"""What a status means for the claim; was the handler reached."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any, Literal

import msgspec

from ..errors import NotDone
from .responses import Recording
from .routes import RouteRule

__all__ = [
    "MARK",
    "NEVER_KEPT",
    "ClaimAction",
    "flask_said_no",
    "handler_not_reached",
    "not_begun",
    "of_error",
    "of_status",
]


MARK = "twiceproof.idempotency"  # where a scope or an environ holds the turn

Carrier = MutableMapping[str, Any]  # an ASGI scope or a WSGI environ


def not_begun(carrier: Carrier) -> None:
    """Say that this request is refused before its work began: its answer is not kept, whatever its status."""
    turn = carrier.get(MARK)
    if turn is not None:
        turn.begun = False


def handler_not_reached(carrier: Carrier, recording: Recording) -> bool:
    if not 400 <= recording.status < 500:
        return False
    return _router_said_no(carrier) or _validation_said_no(recording)


def _router_said_no(scope: Carrier) -> bool:
    """Starlette and FastAPI name the endpoint that they found, Litestar its handler.

    Of an app that is mounted they name the app itself, until it has found something: apps and routers have routes.
    """
    if "app" not in scope or "route_handler" in scope:
        return False
    return "endpoint" not in scope or hasattr(scope["endpoint"], "routes")


def flask_said_no(status: int, environ: Carrier) -> bool:
    """Flask leaves its request there, with what its router found, until its answer has begun."""
    found = getattr(environ.get("werkzeug.request"), "routing_exception", None)
    return 400 <= status < 500 and found is not None


def _validation_said_no(recording: Recording) -> bool:
    """As FastAPI and Litestar write it. Who writes it otherwise says `not_begun`."""
    if recording.status not in (400, 422):
        return False
    try:
        said = msgspec.json.decode(recording.body)
    except msgspec.MsgspecError:
        return False
    detail = said.get("detail") if isinstance(said, dict) else None
    if isinstance(detail, str):
        return recording.status == 400 and detail.startswith("Validation failed for ")
    return isinstance(detail, list) and bool(detail) and all(_is_fault(item) for item in detail)


def _is_fault(item: Any) -> bool:
    return isinstance(item, dict) and {"loc", "msg", "type"} <= item.keys()


# keep: final, replayed · release: as if it had never come · retry: failed, a retry runs · park: a person is asked
ClaimAction = Literal["keep", "release", "retry", "park"]

# Who you are, how often, too early, not fast enough: these speak of the attempt, not of what was asked.
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
    """4xx: the app said no, and nothing was done."""
    if rule.keeps in ("2xx+4xx", "all"):
        return "keep"
    return "retry" if rule.keeps == "resume" else "release"


def of_error(error: BaseException, rule: RouteRule) -> ClaimAction:
    """An error that left the app. It may have come after the work was done."""
    if rule.reruns or _says_not_done(error):
        return "retry"
    return "keep" if rule.keeps == "all" and isinstance(error, Exception) else "park"


def _says_not_done(error: BaseException) -> bool:
    """Only in so many words. A refused connection says it of one call, and a handler makes several: it has charged the
    card, and the mail server is down."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(_says_not_done, error.exceptions))
    return isinstance(error, NotDone)
