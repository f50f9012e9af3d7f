"""Engines of rows whose service's clock a test can move: the estimate of it is shifted for all of them at once."""

from pathlib import Path
from typing import Any

from tests.acceptance.places import read_shift
from twiceproof.stores.rows.server_clock import ServerClock


class MovableClock(ServerClock):
    shift = 0.0

    def _told_time(self):
        return super()._told_time() + MovableClock.shift


def movable(engine):
    """The engine, with a clock that `advance` moves."""
    engine.table.clock.__class__ = MovableClock
    return engine


def advance(seconds):
    MovableClock.shift += seconds


class FileClock(ServerClock):
    """Moved by a file, for every process at once."""

    shift: Path

    def _told_time(self):
        return super()._told_time() + read_shift(self.shift)


def moved_by(engine: Any, shift: Path) -> Any:
    """The engine, with a clock that is as far ahead as the file says."""
    engine.table.clock.__class__ = FileClock
    engine.table.clock.shift = shift
    return engine
