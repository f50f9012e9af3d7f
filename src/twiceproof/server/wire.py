"""The form of an answer: the headers that every one has, as ASGI messages and as bytes."""

from __future__ import annotations

from http import HTTPStatus

from ..doors.reply import Reply

__all__ = ["SECURITY", "headers_of", "raw"]

# Nothing we answer is a page of anybody else's, to be guessed about, framed, cached or told on.
SECURITY: tuple[tuple[str, str], ...] = (
    ("x-content-type-options", "nosniff"),
    ("cache-control", "no-store"),
    ("referrer-policy", "no-referrer"),
    ("x-frame-options", "DENY"),
    ("cross-origin-resource-policy", "same-origin"),
    ("content-security-policy", "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'"),
)
ENCODED = {name.encode(): value.encode() for name, value in SECURITY}


def headers_of(reply: Reply, root: str = "") -> list[tuple[bytes, bytes]]:
    """What a route says goes before what every answer says. Routes do not know where they are mounted (`root`)."""
    own = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in reply.headers]
    if root:
        own = [(name, root.encode("latin-1") + value if name == b"location" else value) for name, value in own]
    named = {name for name, _ in own}
    own += [pair for pair in ENCODED.items() if pair[0] not in named]
    own.append((b"content-length", b"%d" % len(reply.body)))
    return own


def raw(reply: Reply) -> bytes:
    """For a caller that never came to be a request. The connection ends with it."""
    head = b"HTTP/1.1 %d %s\r\n" % (reply.status, HTTPStatus(reply.status).phrase.encode())
    lines = b"".join(b"%s: %s\r\n" % pair for pair in [*headers_of(reply), (b"connection", b"close")])
    return head + lines + b"\r\n" + reply.body
