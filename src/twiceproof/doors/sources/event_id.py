"""Makes an event's id of what its sender tells about it."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Any

from ...errors import Misuse
from ...keys import composite, validate_key
from ...keys.fingerprint import digest
from ...keys.key import is_blank
from ..source import Event, Poison, Reading

__all__ = ["made_up_id", "named", "readable", "text_at"]

LONGEST = 512  # bytes; a longer id is claimed by its hash


def named(*parts: Any) -> str | Poison:
    """One id of several parts, or Poison where one is missing: two events without an id would become one."""
    texts = [part if isinstance(part, str) else str(part) if type(part) is int else "" for part in parts]
    if any(is_blank(text) for text in texts):
        return Poison("it has no id by which a second delivery could be recognised")
    try:
        if sum(map(len, texts)) > LONGEST:
            return digest(texts)
        return validate_key(texts[0]) if len(texts) == 1 else composite(*texts)
    except Misuse as error:
        return Poison(f"its id cannot be used: {error}")


def readable(items: Sequence[Event | Poison]) -> Reading:
    """One that is spoilt does not harm its neighbours; where there are none, all of it is."""
    spoilt = next((item for item in items if isinstance(item, Poison)), None)
    return items if spoilt is None or any(isinstance(item, Event) for item in items) else spoilt


def text_at(payload: Any, *path: str) -> str:
    """The text there, or ""."""
    for name in path:
        payload = payload.get(name) if isinstance(payload, dict) else None
    return payload if isinstance(payload, str) else ""


def made_up_id(body: object, prefix: str = "") -> str:
    """An id for a sample: the same for the same contents, so that a sample sent twice is a duplicate."""
    text = body if isinstance(body, bytes) else digest(body).encode()
    return prefix + sha256(text).hexdigest()[:24]
