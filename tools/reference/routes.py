"""The routes of the server by what they are about: who may call each, what it takes, and what it answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from twiceproof.server.auth import POLICY
from twiceproof.server.routes import ROUTES
from twiceproof.server.routing import ApiRoute
from twiceproof.server.services.claim_messages import Claimed, ClaimEnded, ClaimView, PriorClaim, Renewed
from twiceproof.server.tokens import Scope

from .table import code, table

__all__ = ["routes"]

# Where a body is whatever its flow, its run or its sender makes of it.
TAKES = {
    "start_run": "the flow's input; the header `Idempotency-Key`",
    "run_draft": "the flow's input",
    "call_back": "any JSON, up to 256 KiB; nothing is null",
}
# With `always200` these have one shape for every outcome; without, each has its own.
PLAIN: dict[tuple[str, int], Any] = {
    ("claim", 201): Claimed,
    ("claim", 200): PriorClaim,
    ("look_at_claim", 200): ClaimView,
    ("complete_claim", 200): ClaimEnded,
    ("fail_claim", 200): ClaimEnded,
    ("renew_claim", 200): Renewed,
}


def routes(tag: str) -> list[str]:
    found = [route for route in ROUTES if route.tag == tag]
    return table(("route", "scope", "takes", "answers"), [_row(route) for route in found])


def _row(route: ApiRoute) -> tuple[str, ...]:
    scope = POLICY[route.method, route.path]
    needs = scope.value if scope in (Scope.OPEN, Scope.PROVEN) else code(scope.value)
    return code(f"{route.method} {route.path}"), needs, "; ".join(_taken(route)), " · ".join(_answers(route))


def _taken(route: ApiRoute) -> Iterator[str]:
    if route.name in TAKES:
        yield TAKES[route.name]
    if route.body is not None:
        yield " ".join(code(name) for name in _fields(route.body))
    if route.query is not None:
        yield " ".join(code(f"?{name}=") for name in _fields(route.query))
    if route.ignores_unknown_query:
        yield "any query"


def _answers(route: ApiRoute) -> Iterator[str]:
    """Statuses in order, with the fields of each; what has none is a problem."""
    shapes: dict[str, list[str]] = {}
    for status, answer in sorted(route.answers.items()):
        fields = " ".join(code(name) for name in _fields(PLAIN.get((route.name, status), answer.type)))
        shapes.setdefault(fields or str(status), []).append(str(status))
    for fields, statuses in shapes.items():
        yield " or ".join(statuses) + (f" {fields}" if fields.startswith("`") else "")


def _fields(kind: Any) -> list[str]:
    is_struct = isinstance(kind, type) and issubclass(kind, msgspec.Struct)
    return [field.encode_name for field in msgspec.structs.fields(kind)] if is_struct else []
