"""What one server takes, at most. Every number is enforced while it is being exceeded, not afterwards."""

from __future__ import annotations

from msgspec import Struct

__all__ = ["Limits"]


class Limits(Struct, frozen=True):
    """Times in seconds, sizes in bytes, rates per second. 0 for a rate is no limit."""

    connections: int = 2_000  # at once
    requests: int = 512  # under way at once, once they are read
    bodies: int = 256 * 1024 * 1024  # bytes of large bodies that are read or worked on, all together
    head: int = 32 * 1024  # of the request line and all headers
    headers: int = 100
    deadline: float = 10.0  # for head and body together, however slowly they come
    idle: float = 30.0  # between two requests of one connection
    depth: int = 64  # of brackets in JSON
    per_token: float = 1_000.0  # requests of one token
    per_source: float = 1_000.0  # requests of one address without a good token; this machine's own are not counted
