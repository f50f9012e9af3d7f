"""Answers that were given before any handler ran: no such address, a body that is not valid.

They are not kept. Only 4xx are looked at: of those it does not matter for the outside world whether they run again.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

import msgspec

from .recording import Recording

__all__ = ["MARK", "flask_said_no", "not_begun", "was_before"]

MARK = "twiceproof.idempotency"  # where a scope or an environ holds the turn

Carrier = MutableMapping[str, Any]  # an ASGI scope or a WSGI environ


def not_begun(carrier: Carrier) -> None:
    """Say that this request is refused before its work began: its answer is not kept, whatever its status."""
    turn = carrier.get(MARK)
    if turn is not None:
        turn.begun = False


def was_before(carrier: Carrier, recording: Recording) -> bool:
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
