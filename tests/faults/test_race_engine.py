"""The engine of F15 that is interrupted."""

from __future__ import annotations

import pytest

from tests.faults.catalogue.race_engine import Interrupted, Moment


class Told:
    def __init__(self):
        self.calls = []

    def fetch(self, addresses):
        self.calls.append("fetch")

    def commit(self, batches):
        self.calls.append("commit")


@pytest.mark.parametrize(
    ("moment", "calls"),
    [
        (Moment("commit", 1, after=False), ["fetch", "act", "commit", "fetch", "commit"]),
        (Moment("commit", 1, after=True), ["fetch", "commit", "act", "fetch", "commit"]),
        (Moment("fetch", 2, after=False), ["fetch", "commit", "act", "fetch", "commit"]),
        (Moment("commit", 3, after=False), ["fetch", "commit", "fetch", "commit", "act"]),
    ],
    ids=str,
)
def test_something_else_happens_once_at_the_moment_or_at_the_end(moment, calls):
    told = Told()
    engine = Interrupted(told)
    engine.interrupt(moment, lambda: told.calls.append("act"))
    for _ in range(2):
        engine.fetch([])
        engine.commit([])
    engine.finish()
    engine.finish()
    assert told.calls == calls
