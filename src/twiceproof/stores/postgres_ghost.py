"""A session that we lost while it may still have our last commit before it.

Sent again on a new connection, that commit could land, be followed by a newer one, and then be overwritten
by the old session waking up. So the old session is ended before anything is sent again.
"""

from __future__ import annotations

import psycopg
from msgspec import Struct

from ..clock import Clock

__all__ = ["Ghost", "lay", "session_of"]

SESSION = "SELECT pid, backend_start::text FROM pg_stat_activity WHERE pid = pg_backend_pid()"
END = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = %s AND backend_start = %s::timestamptz"
PAUSE = 0.005
TRIES = 400


class Ghost(Struct, frozen=True):
    pid: int
    started: str


def session_of(db: psycopg.Connection) -> Ghost | None:
    """Who we are to the server. None behind a pooler: that session is shared, and not ours to end."""
    row = db.execute(SESSION).fetchone()
    if row is None or row[0] != db.info.backend_pid:
        return None
    return Ghost(*row)


def lay(ghost: Ghost, db: psycopg.Connection, clock: Clock) -> None:
    """End the session, and see that it is gone."""
    for _ in range(TRIES):
        if db.execute(END, (ghost.pid, ghost.started)).fetchone() is None:
            return
        clock.sleep(PAUSE)
    raise psycopg.OperationalError("the session that was lost is still at work and cannot be ended")
