"""Places where claims can live, each with a clock that can be moved for every process at once.

Drivers are imported when their store is used: processes are forked by the thousand, and each copies what there is.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from twiceproof import App
from twiceproof.clock import Clock
from twiceproof.stores.base import Engine
from twiceproof.stores.grouped import GroupedStore
from twiceproof.stores.open import open_store
from twiceproof.stores.sqlite.engine import SqliteEngine

if TYPE_CHECKING:
    from tests.contracts.stores.movable_mariadb import MovableMariadbEngine
    from tests.contracts.stores.movable_redis import MovableRedisEngine


@dataclass
class Place:
    """A store that any process can open. `directory` is outside of it: effects are counted there."""

    url: str
    directory: Path

    def engine(self) -> Engine:
        return open_store(self.url).engine

    def app(self, wrap=lambda engine: engine) -> App:
        return App(GroupedStore(wrap(self.engine())), best_effort=True)

    def advance(self, seconds: float) -> None:
        raise NotImplementedError

    def effects(self) -> list[str]:
        log = self.directory / "effects"
        return log.read_text().splitlines() if log.exists() else []

    def do(self, what: str) -> None:
        """An effect on the outside world, which the product cannot write to by itself."""
        with (self.directory / "effects").open("a") as log:
            log.write(what + "\n")


class SqlitePlace(Place):
    def engine(self) -> Engine:
        shift = self.directory / "clock"
        return SqliteEngine(self.directory / "claims.db", clock=Clock(now=lambda: time.time() + read_shift(shift)))

    def advance(self, seconds: float) -> None:
        _move(self.directory / "clock", seconds)


class PostgresPlace(Place):
    def advance(self, seconds: float) -> None:
        import psycopg

        with psycopg.connect(self.url, autocommit=True) as db:
            db.execute(
                "CREATE OR REPLACE FUNCTION twiceproof.twiceproof_now() RETURNS double precision LANGUAGE sql VOLATILE"
                f" RETURN extract(epoch FROM clock_timestamp()) + {float(seconds)}"
            )


class RedisPlace(Place):
    def engine(self) -> MovableRedisEngine:
        from tests.contracts.stores.movable_redis import MovableRedisEngine

        return MovableRedisEngine(self.url)

    def advance(self, seconds: float) -> None:
        engine = self.engine()
        engine.advance(seconds)
        engine.close()


class MariadbPlace(Place):
    def engine(self) -> MovableMariadbEngine:
        from tests.contracts.stores.movable_mariadb import MovableMariadbEngine

        return MovableMariadbEngine(self.url)

    def advance(self, seconds: float) -> None:
        engine = self.engine()
        engine.advance(seconds)
        engine.close()


class RowsPlace(Place):
    """A ledger in DynamoDB, Azure Table Storage or etcd: the estimate of the service's time is shifted."""

    def engine(self) -> Engine:
        from tests.contracts.stores.movable_rows import moved_by

        return moved_by(super().engine(), self.directory / "clock")

    def advance(self, seconds: float) -> None:
        _move(self.directory / "clock", seconds)


class GaleraPlace(MariadbPlace):
    """Processes are spread over the nodes, whose URLs are separated by blanks."""

    def engine(self) -> MovableMariadbEngine:
        from tests.contracts.stores.movable_mariadb import MovableMariadbEngine

        nodes = self.url.split()
        return MovableMariadbEngine(nodes[os.getpid() % len(nodes)])


class OfficePlace(Place):
    """A ledger in a simulated Dataverse table or SharePoint list, whose simulator has the clock."""

    def advance(self, seconds: float) -> None:
        _move(self.directory / "clock", seconds)


def _move(shift: Path, seconds: float) -> None:
    shift.write_text(str(float(shift.read_text() or 0) + seconds))


def read_shift(shift: Path) -> float:
    """How far the clock of a place was moved."""
    return float(shift.read_text() or 0)
