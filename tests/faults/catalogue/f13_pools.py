"""F13: too few connections: pools that are empty, a server that is full, sessions that it ends, a pooler in between."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import psycopg

from tests.acceptance.places import PostgresPlace
from tests.acceptance.shops import Shop
from tests.faults.catalogue.pools import Pools, buyer, by_text, crowd, hogged, limited, pool
from tests.faults.finding import Finding
from tests.faults.trial import Trial
from tests.servers import PgBouncer, PostgresServer, Unavailable
from twiceproof import App
from twiceproof.stores.grouped import GroupedStore

TITLE = "too few connections"
RUNS = 50
LEAST = 4  # each kind once
SMALL = {"max_connections": "30", "superuser_reserved_connections": "0"}


def run(trial: Trial, finding: Finding) -> None:
    if "postgres" not in trial.stores:
        finding.skipped.append("PostgreSQL: not among the stores of this run")
        return
    finding.skipped.append("SQLite and Valkey: nobody's pool is between the product and these")
    with opened(trial, finding) as pools:
        runs, made = trial.times(RUNS, LEAST), 0
        for nth in range(runs):
            kind = list(pools.kinds)[nth % len(pools.kinds)]
            wrong, pinched = pools.kinds[kind](f"run-{nth}")
            made += 1
            finding.hit(f"a worker {kind}", pinched)
            for complaint in wrong:
                finding.violated(f"PostgreSQL, seed {trial.seed}: a worker {kind}: {complaint}")
        finding.reach("runs, PostgreSQL", runs, made)
        second_connection(pools, finding)
        no_bound(pools, finding)
        outside(pools, finding)


@contextlib.contextmanager
def opened(trial: Trial, finding: Finding) -> Iterator[Pools]:
    here = trial.directory / "pools"
    here.mkdir()
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(PostgresServer(SMALL))
        shop = Shop(PostgresPlace(server.create_database(), here), "postgres")
        pooler = None
        try:
            pooler = stack.enter_context(PgBouncer(server.dsn(), {"default_pool_size": "2"}))
        except Unavailable as error:
            finding.skipped.append(f"pgbouncer: {error}")
        yield Pools(server, shop, pooler)


# -- controls ------------------------------------------------------------------------------------


def second_connection(pools: Pools, finding: Finding) -> None:
    """The protection taken away: the work needs a second connection of the pool while it holds the first."""
    both = threading.Barrier(2)  # both connections of the pool are held, not one after the other by a fast worker
    with pool(pools.shop.place.url, pool_timeout=0.5) as engine, pools.shop.place.app() as app:

        def think(_: Any, order: str) -> None:
            with contextlib.suppress(threading.BrokenBarrierError):
                both.wait(5.0)
            with engine.connect():
                pass

        buy = buyer(app, engine, by_text, think)
        heard = crowd([lambda order=f"second-{nth}": buy(order) for nth in range(6)])
    stuck = sum(isinstance(told, BaseException) for told in heard)
    finding.control("the ledger on the user's own connection", f"{stuck} of 6 starved" if stuck else "")


def no_bound(pools: Pools, finding: Finding) -> None:
    """The protection taken away: calls to the store have no time limit."""
    with App(GroupedStore(pools.shop.place.engine(), patience=3600.0)) as app:
        buy = buyer(app, limited(pools.shop.place.url), by_text)
        with hogged(pools.server, pools.shop.place.url):
            (told,) = crowd([lambda: buy("no-bound")], seconds=1.5)
    finding.control("bounded waits", str(told) if isinstance(told, TimeoutError) else "")


def outside(pools: Pools, finding: Finding) -> None:
    """The protection taken away: work and record are committed separately, so one may exist without the other."""
    with pools.shop.place.app() as app:

        def think(_: Any, order: str) -> None:
            with psycopg.connect(pools.shop.place.url, autocommit=True) as db:
                db.execute("INSERT INTO stock (name) VALUES (%s)", (order,))
            thought.append(order)
            if len(thought) == 1:
                raise psycopg.OperationalError("the session was ended")

        thought: list[str] = []
        buyer(app, limited(pools.shop.place.url), lambda db, order: None, think)("outside")
    rows = pools.shop.stock().count("outside")
    finding.control("effect and entry in one transaction", f"{rows} rows for one order" if rows != 1 else "")
