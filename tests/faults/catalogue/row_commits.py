"""A scene of F21: rows in the ledger's own database, by processes that are killed around the COMMIT of both.

Each kill has a key of its own. First all processes are killed, and rows and entries compared; then their leases end,
and one process finishes every run.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Callable
from typing import Any

from tests.acceptance.children import Child, die
from tests.acceptance.places import Place
from tests.faults.finding import Finding
from tests.faults.trial import NAMES, Trial
from tests.servers import Unavailable
from twiceproof import App
from twiceproof.effects import sql
from twiceproof.effects.sql import RowEffect
from twiceproof.effects.sql_databases import connect
from twiceproof.stores.user_transaction import Join

KILLS = 500
LEAST = 12  # of each store
LEASE = 30.0
VERBS = ("upsert", "find_or_create", "insert_once")
ENTRIES = "SELECT space FROM {records} WHERE kind = 'step' AND {key} = 'act' AND state = 'done'"


def row_commits(trial: Trial, finding: Finding) -> None:
    stores = [store for store in trial.stores if store != "valkey"]  # it has no transactions of a user's own
    if trial.share >= 1:
        stores.append("mariadb")
    kills = max(LEAST, math.ceil(trial.times(KILLS) / max(1, len(stores))))
    for store in stores:
        try:
            _killed_on(store, kills, trial, finding)
        except Unavailable as why:
            finding.skipped.append(str(why))


def _killed_on(store: str, kills: int, trial: Trial, finding: Finding) -> None:
    with trial.place(store) as place:
        shop = Shop(place, store)
        told = shop.killed(trial, kills, finding) + shop.carried_through(kills)
        for complaint in told:
            finding.violated(f"{NAMES[store]}, seed {trial.seed}: {complaint}")
        finding.reach(f"rows killed around COMMIT, {NAMES[store]}", kills, kills)
    with trial.place(store) as place:
        finding.control(f"row and entry in one transaction, {NAMES[store]}", Shop(place, store).torn())


class Shop:
    """A table of customers beside the ledger."""

    def __init__(self, place: Place, store: str) -> None:
        self.place = place
        records = "twiceproof.twiceproof_records" if store == "postgres" else "twiceproof_records"
        self.ask_entries = ENTRIES.format(records=records, key="`key`" if store == "mariadb" else "key")
        self.url = place.url or f"sqlite:///{place.directory}/claims.db"
        place.app().close()
        self._query("CREATE TABLE customers (email VARCHAR(100) NOT NULL UNIQUE, name TEXT)")

    def _query(self, statement: str) -> list[tuple[Any, ...]]:
        with connect(self.url) as connection:
            return connection.run(statement).rows

    def rows(self) -> list[str]:
        return sorted(email for (email,) in self._query("SELECT email FROM customers"))

    def entries(self) -> set[str]:
        """Return the keys of runs that have an entry."""
        spaces = [space for (space,) in self._query(self.ask_entries)]
        return {(space.decode() if isinstance(space, bytes) else space).rpartition("/")[2] for space in spaces}

    def flow(self, app: App, verb: str) -> Any:
        def row(order: int) -> Any:
            return getattr(sql, verb)(self.url, "customers", key={"email": email(order)}, values={"name": "Ann"})

        act = app.effect(name="act")(row)

        @app.flow(key="{order}", name="sync", lease=LEASE)
        def sync(order: int) -> bool:
            return bool(act(order).created)

        return sync

    def kill(self, order: int, arm: Callable[[], None]) -> int:
        def work(_: Child) -> None:
            app = self.place.app()
            arm()
            self.flow(app, VERBS[order % len(VERBS)])(order)

        return Child(work).end()

    def killed(self, trial: Trial, kills: int, finding: Finding) -> list[str]:
        """Kill a process for each order. Row and entry must both exist if the commit landed, and neither if it did
        not.
        """
        points = [trial.dice("commit", order).choice(list(POINTS)) for order in range(kills)]
        told = []
        for order, point in enumerate(points):
            if self.kill(order, POINTS[point]) != -signal.SIGKILL:
                told.append(f"order {order} was not killed {point}")
            finding.hit(f"killed {point}")
        landed = [order for order, point in enumerate(points) if point == AFTER]
        rows, entries = self.rows(), self.entries()
        if rows != sorted(map(email, landed)):
            told.append(f"{len(rows)} rows of {len(landed)} transactions that were committed")
        torn = set(rows) ^ {email(int(order)) for order in entries}
        return told + [f"{one}: a row without its entry, or an entry without its row" for one in sorted(torn)]

    def carried_through(self, kills: int) -> list[str]:
        self.place.advance(LEASE + 1)

        def work(child: Child) -> None:
            created = []
            for number, verb in enumerate(VERBS):
                with self.place.app() as app:
                    sync = self.flow(app, verb)
                    created += [sync(order) for order in range(number, kills, len(VERBS))]
            child.tell(created)

        child = Child(work)
        created = child.hear() or []
        child.end()
        told = [f"{created.count(False)} runs say that another made their row"] if not all(created) else []
        if len(created) != kills or self.rows() != sorted(map(email, range(kills))):
            told.append(f"{len(self.rows())} rows and {len(created)} results of {kills} runs")
        return told

    def torn(self) -> str:
        """The protection taken away: the row is committed by itself, before its entry."""

        def arm() -> None:
            RowEffect.joined = lambda self, store: None  # type: ignore[method-assign]
            perform = RowEffect.perform

            def performed(self: RowEffect, effect_key: str) -> Any:
                perform(self, effect_key)
                die()

            RowEffect.perform = performed  # type: ignore[method-assign]

        self.kill(0, arm)
        return "a row without its entry" if self.rows() and not self.entries() else ""


def email(order: int) -> str:
    return f"{order}@b.de"


# -- where they die ------------------------------------------------------------------------------


def _before_entry() -> None:
    def write(self: Join, *writes: Any) -> Any:
        die()
        yield

    Join.write = write  # type: ignore[method-assign]


def _before_commit() -> None:
    def commit(self: Join) -> Any:
        die()
        yield

    Join.commit = commit  # type: ignore[method-assign]


def _after_commit() -> None:
    commit = Join.commit

    def committed(self: Join) -> Any:
        yield from commit(self)
        die()

    Join.commit = committed  # type: ignore[method-assign]


AFTER = "right after COMMIT"
POINTS = {
    "between row and entry": _before_entry,
    "right before COMMIT": _before_commit,
    AFTER: _after_commit,
}
