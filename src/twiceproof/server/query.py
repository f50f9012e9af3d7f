"""What a route takes of a query: the fields of its `query`, which /openapi.json tells. Nothing else is let pass."""

from __future__ import annotations

from msgspec.structs import fields

from ..doors.reply import problem
from .call import Call, Refused
from .route import Route

__all__ = ["parameters_of", "require_known"]


def parameters_of(route: Route) -> list[str]:
    return [] if route.query is None else [field.encode_name for field in fields(route.query)]


def require_known(call: Call, route: Route) -> None:
    """A slip (`?alway200=true`, `?stat=failed`) would be answered as if nothing had been asked for."""
    if route.tolerant or not call.raw_query:
        return
    known = parameters_of(route)
    strange = next((name for name in call.query if name not in known), None)
    if strange is None:
        return
    move = f"It takes: {', '.join(known)}." if known else "Leave the query out: it takes none."
    raise Refused(problem(400, "bad-query", f"There is no parameter {strange!r:.80} here.", next_move=move))
