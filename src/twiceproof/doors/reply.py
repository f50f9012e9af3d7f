"""The reply: what a door answers, before any server gives it a form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import ceil
from typing import Any

import msgspec
from msgspec import Struct

__all__ = ["JSON", "PROBLEM", "Reply", "json_reply", "problem", "retry_after"]

JSON = "application/json"
PROBLEM = "application/problem+json"

Headers = tuple[tuple[str, str], ...]


class Reply(Struct, frozen=True):
    """Status, headers and body. Where there is a body, its type is among the headers."""

    status: int
    headers: Headers = ()
    body: bytes = b""

    def header(self, name: str) -> str:
        return next((value for known, value in self.headers if known.lower() == name.lower()), "")


def json_reply(status: int, value: Any, headers: Iterable[tuple[str, str]] = ()) -> Reply:
    return Reply(status, (("content-type", JSON), *headers), msgspec.json.encode(value))


def problem(
    status: int, kind: str, detail: str, *, next_move: str, headers: Iterable[tuple[str, str]] = (),
    more: Mapping[str, Any] | None = None,
) -> Reply:  # fmt: skip
    """An error as RFC 9457 writes it. `kind` is a stable word for programs; `next_move` is for people."""
    shape = {
        "type": f"urn:twiceproof:{kind}",
        "title": kind.replace("-", " "),
        "status": status,
        "detail": detail,
        "next": next_move,
        **(more or {}),
    }
    return Reply(status, (("content-type", PROBLEM), *headers), msgspec.json.encode(shape))


def retry_after(seconds: float) -> tuple[str, str]:
    """Whole seconds, at least one: a client told to come back at once would knock without end."""
    return "retry-after", str(max(1, ceil(seconds)))
