"""A session that we lost while it may still have our last commit before it.

Sent again on a new connection, that commit could land, be followed by a newer one, and then be overwritten
by the old session waking up. So the old session is ended before anything is sent again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import psycopg
from msgspec import Struct

from ..clock import Clock
from .postgres_schema import EQ

__all__ = ["Ghost", "lay", "session_of"]

SESSION = f"""
SELECT pid, backend_start FROM pg_catalog.pg_stat_activity WHERE pid {EQ} pg_catalog.pg_backend_pid()""".encode()  # noqa: S608 - constants
# One that waits for a synchronous standby has committed, and holds back what it wrote until the standby has it. If it
# were ended, everybody would see what no standby may have.
END = f"""
SELECT CASE WHEN coalesce(wait_event {EQ} 'SyncRep', false) THEN NULL ELSE pg_catalog.pg_terminate_backend(pid) END
FROM pg_catalog.pg_stat_activity
WHERE pid {EQ} $1::int AND backend_start {EQ} $2::pg_catalog.timestamptz""".encode()  # noqa: S608 - constants
PAUSE = 0.005
PATIENCE = 2.0  # for a session that does not go; whoever asks for us waits, and so does everybody behind

Ask = Callable[[bytes, Sequence[bytes]], Sequence[Sequence[bytes | None]]]


class Ghost(Struct, frozen=True):
    pid: bytes
    started: bytes


def session_of(ask: Ask, pid: int) -> Ghost | None:
    """Who we are to the server. None behind a pooler: that session is shared, and not ours to end."""
    for there, started in ask(SESSION, ()):
        if there == str(pid).encode() and started is not None:
            return Ghost(there, started)
    return None


def lay(ghost: Ghost, ask: Ask, clock: Clock) -> None:
    """End the session, and see that it is gone."""
    until = clock.monotonic() + PATIENCE
    while ask(END, (ghost.pid, ghost.started)):
        if clock.monotonic() >= until:
            break
        clock.sleep(PAUSE)
    else:
        return
    raise psycopg.OperationalError("the session that was lost is still at work and cannot be ended")
