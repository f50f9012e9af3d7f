"""Replies independent of the transport: problem+json, JSON bodies, and the Idempotency-Key header.

Which reply a delivery gets is decided in `admit.py` (the outcome) and `source.py` (the sender's form of it).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from math import ceil
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from ..keys.canonical import duplicate_name

__all__ = [
    "JSON",
    "LONGEST",
    "PROBLEM",
    "Malformed",
    "Reply",
    "Unreadable",
    "json_reply",
    "malformed_key",
    "not_verified",
    "problem",
    "read_body",
    "read_json",
    "read_key",
    "retry_after",
    "too_large",
]


JSON = "application/json"
PROBLEM = "application/problem+json"

Headers = tuple[tuple[str, str], ...]


class Reply(Struct, frozen=True):
    """Status, headers and body. A reply with a body has a content-type header."""

    status: int
    headers: Headers = ()
    body: bytes = b""

    def header(self, name: str) -> str:
        return next((value for known, value in self.headers if known.lower() == name.lower()), "")


def json_reply(status: int, value: Any, headers: Iterable[tuple[str, str]] = ()) -> Reply:
    return Reply(status, (("content-type", JSON), *headers), msgspec.json.encode(value))


def problem(
    status: int,
    kind: str,
    detail: str,
    *,
    next_move: str,
    headers: Iterable[tuple[str, str]] = (),
    more: Mapping[str, Any] | None = None,
) -> Reply:
    """Build an RFC 9457 problem. `kind` is a stable word for programs; `next_move` tells people what to do."""
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
    """A Retry-After header in whole seconds, at least one: zero would make clients retry in a tight loop."""
    return "retry-after", str(max(1, ceil(seconds)))


def not_verified() -> Reply:
    """The same reply for an unknown webhook and a wrong signature, so that webhooks cannot be enumerated."""
    return problem(
        401,
        "not-verified",
        "There is no such webhook, or its signature is wrong.",
        next_move="Check the URL, and that the sender and this server use the same secret.",
    )


def too_large(most: int) -> Reply:
    detail = f"The delivery is larger than {most:,} bytes."
    return problem(413, "too-large", detail, next_move="Send a reference instead of the contents.")


T = TypeVar("T")


class Unreadable(Exception):
    """Raised for a request body that cannot be read; answered with `reply`."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply.status)
        self.reply = reply


def read_body(kind: type[T], body: bytes, content_type: str) -> T:
    """Decode the body as this type; an empty body is read as `{}`."""
    text = _text(body, content_type)
    try:
        value = msgspec.json.decode(text or "{}", type=kind)
    except msgspec.ValidationError as error:
        raise Unreadable(_refused(400, "wrong-body", f"The body is invalid: {error}.")) from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise Unreadable(_refused(400, "unreadable-body", f"The body is not JSON: {error}.")) from None
    _refuse_duplicate_names(text)
    return value


def read_json(body: bytes, content_type: str) -> msgspec.Raw:
    """Return any JSON as it was written; an empty body is null."""
    text = _text(body, content_type)
    try:
        msgspec.json.decode(text or "null")
    except (msgspec.DecodeError, RecursionError) as error:
        raise Unreadable(_refused(400, "unreadable-body", f"The body is not JSON: {error}.")) from None
    _refuse_duplicate_names(text)
    return msgspec.Raw(text or "null")


def _refuse_duplicate_names(text: str) -> None:
    twice = duplicate_name(text) if text else None
    if twice is not None:
        detail = f"The body has the name {twice[:80]!r} twice in one object."
        raise Unreadable(problem(400, "duplicate-name", detail, next_move="Send each name once."))


def _text(body: bytes, content_type: str) -> str:
    """Return the body's text if it is declared as JSON: a form on another site cannot send that type without a
    CORS preflight.
    """
    media = content_type.partition(";")[0].strip().lower()
    if body and media != "application/json" and not (media.startswith("application/") and media.endswith("+json")):
        shown = f"the type {media!r}" if media else "no type"
        reply = problem(
            415,
            "not-json",
            f"The body has {shown}; only JSON is accepted.",
            next_move="Send the header Content-Type: application/json.",
        )
        raise Unreadable(reply)
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise Unreadable(_refused(400, "unreadable-body", f"The body is not UTF-8: {error}.")) from None


def _refused(status: int, kind: str, detail: str) -> Reply:
    return problem(status, kind, detail, next_move="Compare it with docs/reference/http.md or /openapi.json.")


LONGEST = 255

# Visible ASCII. A bare key has no comma: two headers joined by a proxy must not be read as one key.
BARE = re.compile(r"[!#-+\--:<-\[\]-~]+")
QUOTED = re.compile(r'"((?:[ !#-\[\]-~]|\\["\\])*)"')
ESCAPE = re.compile(r'\\(["\\])')


class Malformed(Struct, frozen=True):
    reason: str


def read_key(value: str) -> str | Malformed:
    """Return the key without its quotes."""
    value = value.strip(" \t")
    if value.startswith('"'):
        found = QUOTED.fullmatch(value)
        if found is None:
            return Malformed('a quoted key must end with a quote and may have \\ only before " and \\')
        return _checked(ESCAPE.sub(r"\1", found[1]))
    if value and BARE.fullmatch(value) is None:
        return Malformed('a bare key must be visible ASCII without spaces and without " , ; \\')
    return _checked(value)


def _checked(key: str) -> str | Malformed:
    if not key.strip():
        return Malformed("it is empty")
    if key != key.strip():
        return Malformed("it begins or ends with a space")
    if len(key) > LONGEST:
        return Malformed(f"it has {len(key)} characters; the maximum is {LONGEST}")
    return key


def malformed_key(reason: str, *, what: str = "The Idempotency-Key", headers: Iterable[tuple[str, str]] = ()) -> Reply:
    return problem(
        400,
        "idempotency-key-malformed",
        f"{what} cannot be read: {reason}.",
        next_move='Send one key of up to 255 visible characters, bare or in quotes: Idempotency-Key: "8e03978e".',
        headers=headers,
    )
