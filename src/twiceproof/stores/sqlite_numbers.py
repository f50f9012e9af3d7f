"""The numbers of an SQLite file, from which versions and fences come. They only grow, and outlive every record."""

from __future__ import annotations

import sqlite3

__all__ = ["Numbers", "catch_up"]

RESERVED = 1_024  # at a time: writing the counter with every commit would cost a page of it

PER_SECOND, SINCE = 2**22, 1_577_836_800  # below 2^53 until 2088
MOST = 2**52  # whatever a wrong clock says


def catch_up(db: sqlite3.Connection, now: float) -> None:
    """Bring the counter up to the present: a file that was copied back from a backup draws no number again."""
    present = min(int((now - SINCE) * PER_SECOND), MOST)
    db.execute("UPDATE twiceproof_counter SET number=? WHERE number < ?", (present, present))


class Numbers:
    """As one writing connection draws them, each time within its write transaction.

    A block is reserved in the file and used up from memory, but only as long as nobody else has written: whoever does
    begins after our block, and what is left of it is no longer larger than everything drawn before. It is left out,
    as it is after a crash.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """After a transaction that did not land, or on another connection: what was reserved may not be."""
        self._next = self._reserved = 0
        self._seen: int | None = None

    def next(self, db: sqlite3.Connection) -> int:
        """The first number that nobody has had."""
        (seen,) = db.execute("PRAGMA data_version").fetchone()  # changes when another connection has written
        if seen != self._seen:
            (self._reserved,) = db.execute("SELECT number FROM twiceproof_counter").fetchone()
            self._next, self._seen = self._reserved + 1, seen
        return self._next

    def use(self, db: sqlite3.Connection, count: int) -> None:
        """So many, from the next one on."""
        self._next += count
        if self._next > self._reserved + 1:
            self._reserved = self._next + RESERVED
            db.execute("UPDATE twiceproof_counter SET number=?", (self._reserved,))
