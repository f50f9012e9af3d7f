"""What a database driver's error says about the work: whether the server was reached, and whether it answered."""

from __future__ import annotations

from typing import Literal

from .said_by import said_by

__all__ = ["of_driver"]

# Exactly these: what descends from them carries the server's answer, or is a mistake in how the driver was called.
UNANSWERED = frozenset({
    "psycopg.OperationalError", "psycopg.InterfaceError", "psycopg2.OperationalError", "psycopg2.InterfaceError",
    "asyncpg.exceptions._base.InterfaceError",
})  # fmt: skip
NEVER_CONNECTED = frozenset({"psycopg.errors.ConnectionTimeout", "sqlalchemy.exc.TimeoutError"})
TURNED_AWAY_STATES = frozenset({"08001", "08004", "53300", "57P03"})
# The server's last words before it hung up: a commit that it was at may have been made.
CUT_OFF_STATES = frozenset({"40003", "57P01", "57P02", "57P04", "57P05"})


def of_driver(error: BaseException) -> Literal["clean", "ambiguous"] | None:
    """psycopg, asyncpg, and what SQLAlchemy says about a connection of any driver; None: nothing is known."""
    name = f"{type(error).__module__}.{type(error).__qualname__}"
    if name in NEVER_CONNECTED or said_by(error, "pgconn") is not None:  # psycopg: only while it connects
        return "clean"
    if said_by(error, "connection_invalidated") is True:
        return "ambiguous"
    state = said_by(error, "sqlstate") or said_by(error, "pgcode")
    if isinstance(state, str):
        return _of_state(state)
    return "ambiguous" if name in UNANSWERED else None


def _of_state(state: str) -> Literal["clean", "ambiguous"] | None:
    if state in TURNED_AWAY_STATES:
        return "clean"
    return "ambiguous" if state in CUT_OFF_STATES or state.startswith("08") else None
