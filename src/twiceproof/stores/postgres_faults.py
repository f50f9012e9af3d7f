"""What PostgreSQL's errors mean for us: try again, look again, full, not allowed, or ours to fix."""

from __future__ import annotations

from ..errors import SchemaMismatch, StoreError, StoreFull, StoreUnavailable, StoreUnsafe

__all__ = ["Refused", "named"]

SCHEMA = "twiceproof"

CONNECTION_LOST = ("08", "57P")
TRANSIENT = ("40001", "40P01", "23505")
DISK_FULL, OUT_OF_MEMORY, READ_ONLY, NOT_ALLOWED, CANCELLED = "53100", "53200", "25006", "42501", "57014"
LOCKED = "55P03"
MISSING = ("42P01", "42883", "42703", "3F000")
RAISED_BY_US = "P0001"


class Refused(Exception):
    """The server's answer was an error. Only its first line: the details may hold a row's contents."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code

    @property
    def transient(self) -> bool:
        """Nothing was written, and the same again may well work (a row inserted by hand counts, too)."""
        return self.code in TRANSIENT

    @property
    def disconnects(self) -> bool:
        """The session is over, or is with a server that no longer takes writes."""
        return self.code.startswith(CONNECTION_LOST)


def named(error: Refused) -> StoreError:
    """The error as the caller sees it."""
    code, text = error.code, str(error)
    if code == DISK_FULL:
        return StoreFull(f"The database's disk is full ({text}); nothing was written. Free some space.")
    if code == OUT_OF_MEMORY:
        return StoreError(  # not unavailable: a smaller commit may fit
            f"The server ran out of memory ({text}); nothing was written. Raise max_locks_per_transaction."
        )
    if code == READ_ONLY:
        return StoreUnsafe(
            "The server takes no writes: it is a standby, or set to read-only. Point the URL at the primary.",
            findings=[],
        )
    if code == CANCELLED:
        return StoreUnavailable(
            f"The server cancelled the statement ({text}); nothing was written. Raise statement_timeout.",
            unsure=False,
        )
    if code == LOCKED:
        return StoreUnavailable(
            f"Somebody else holds a lock for too long ({text}); nothing was written. "
            "Look for a long-running transaction in the database, or a stopped process, then try again.",
            unsure=False,
        )
    return _ours_to_fix(code, text)


def _ours_to_fix(code: str, text: str) -> StoreError:
    if code == NOT_ALLOWED:
        move = "grant it what docs/reference/stores.md lists under Rights, or use the role that made the tables"
        if "database" in text:  # there is no schema yet, and it may not make one
            move = (
                f"run CREATE SCHEMA {SCHEMA} AUTHORIZATION … for it, or grant it CREATE on the database, "
                "or open the store once with a role that has it"
            )
        elif "schema" in text:
            move = (
                "grant it USAGE and, to make the tables, CREATE on the schema; or open it once with a role that has it"
            )
        return StoreError(f"The database role lacks a right ({text}); {move}.")
    if code in MISSING:
        return SchemaMismatch(f"A table or function of twiceproof is missing ({text}); open the store again.")
    if code == RAISED_BY_US:
        return StoreUnsafe(f"{text}. Set default_transaction_isolation to 'read committed'.", findings=[])
    return StoreError(f"PostgreSQL refused: {text} ({code}). Please report this as a bug in twiceproof.")
