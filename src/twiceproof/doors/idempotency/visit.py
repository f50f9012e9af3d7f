"""A visit: a request that comes to a guarded route with a key, before its claim is asked for."""

from __future__ import annotations

from typing import Literal
from uuid import UUID

from msgspec import Struct

from .rule import Rule

__all__ = ["BY_HEADER", "BY_REPEATABILITY", "FORM", "LOOKED_AT", "Source", "Visit", "Who", "marks"]

Source = Literal["header", "repeatability", "form"]
Who = str | int | UUID | None  # a caller, by name or number; None: nobody knows
BY_HEADER: Source = "header"
BY_REPEATABILITY: Source = "repeatability"
FORM: Source = "form"

# The headers that a door looks at; the others are the app's business.
LOOKED_AT = frozenset(
    {
        "idempotency-key", "repeatability-request-id", "repeatability-first-sent", "content-type", "authorization",
        "accept",
    }
)  # fmt: skip

REPLAYED, FIRST = ("idempotent-replayed", "true"), ("idempotent-replayed", "false")
EXPOSED = ("access-control-expose-headers", "Idempotency-Key, Idempotent-Replayed")


class Visit(Struct, frozen=True, gc=False):
    rule: Rule
    method: str
    path: str
    query: str
    principal: str
    source: Source
    key: str  # "": still to be read from the form
    echo: str = ""  # the header as it was sent
    content_type: str = ""
    page: bool = False  # a person looks at the answer
    repeatability: bool = False


def marks(visit: Visit, *, replayed: bool) -> list[tuple[str, str]]:
    """What every answer to a guarded request says, also to scripts of another origin."""
    marked = [REPLAYED if replayed else FIRST, EXPOSED]
    if visit.echo:
        marked.append(("idempotency-key", visit.echo))
    if visit.repeatability:
        marked.append(("repeatability-result", "accepted"))
    return marked
