"""What one server takes, at most. Every number is enforced while it is being exceeded, not afterwards."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

__all__ = ["Limits"]


def _of(text: str) -> Meta:
    return Meta(description=text)


class Limits(Struct, frozen=True):
    """Times in seconds, sizes in bytes, rates per second. 0 for a rate is no limit."""

    connections: Annotated[int, _of("connections at once")] = 2_000
    requests: Annotated[int, _of("requests under way at once, once they are read")] = 512
    bodies: Annotated[int, _of("bytes of bodies over 64 KiB that are read or worked on, all together")] = 256 * 1024**2
    head: Annotated[int, _of("bytes of the request line and all headers")] = 32 * 1024
    headers: Annotated[int, _of("headers")] = 100
    deadline: Annotated[float, _of("seconds in which head and body must be here, however slowly they come")] = 10.0
    idle: Annotated[float, _of("seconds between two requests of one connection")] = 30.0
    depth: Annotated[int, _of("brackets inside each other in JSON; a webhook's source counts its own")] = 64
    per_token: Annotated[float, _of("requests per second of one token")] = 1_000.0
    # This machine's own are not counted.
    per_source: Annotated[float, _of("requests per second of one address without a good token")] = 1_000.0
