"""`Idempotency-Key` as a client sends it: a quoted string (RFC 8941) or bare. Both are one key, at every door."""

from __future__ import annotations

import re
from collections.abc import Iterable

from msgspec import Struct

from .reply import Reply, problem

__all__ = ["LONGEST", "Malformed", "malformed_key", "read_key"]

LONGEST = 255

# Visible ASCII. A bare key has no comma: two headers that a proxy has joined must not pass for one key.
BARE = re.compile(r"[!#-+\--:<-\[\]-~]+")
QUOTED = re.compile(r'"((?:[ !#-\[\]-~]|\\["\\])*)"')
ESCAPE = re.compile(r'\\(["\\])')


class Malformed(Struct, frozen=True):
    reason: str


def read_key(value: str) -> str | Malformed:
    """The key itself, without its quotes."""
    value = value.strip(" \t")
    if value.startswith('"'):
        found = QUOTED.fullmatch(value)
        if found is None:
            return Malformed('a quoted key ends with its quote and has \\ only before " and \\')
        return _checked(ESCAPE.sub(r"\1", found[1]))
    if value and BARE.fullmatch(value) is None:
        return Malformed('a bare key is visible ASCII without spaces and without " , ; \\')
    return _checked(value)


def _checked(key: str) -> str | Malformed:
    if not key.strip():
        return Malformed("it is empty")
    if key != key.strip():
        return Malformed("it begins or ends with a space")
    if len(key) > LONGEST:
        return Malformed(f"it has {len(key)} characters, the most is {LONGEST}")
    return key


def malformed_key(
    reason: str, *, what: str = "The Idempotency-Key", headers: Iterable[tuple[str, str]] = ()
) -> Reply:  # fmt: skip
    return problem(
        400, "idempotency-key-malformed", f"{what} cannot be read: {reason}.",
        next_move='Send one key of up to 255 visible characters, bare or in quotes: Idempotency-Key: "8e03978e".',
        headers=headers,
    )  # fmt: skip
