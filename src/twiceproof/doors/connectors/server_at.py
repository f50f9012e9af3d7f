"""The address of a server as a connector is given it: where it is, and no secret in it."""

from __future__ import annotations

import re
from urllib.parse import SplitResult, urlsplit

from ...errors import Misuse

__all__ = ["server_at"]

HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+)(:[0-9]{1,5})?", re.ASCII)


def server_at(url: str) -> SplitResult:
    """A user and a password would be handed on with the file: the token is for that."""
    try:
        parts = urlsplit(url)
    except ValueError:  # half a bracket
        raise _refused() from None
    odd = parts.query or parts.fragment or " " in url or not url.isprintable()  # a line's end is dropped by the parser
    if odd or parts.scheme not in ("http", "https") or not HOST.fullmatch(parts.netloc):
        raise _refused()
    return parts


def _refused() -> Misuse:
    return Misuse("That is no address of a server, or there is more in it; write it like https://hooks.example.com")
