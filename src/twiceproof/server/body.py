"""Bodies under limits."""

from __future__ import annotations

import re
import zlib
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from ..inbound.reply import Reply, problem, retry_after
from .request import RequestRefused

__all__ = ["SMALL", "BodyBudget", "Gone", "Reservation", "read_body", "too_deep", "unpacked"]


SMALL = 64 * 1024  # a body up to this size is always let in: who sends large ones slowly must not keep it out


class BodyBudget:
    def __init__(self, most: int) -> None:
        self.most = most
        self.taken = 0


class Reservation:
    """What one request takes of it."""

    __slots__ = ("_room", "_size", "_taken")

    def __init__(self, room: BodyBudget) -> None:
        self._room = room
        self._size = 0
        self._taken = 0

    def grow(self, size: int) -> None:
        """By so many bytes more, before they are kept."""
        self._size += size
        if self._size <= SMALL:
            return
        more = self._size - self._taken
        if self._room.taken + more > self._room.most:
            raise RequestRefused(
                problem(
                    503,
                    "busy",
                    "This server holds as many bytes as it has room for.",
                    next_move="Send the same request again; it is safe.",
                    headers=[retry_after(1)],
                )
            )
        self._room.taken += more
        self._taken = self._size

    def end(self) -> None:
        self._room.taken -= self._taken
        self._taken = 0


Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

WINDOWS = {b"gzip": 16 + zlib.MAX_WBITS, b"x-gzip": 16 + zlib.MAX_WBITS, b"deflate": zlib.MAX_WBITS}
# One without an end goes to the body's end: if it did not match, each quote in it would be tried again, for hours.
STRINGS = re.compile(rb'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)', re.DOTALL)
BRACKETS = b"[]{}"
NOT_BRACKETS = bytes(set(range(256)) - set(BRACKETS))


class Gone(Exception):
    """The caller hung up. Nobody is there to be answered."""


async def read_body(
    headers: Mapping[bytes, bytes], receive: Receive, largest: int, depth: int | None, share: Reservation
) -> bytes:
    """Without `depth`, brackets are not counted: in a picture they mean nothing."""
    declared = headers.get(b"content-length")
    if declared is not None and declared.isdigit() and int(declared) > largest:
        raise RequestRefused(_too_large(largest))
    body = await _received(receive, largest, share)
    encoding = headers.get(b"content-encoding")
    if encoding is not None:
        body = unpacked(body, encoding.strip().lower(), largest)
        share.grow(len(body))
    if depth is not None and too_deep(body, depth):
        raise RequestRefused(_too_deep(depth))
    return body


async def _received(receive: Receive, largest: int, share: Reservation) -> bytes:
    """What a caller declared is not believed: it is counted."""
    message = await receive()
    if message["type"] == "http.disconnect":
        raise Gone
    body: bytes = message.get("body", b"")
    if not message.get("more_body", False):  # nearly always
        share.grow(len(body))
        return _within(body, largest)
    parts, size = [body], len(body)
    share.grow(size)
    while message.get("more_body", False):
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Gone
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > largest:
            raise RequestRefused(_too_large(largest))
        share.grow(len(parts[-1]))
    return b"".join(parts)


def _within(body: bytes, largest: int) -> bytes:
    if len(body) > largest:
        raise RequestRefused(_too_large(largest))
    return body


def unpacked(body: bytes, encoding: bytes, largest: int) -> bytes:
    """Never more than `largest` and a byte is unpacked: a bomb does not get to go off."""
    if encoding in (b"", b"identity"):
        return body
    if encoding not in WINDOWS:
        raise RequestRefused(_unknown_encoding())
    unpacking = zlib.decompressobj(WINDOWS[encoding])
    try:
        plain = unpacking.decompress(body, largest + 1)
    except zlib.error:
        raise RequestRefused(_not_packed()) from None
    if len(plain) > largest:
        raise RequestRefused(_too_large(largest))
    if not unpacking.eof or unpacking.unused_data:
        raise RequestRefused(_not_packed())
    return plain


def too_deep(body: bytes, most: int) -> bool:
    """Counted before anything parses it. Few bodies have as many brackets in all as may be inside each other."""
    if body.count(b"[") + body.count(b"{") <= most:
        return False
    level = 0
    for letter in STRINGS.sub(b"", body).translate(None, NOT_BRACKETS):
        if letter in b"[{":
            level += 1
            if level > most:
                return True
        else:
            level -= 1
    return False


def _too_large(largest: int) -> Reply:
    return problem(
        413,
        "too-large",
        f"A body may have {largest:,} bytes here, unpacked.",
        next_move="Send less, or a reference to where the rest can be had.",
    )


def _too_deep(depth: int) -> Reply:
    return problem(
        400, "too-deep", f"The body has more than {depth} brackets inside each other.", next_move="Send it flatter."
    )


def _unknown_encoding() -> Reply:
    return problem(
        415,
        "unknown-encoding",
        "The body is packed in a way that is not known here.",
        next_move="Send it as it is, or with Content-Encoding: gzip or deflate.",
        headers=[("accept-encoding", "gzip, deflate")],
    )


def _not_packed() -> Reply:
    return problem(
        400,
        "not-packed",
        "The body is not what its Content-Encoding says.",
        next_move="Send one whole gzip or zlib stream, or leave Content-Encoding out.",
    )
