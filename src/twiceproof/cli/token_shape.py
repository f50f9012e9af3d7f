"""A token as JSON: what is kept of it, never the token."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from msgspec import structs

from ..server.tokens import Token

__all__ = ["shown_time", "token_shape"]


def token_shape(token: Token) -> dict[str, Any]:
    return structs.asdict(token)


def shown_time(at: float | None) -> str:
    return "never" if at is None else datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M")
