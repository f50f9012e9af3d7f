"""Request limits: configured sizes and rates, the memory budget for bodies, and reading a body within them."""

from __future__ import annotations

import re
import zlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Annotated, Any

from msgspec import Meta, Struct

from ..inbound.reply import Reply, problem, retry_after
from .request import RequestRefused

__all__ = [
    "SMALL",
    "BodyBudget",
    "Buckets",
    "ClientDisconnected",
    "Reservation",
    "ServerLimits",
    "decompress",
    "read_body",
    "too_deep",
]


def _of(text: str) -> Meta:
    return Meta(description=text)


class ServerLimits(Struct, frozen=True):
    """Times in seconds, sizes in bytes, rates per second. 0 for a rate is no limit."""

    connections: Annotated[int, _of("concurrent connections")] = 2_000
    requests: Annotated[int, _of("concurrent requests, counted once they are read")] = 512
    bodies: Annotated[int, _of("total bytes of bodies over 64 KiB that are being read or processed")] = 256 * 1024**2
    head: Annotated[int, _of("bytes of the request line and all headers")] = 32 * 1024
    headers: Annotated[int, _of("headers")] = 100
    deadline: Annotated[float, _of("seconds within which headers and body must be received")] = 10.0
    idle: Annotated[float, _of("seconds between two requests on one connection")] = 30.0
    depth: Annotated[int, _of("nesting levels in JSON; a webhook's source has its own limit")] = 64
    per_token: Annotated[float, _of("requests per second of one token")] = 1_000.0
    # Loopback clients are not limited.
    per_source: Annotated[float, _of("requests per second of one address without a valid token")] = 1_000.0


MOST = 10_000  # callers remembered; the least recent is forgotten first
BURST = 2.0  # seconds of the rate that may come at once


class Buckets:
    """Token buckets for rate limits, one per caller."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._full = max(1.0, rate * BURST)
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()  # the remaining level and its time

    def is_empty(self, caller: str, now: float) -> bool:
        """Whether a request would be refused; nothing is taken."""
        left, at = self._levels.get(caller, (self._full, now))
        return bool(self._rate) and left + (now - at) * self._rate < 1.0

    def take(self, caller: str, now: float) -> float:
        """Return 0 to allow the request, or the seconds to wait."""
        if not self._rate:
            return 0.0
        left, at = self._levels.pop(caller, (self._full, now))
        left = min(self._full, left + (now - at) * self._rate)
        allowed = left >= 1.0
        self._levels[caller] = (left - 1.0 if allowed else left, now)
        if len(self._levels) > MOST:
            self._levels.popitem(last=False)
        return 0.0 if allowed else (1.0 - left) / self._rate


SMALL = 64 * 1024  # smaller bodies are always accepted, so that slow senders of large ones cannot block them


class BodyBudget:
    """The memory for large request bodies, shared by all requests."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.taken = 0


class Reservation:
    """The part of the budget that one request uses."""

    __slots__ = ("_budget", "_size", "_taken")

    def __init__(self, budget: BodyBudget) -> None:
        self._budget = budget
        self._size = 0
        self._taken = 0

    def grow(self, size: int) -> None:
        """Reserve more bytes before they are stored."""
        self._size += size
        if self._size <= SMALL:
            return
        more = self._size - self._taken
        if self._budget.taken + more > self._budget.most:
            raise RequestRefused(
                problem(
                    503,
                    "busy",
                    "This server has reached its memory limit for request bodies.",
                    next_move="Send the same request again; it is safe.",
                    headers=[retry_after(1)],
                )
            )
        self._budget.taken += more
        self._taken = self._size

    def end(self) -> None:
        self._budget.taken -= self._taken
        self._taken = 0


Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

WINDOWS = {b"gzip": 16 + zlib.MAX_WBITS, b"x-gzip": 16 + zlib.MAX_WBITS, b"deflate": zlib.MAX_WBITS}
# An unterminated string matches up to the end: otherwise each quote in it would be tried again, in quadratic time.
STRINGS = re.compile(rb'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)', re.DOTALL)
BRACKETS = b"[]{}"
NOT_BRACKETS = bytes(set(range(256)) - set(BRACKETS))


class ClientDisconnected(Exception):
    """The client disconnected, so there is no one to respond to."""


async def read_body(
    headers: Mapping[bytes, bytes], receive: Receive, largest: int, depth: int | None, reservation: Reservation
) -> bytes:
    """Read and decompress a body within its limits. Without `depth`, nesting is not checked: it may be binary."""
    declared = headers.get(b"content-length")
    if declared is not None and declared.isdigit() and int(declared) > largest:
        raise RequestRefused(_too_large(largest))
    body = await _receive_all(receive, largest, reservation)
    encoding = headers.get(b"content-encoding")
    if encoding is not None:
        body = decompress(body, encoding.strip().lower(), largest)
        reservation.grow(len(body))
    if depth is not None and too_deep(body, depth):
        raise RequestRefused(_too_deep(depth))
    return body


async def _receive_all(receive: Receive, largest: int, reservation: Reservation) -> bytes:
    """Receive the body and count its bytes, whatever length was declared."""
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientDisconnected
    body: bytes = message.get("body", b"")
    if not message.get("more_body", False):  # the usual case
        reservation.grow(len(body))
        return _refuse_if_larger(body, largest)
    parts, size = [body], len(body)
    reservation.grow(size)
    while message.get("more_body", False):
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > largest:
            raise RequestRefused(_too_large(largest))
        reservation.grow(len(parts[-1]))
    return b"".join(parts)


def _refuse_if_larger(body: bytes, largest: int) -> bytes:
    if len(body) > largest:
        raise RequestRefused(_too_large(largest))
    return body


def decompress(body: bytes, encoding: bytes, largest: int) -> bytes:
    """Decompress at most `largest` bytes and one more, so that a decompression bomb is refused in time."""
    if encoding in (b"", b"identity"):
        return body
    if encoding not in WINDOWS:
        raise RequestRefused(_unknown_encoding())
    decompressor = zlib.decompressobj(WINDOWS[encoding])
    try:
        plain = decompressor.decompress(body, largest + 1)
    except zlib.error:
        raise RequestRefused(_invalid_encoding()) from None
    if len(plain) > largest:
        raise RequestRefused(_too_large(largest))
    if not decompressor.eof or decompressor.unused_data:
        raise RequestRefused(_invalid_encoding())
    return plain


def too_deep(body: bytes, most: int) -> bool:
    """Whether JSON is nested too deeply, checked before parsing. Few bodies have that many brackets in total."""
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
        f"A body may have at most {largest:,} bytes here, after decompression.",
        next_move="Send a smaller body, or a reference to the data.",
    )


def _too_deep(depth: int) -> Reply:
    return problem(400, "too-deep", f"The body is nested deeper than {depth} levels.", next_move="Send it flatter.")


def _unknown_encoding() -> Reply:
    return problem(
        415,
        "unknown-encoding",
        "The Content-Encoding of the body is not supported.",
        next_move="Send it uncompressed, or with Content-Encoding: gzip or deflate.",
        headers=[("accept-encoding", "gzip, deflate")],
    )


def _invalid_encoding() -> Reply:
    return problem(
        400,
        "invalid-encoding",
        "The body does not match its Content-Encoding.",
        next_move="Send one complete gzip or zlib stream, or leave Content-Encoding out.",
    )
