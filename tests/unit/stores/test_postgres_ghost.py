"""A lost session is ended before anything is sent again, and waited for no longer than it is worth."""

import psycopg
import pytest

from twiceproof.prove.clocks import ManualClock
from twiceproof.stores.postgres.connection import LostSession, terminate

GHOST = LostSession(b"17", b"2026-01-01")


class Server:
    """Takes its time for each answer. `left`: how often the session is still there."""

    def __init__(self, clock, *, takes, left):
        self.clock, self.takes, self.left, self.asked = clock, takes, left, 0

    def __call__(self, sql, values):
        self.clock.advance(self.takes)
        self.asked += 1
        return [[b"t"]] if self.asked <= self.left else []


@pytest.mark.parametrize(("takes", "most"), [(0.0, 410), (1.0, 3), (9.0, 1)])
def test_a_session_that_does_not_go_is_given_up_after_two_seconds(takes, most):
    clock = ManualClock()
    server = Server(clock, takes=takes, left=10_000)
    began = clock.monotonic()
    with pytest.raises(psycopg.OperationalError, match="still at work"):
        terminate(GHOST, server, clock)
    assert server.asked <= most
    assert clock.monotonic() - began <= 2.1 + takes


@pytest.mark.parametrize("left", [0, 1, 50])
def test_a_session_that_goes_is_waited_for(left):
    clock = ManualClock()
    server = Server(clock, takes=0.01, left=left)
    terminate(GHOST, server, clock)
    assert server.asked == left + 1
