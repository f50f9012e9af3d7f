"""Runs with too few connections: a pool of two, a full server, sessions that the server ends, a pooler."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import sqlalchemy
from psycopg.conninfo import conninfo_to_dict

from tests.acceptance.places import PostgresPlace
from tests.acceptance.shops import Shop
from tests.servers import PgBouncer, PostgresServer
from twiceproof import App, Retry, StoreUnavailable
from twiceproof.stores.grouped import GroupedStore

__all__ = ["Pools", "buyer", "by_text", "crowd", "hogged", "limited", "pool"]

WORKERS = 50
BOUND = 20.0  # seconds within which every worker has ended
SOON = 0.4  # seconds after which a caller gets an error instead of an answer
IDLE = 60  # milliseconds that a transaction may be idle
THRICE = Retry(attempts=3, first=0.01)


class Pools:
    """One small server. Each kind of run returns what went wrong, and how often a connection was missing."""

    def __init__(self, server: PostgresServer, shop: Shop, pooler: PgBouncer | None) -> None:
        self.server = server
        self.shop = shop
        self.pooler = pooler
        self.kinds: dict[str, Callable[[str], tuple[list[str], int]]] = {
            "waits for a pool of two": self.pool_of_two,
            "finds a server without a free connection": self.full_server,
            "has its idle transaction ended": self.ended_while_idle,
        }
        if pooler is not None:
            self.kinds["goes through a pooler of two"] = self.pooled

    # -- kinds -----------------------------------------------------------------------------------

    def pool_of_two(self, name: str) -> tuple[list[str], int]:
        with pool(self.shop.place.url) as engine, self.shop.place.app() as app:
            buy = buyer(app, engine, by_text)
            orders = [f"{name}-{nth}" for nth in range(WORKERS)]
            return self._all_bought(orders, crowd([lambda order=order: buy(order) for order in orders])), WORKERS

    def full_server(self, name: str) -> tuple[list[str], int]:
        """Callers get an error within a time limit; afterwards everything works as before, and nothing was done
        twice.
        """
        orders = [f"{name}-{nth}" for nth in range(5)]
        with App(GroupedStore(self.shop.place.engine(), patience=SOON)) as app:
            buy = buyer(app, lambda: psycopg.connect(self.shop.place.url), by_percent)
            asked: list[Callable[[], Any]] = [lambda order=order: buy(order) for order in orders]  # type: ignore[misc]
            with hogged(self.server, self.shop.place.url):
                heard = crowd(asked)
            served = [order for order, told in zip(orders, heard, strict=True) if not isinstance(told, BaseException)]
            wrong = [f"served without a connection: {order}" for order in served]
            wrong += [f"told {told!r}" for told in heard if not isinstance(told, StoreUnavailable)]
            return wrong + self._all_bought(orders, crowd(asked)), len(orders)

    def ended_while_idle(self, name: str) -> tuple[list[str], int]:
        """The server ends each order's first transaction while its step is thinking."""
        thought: set[str] = set()

        def think(_: Any, order: str) -> None:
            if order not in thought:
                thought.add(order)
                time.sleep(IDLE / 1000 * 2)

        connect = limited(self.shop.place.url)
        orders = [f"{name}-{nth}" for nth in range(5)]
        with self.shop.place.app() as app:
            buy = buyer(app, connect, by_percent, think)
            heard = crowd([lambda order=order: buy(order) for order in orders])
        return self._all_bought(orders, heard), len(thought)

    def pooled(self, name: str) -> tuple[list[str], int]:
        assert self.pooler is not None
        url = self.pooler.dsn(self.shop.place.url)
        with PostgresPlace(url, self.shop.place.directory).app() as app:
            buy = buyer(app, lambda: psycopg.connect(url, prepare_threshold=None), by_percent)
            orders = [f"{name}-{nth}" for nth in range(WORKERS)]
            return self._all_bought(orders, crowd([lambda order=order: buy(order) for order in orders])), WORKERS

    def _all_bought(self, orders: list[str], heard: list[Any]) -> list[str]:
        stock = self.shop.stock()
        wrong = []
        for order, told in zip(orders, heard, strict=True):
            if told != f"reserved {order}" or stock.count(order) != 1:
                wrong.append(f"{order}: expected one row and its receipt, saw {stock.count(order)} rows and {told!r}")
        return wrong


# -- the user's side -----------------------------------------------------------------------------


def buyer(app: App, connect: Any, insert: Any, think: Any = lambda connection, order: None) -> Any:
    @app.transaction(connect=connect, retry=THRICE)
    def reserve(connection: Any, order: str) -> str:
        insert(connection, order)
        think(connection, order)
        return f"reserved {order}"

    @app.flow(key="order:{order}", lease=600.0)
    def buy(order: str) -> str:
        return reserve(order)

    return buy


def by_percent(db: Any, order: str) -> None:
    db.execute("INSERT INTO stock (name) VALUES (%s)", (order,))


def by_text(db: Any, order: str) -> None:
    db.execute(sqlalchemy.text("INSERT INTO stock (name) VALUES (:name)"), {"name": order})


@contextlib.contextmanager
def pool(url: str, **options: Any) -> Iterator[Any]:
    made = sqlalchemy.create_engine(
        f"postgresql+psycopg://{url.partition('://')[2]}", pool_size=2, max_overflow=0, **options
    )
    try:
        yield made
    finally:
        made.dispose()


def limited(url: str) -> Callable[[], Any]:
    return lambda: psycopg.connect(url, options=f"-c idle_in_transaction_session_timeout={IDLE}")


@contextlib.contextmanager
def hogged(server: PostgresServer, url: str) -> Iterator[None]:
    """Every connection that the server has is taken, the store's own are ended."""
    taken: list[psycopg.Connection[Any]] = []
    try:
        _take_all(server, taken)
        database = conninfo_to_dict(url)["dbname"]
        ended = taken[0].execute(
            "SELECT pid, pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (database,)
        )
        _wait_until_gone(taken[0], [pid for pid, _ in ended])
        _take_all(server, taken)
        yield
    finally:
        last, *others = taken
        pids = [connection.info.backend_pid for connection in others]
        for connection in others:
            connection.close()
        _wait_until_gone(last, pids)
        last.close()


def _take_all(server: PostgresServer, taken: list[psycopg.Connection[Any]]) -> None:
    with contextlib.suppress(psycopg.OperationalError):
        while True:
            taken.append(psycopg.connect(server.dsn(), autocommit=True))


def _wait_until_gone(witness: psycopg.Connection[Any], pids: list[int]) -> None:
    """An ended session occupies its slot until the server has noticed."""
    until = time.monotonic() + BOUND
    while witness.execute("SELECT 1 FROM pg_stat_activity WHERE pid = ANY(%s)", (pids,)).fetchone():
        assert time.monotonic() < until, "the sessions that were ended are still there"


def crowd(calls: list[Callable[[], Any]], seconds: float = BOUND) -> list[Any]:
    """All at once, each on a thread of its own: what each returned or raised, or that it did not end."""
    heard: list[Any] = [TimeoutError(f"did not end within {seconds:g} s")] * len(calls)

    def one(nth: int) -> None:
        try:
            heard[nth] = calls[nth]()
        except Exception as error:  # noqa: BLE001 - looked at by the caller
            heard[nth] = error

    threads = [threading.Thread(target=one, args=(nth,), daemon=True) for nth in range(len(calls))]
    for thread in threads:
        thread.start()
    end = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    return list(heard)
