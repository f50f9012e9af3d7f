"""The service's time, from the `Date` of its answers; and numbers for versions and fences that follow it."""

from __future__ import annotations

import threading
from email.utils import parsedate_to_datetime

from ...clock import Clock

__all__ = ["LEASE_MARGIN", "Numbers", "ServerClock", "date_of"]

DRIFT = 0.0005  # seconds per second that two clocks may drift apart
OLD = 600.0  # seconds since the last answer
SUSPENDED = 1.0  # seconds by which our own two clocks may have moved differently since then
WHOLE_SECOND = 1.0  # a Date names the second that has begun
# One process may have stamped a lease half a second too early, another may judge it half a second too late; then there
# is the way of the answers.
LEASE_MARGIN = WHOLE_SECOND + 0.2


class ServerClock:
    """Estimates a service's clock without trusting this machine's.

    An answer dated D, to a request sent at `sent` and read at `received` (both monotonic), says that the service's time
    was between D and D + 1 at some moment in between. Each answer narrows the estimate of the difference; if answers
    contradict each other (a clock was set, another node answered), the latest counts.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._mutex = threading.Lock()
        self.heard_any = False
        self._low = self._high = 0.0  # between these is the service's time minus ours
        self._at = self._wall = 0.0  # the last answer, by our two clocks
        self._told = 0.0

    def abandon(self) -> None:
        self._mutex = threading.Lock()

    def another(self) -> ServerClock:
        """Return a new clock, without any answer yet, for another server."""
        return ServerClock(self._clock)

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def heard(self, date: float | None, sent: float, received: float) -> None:
        if date is None:
            return
        low, high = date - received, date + WHOLE_SECOND - sent
        with self._mutex:
            drift = DRIFT * max(0.0, received - self._at)
            if self.heard_any:
                narrow_low, narrow_high = max(low, self._low - drift), min(high, self._high + drift)
                if narrow_low <= narrow_high:
                    low, high = narrow_low, narrow_high
                else:
                    self._told = 0.0
            self._low, self._high, self._at, self.heard_any = low, high, received, True
            self._wall = self._clock.now()

    def now(self) -> float:
        """Return the service's time; before its first answer, or if it names no time, this machine's.

        It is a whole number of microseconds, as stamps are: otherwise a stamp could be rounded up to later than now.
        """
        return round(self._told_time() * 1_000_000) / 1_000_000

    def _told_time(self) -> float:
        """Return the estimate. If a better one is an earlier time, the clock stands still until that has passed: a
        record stamped as due now must not become due later.
        """
        if not self.heard_any:
            return self._clock.now()
        with self._mutex:
            self._told = max(self._told, self._clock.monotonic() + (self._low + self._high) / 2)
            return self._told

    def is_doubtful(self) -> bool:
        """Whether the service must be asked before its time is written into a record.

        While a machine is suspended its monotonic clock stands still: a lease could have expired before it is written.
        """
        passed = self._clock.monotonic() - self._at
        moved = self._clock.now() - self._wall
        return self.heard_any and (passed > OLD or abs(moved - passed) > SUSPENDED)

    @property
    def uncertainty(self) -> float | None:
        """By how many seconds the estimate may be wrong. None: the service names no time."""
        return (self._high - self._low) / 2 if self.heard_any else None

    def ahead(self) -> float:
        """By how many seconds this machine's clock is ahead of the service's."""
        return self._clock.now() - self.now()


def date_of(header: str | None) -> float | None:
    """The time that a `Date` header names. None: there is none, or it cannot be read."""
    if not header:
        return None
    try:
        return parsedate_to_datetime(header).timestamp()
    except ValueError:
        return None


class Numbers:
    """Numbers that only grow in this process, and follow the service's time across processes.

    A record's numbers grow even if several processes draw them: each is larger than that of the replaced row, which the
    service compares.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._last = 0

    def abandon(self) -> None:
        self._mutex = threading.Lock()

    def draw(self, now: int, above: int = 0) -> int:
        with self._mutex:
            self._last = max(self._last + 1, now, above + 1)
            return self._last
