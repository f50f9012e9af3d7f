"""Scenes of what is kept and forgotten, and of steps that are part of the user's own transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Any

from tests.acceptance.places import SqlitePlace
from tests.faults.catalogue.killing.deadly import BEFORE, LANDED, Point
from tests.faults.catalogue.killing.scene import LEASE, Case, Scene, Seen
from twiceproof import App, ResultNotKept
from twiceproof.claims.retention import sweep
from twiceproof.effects import sql
from twiceproof.effects.base import Effect
from twiceproof.effects.sql import Row
from twiceproof.operations import Operation, block
from twiceproof.records import Remove, Replace, Write
from twiceproof.stores.user_transaction import Join

__all__ = ["KEEPING_SCENES"]

MANY = 50


def _forgets(kind: str) -> Any:
    return lambda write: isinstance(write, Remove) and write.at.kind == kind


def _trims(write: Write) -> bool:
    return isinstance(write, Replace) and write.at.kind == "run" and write.state == "done" and write.draw


class Swept(Scene):
    """All expired keys are forgotten, and no others."""

    name = "swept"
    may_recover_twice = False  # after that time it is swept again
    points = (
        Point("history swept", _forgets("step")),
        Point("key swept", _forgets("run")),
        Point("result trimmed", _trims),
    )

    def declare(self, app: App) -> None:
        @app.step(repeat="safe")
        def save(order: int) -> str:
            self.do(order, "save")
            return f"saved {order}"

        @app.flow(key="order:{order}", name="swept", keep="300s", lease=LEASE)
        def brief(order: int) -> str:
            return save(order)

        @app.flow(key="order:{order}", name="trimmed", keep="2d", keep_history="500s", lease=LEASE)
        def long(order: int) -> str:
            return save(order)

        self.brief, self.long = brief, long

    def flow(self, case: Case) -> Any:
        return self.long if case.point == "result trimmed" else self.brief

    def prepare(self, case: Case) -> None:
        for order in (case.order, -case.order):  # one more than needed: a process that dies has taken the next one
            self.flow(case)(order)

    def act(self, case: Case) -> Any:
        """One at a time: keys that a killed sweep had taken are left alone for a while."""
        for _ in range(MANY):
            if block(sweep(self.app.store, limit=1)).total == 0:
                return "swept"
        return "more to sweep than there was"

    def recover(self, case: Case) -> Any:
        self.act(case)
        try:
            return self.flow(case)(case.order)
        except ResultNotKept:
            return "trimmed"

    def judge(self, case: Case, seen: Seen) -> Iterator[str]:
        trimmed = case.point == "result trimmed"
        expected = (["save"], "trimmed") if trimmed else (["save", "save"], f"saved {case.order}")
        if (seen.effects, seen.ended) != expected:
            yield f"{expected} expected, seen {seen.effects} {seen.ended!r}"


class Joined(Scene):
    """A step in the ledger's own database: its row and its entry exist both, or neither."""

    name = "joined"
    stores = ("sqlite", "postgres")
    moment = "transaction commit"
    points = (Point(moment),)

    def declare(self, app: App) -> None:
        @app.transaction
        def reserve(connection: Any, order: int) -> str:
            connection.execute(f"INSERT INTO stock (name) VALUES ('{order}')")
            return f"reserved {order}"

        @app.flow(key="order:{order}", name=self.name, lease=LEASE)
        def buy(order: int) -> str:
            return reserve(order)

        self.flow = buy
        self.query("CREATE TABLE stock (name TEXT NOT NULL)")

    def query(self, sql: str) -> list[Any]:
        """Query without the product, on a connection of our own."""
        if isinstance(self.place, SqlitePlace):
            with closing(sqlite3.connect(self.place.directory / "claims.db")) as db, db:
                return db.execute(sql).fetchall()
        import psycopg

        with psycopg.connect(self.place.url) as connection:
            cursor = connection.execute(sql.encode())
            return cursor.fetchall() if cursor.description else []

    def act(self, case: Case) -> Any:
        Join.commit = self.deadly(case)  # type: ignore[method-assign]  # this process is about to die
        return self.flow(case.order)

    def deadly(self, case: Case) -> Any:
        commit = Join.commit

        def dying(join: Join) -> Operation[None]:
            self.orders.pass_by(self.moment, BEFORE)
            yield from commit(join)
            self.orders.pass_by(self.moment, LANDED)

        return dying

    def recover(self, case: Case) -> Any:
        return [self.flow(case.order), len(self.query(f"SELECT 1 FROM stock WHERE name = '{case.order}'"))]

    def judge(self, case: Case, seen: Seen) -> Iterator[str]:
        if seen.ended != [f"reserved {case.order}", 1]:
            yield f"one row and its entry expected, seen {seen.ended}"


class Created(Joined):
    """A row of sql.find_or_create in the ledger's own database: the run that created it is told so, killed or not."""

    name = "created"
    moment = "commit of a row that is found or created"
    points = (Point(moment),)

    def declare(self, app: App) -> None:
        self.query("CREATE TABLE bought (name VARCHAR(40) PRIMARY KEY)")
        place = self.place
        url = f"sqlite:///{place.directory / 'claims.db'}" if isinstance(place, SqlitePlace) else place.url

        @app.effect
        def bought(order: int) -> Effect[Row]:
            return sql.find_or_create(url, "bought", key={"name": str(order)})

        @app.flow(key="order:{order}", name=self.name, lease=LEASE)
        def buy(order: int) -> bool:
            return bought(order).created

        self.flow = buy

    def recover(self, case: Case) -> Any:
        return [self.flow(case.order), len(self.query(f"SELECT 1 FROM bought WHERE name = '{case.order}'"))]

    def judge(self, case: Case, seen: Seen) -> Iterator[str]:
        if seen.ended != [True, 1]:
            yield f"one row, created by this run, expected, seen {seen.ended}"


KEEPING_SCENES: tuple[type[Scene], ...] = (Swept, Joined, Created)
