"""A server that took over is accepted by a person's word: it may lack what its predecessor acknowledged last."""

from __future__ import annotations

from urllib.parse import urlsplit

from ..clock import Clock, system_clock
from ..errors import Misuse

__all__ = ["ACCEPT", "BEFORE_ACCEPTING", "accept_server"]

BEFORE_ACCEPTING = (
    "After a planned switchover nothing is missing; else find out what was done last, whose claims may be gone."
)
ACCEPT = "Then accept this server as it is, for everybody: twiceproof doctor --accept-server"


def accept_server(url: str, *, clock: Clock = system_clock) -> None:
    """From now on this server is the one, for everybody; numbers skip ahead, so that none is drawn twice."""
    scheme = urlsplit(url).scheme
    if scheme in ("postgresql", "postgres"):
        from .postgres import PostgresEngine

        PostgresEngine(url, clock=clock, create=False, accept=True).close()
    elif scheme.startswith("redis"):
        from .redis import RedisEngine

        RedisEngine(url, clock=clock, create=False, accept=True).close()
    else:
        raise Misuse("This ledger has no server that another could take over from; there is nothing to accept.")
