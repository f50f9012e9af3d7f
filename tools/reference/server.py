"""The server: its routes at a glance, what it takes at most, and what it counts."""

from __future__ import annotations

from twiceproof.server.auth import POLICY
from twiceproof.server.limits import ServerLimits
from twiceproof.server.monitoring import DOCUMENTED
from twiceproof.server.routes import ROUTES

from .described import described
from .table import code, table

__all__ = ["glance", "limits", "metrics"]


def glance(_: str) -> list[str]:
    rows = [(code(f"{one.method} {one.path}"), POLICY[one.method, one.path].value, one.summary) for one in ROUTES]
    return table(("route", "needs", "for"), rows)


def limits(_: str) -> list[str]:
    rows = [(code(field.name), _number(field.default), field.said) for field in described(ServerLimits)]
    return table(("limit", "default", "of"), rows)


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,g}"


def metrics(_: str) -> list[str]:
    return table(("metric", "what"), [(code(name), text) for name, text in DOCUMENTED.items()])
