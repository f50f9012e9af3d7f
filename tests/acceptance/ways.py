"""Ways to a database: each driver and wrapper that a user may bring to `@app.transaction`, doing the same work."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import sqlite3
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import asyncpg
import psycopg
import pymysql
import sqlalchemy
from sqlalchemy import orm
from sqlalchemy.ext import asyncio as sa_asyncio

from tests.acceptance.places import Place
from twiceproof import Retry
from twiceproof.stores.mariadb.schema import connection_parameters

LEASE = 30.0
ONCE = Retry(attempts=1)


class Base(orm.DeclarativeBase):
    pass


class Stock(Base):
    __tablename__ = "stock"
    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    name: orm.Mapped[str]


def nothing(*_: Any) -> None:
    """What happens in between by default."""


@dataclass(frozen=True)
class Way:
    """`source` makes what is given as `connect=`; `insert` is the user's work."""

    name: str
    store: str
    awaited: bool
    source: Callable[[Place], Any]
    insert: Callable[[Any, str], Any]

    @property
    def dials_itself(self) -> bool:
        return self.source is default

    def call(self, place: Place, app: Any, order: str, **hooks: Any) -> Any:
        """Run the flow for an order. Hooks: `before` the step, `during` it, and the step's options."""
        if self.awaited:
            return asyncio.run(self._awaited_call(place, app, order, hooks))
        with self.source(place) as connect:
            return self._blocking(app, connect, **hooks)(order)

    async def _awaited_call(self, place: Place, app: Any, order: str, hooks: dict[str, Any]) -> Any:
        async with self.source(place) as connect:
            return await self._awaiting(app, connect, **hooks)(order)

    def _blocking(self, app: Any, connect: Any, before: Any = nothing, during: Any = nothing, **options: Any) -> Any:
        @app.transaction(connect=connect, **{"retry": ONCE} | options)
        def reserve(connection: Any, order: str) -> str:
            self.insert(connection, order)
            during(connection)
            return f"reserved {order}"

        @app.flow(key="order:{order}", lease=LEASE)
        def buy(order: str) -> str:
            before()
            return reserve(order)

        return buy

    def _awaiting(self, app: Any, connect: Any, before: Any = nothing, during: Any = nothing, **options: Any) -> Any:
        @app.transaction(connect=connect, **{"retry": ONCE} | options)
        async def reserve(connection: Any, order: str) -> str:
            await now(self.insert(connection, order))
            await now(during(connection))
            return f"reserved {order}"

        @app.flow(key="order:{order}", lease=LEASE)
        async def buy(order: str) -> str:
            before()
            return await reserve(order)

        return buy


async def now(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


def elsewhere(work: Callable[[], Any]) -> Any:
    """On another thread, so that an event loop can be had there; what it raised is raised here."""
    box: list[Any] = []

    def run() -> None:
        try:
            box.append((work(), None))
        except BaseException as error:  # noqa: BLE001
            box.append((None, error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    value, error = box[0]
    if error is not None:
        raise error
    return value


# -- sources -------------------------------------------------------------------------------------


class Plain(contextlib.nullcontext):
    """A `connect=` with nothing to close, for `with` and `async with` alike."""


def default(place: Place) -> Any:
    return Plain(None)


def file_of(place: Place) -> str:
    return str(place.directory / "claims.db")


def psycopg_by_itself(place: Place) -> Any:
    return Plain(lambda: psycopg.connect(place.url, autocommit=True))


def pymysql_by_itself(place: Place) -> Any:
    return Plain(lambda: pymysql.connect(**connection_parameters(place.url), autocommit=True))


def asyncpg_connection(place: Place) -> Any:
    return Plain(lambda: asyncpg.connect(place.url))


@contextlib.asynccontextmanager
async def asyncpg_pool(place: Place) -> Any:
    async with asyncpg.create_pool(place.url, min_size=1, max_size=2) as pool:
        yield pool


def lent(place: Place) -> Any:
    """A function that lends a connection for the length of a block, as pools do."""

    @contextlib.contextmanager
    def connection() -> Any:
        with psycopg.connect(place.url) as db:
            yield db

    return Plain(connection)


def alchemy(place: Place, driver: str) -> str:
    if driver == "sqlite":
        return f"sqlite:///{file_of(place)}"
    if driver == "pymysql":
        return f"mariadb+{driver}://{place.url.partition('://')[2]}"
    return f"postgresql+{driver}://{place.url.partition('://')[2]}"


def engine(driver: str, *, session: bool = False, **options: Any) -> Callable[[Place], Any]:
    @contextlib.contextmanager
    def source(place: Place) -> Any:
        made = sqlalchemy.create_engine(alchemy(place, driver), **options)
        try:
            yield orm.sessionmaker(made) if session else made
        finally:
            made.dispose()

    return source


def awaited_engine(driver: str, *, session: bool = False) -> Callable[[Place], Any]:
    @contextlib.asynccontextmanager
    async def source(place: Place) -> Any:
        made = sa_asyncio.create_async_engine(alchemy(place, driver))
        try:
            yield sa_asyncio.async_sessionmaker(made) if session else made
        finally:
            await made.dispose()

    return source


def django_connection(engine: str, *, given: str = "function") -> Callable[[Place], Any]:
    """The thread's own connection under an alias of this place's own."""

    @contextlib.contextmanager
    def source(place: Place) -> Any:
        connections = django_connections()
        where = {"NAME": file_of(place)}
        if engine == "postgresql":
            found = psycopg.conninfo.conninfo_to_dict(place.url)
            where = {
                "NAME": found["dbname"],
                "USER": found.get("user", ""),
                "PASSWORD": found.get("password", ""),
                "HOST": found.get("host", ""),
                "PORT": str(found.get("port", "")),
            }
        if engine == "mysql":
            where = django_mariadb(place)
        alias = f"shop{len(connections.settings)}"
        added = connections.configure_settings(
            {"default": {"ENGINE": ""}, alias: {"ENGINE": f"django.db.backends.{engine}", **where}}
        )
        connections.settings[alias] = added[alias]
        try:
            yield connections[alias] if given == "connection" else lambda: connections[alias]
        finally:
            connections[alias].close()
            del connections[alias]

    return source


def django_mariadb(place: Place) -> dict[str, str]:
    """PyMySQL in place of mysqlclient."""
    pymysql.install_as_MySQLdb()
    found = connection_parameters(place.url)
    return {name.upper(): str(found[name]) for name in ("user", "password", "host", "port")} | {
        "NAME": str(found["database"])
    }


def django_connections() -> Any:
    import django
    from django.conf import settings

    if not settings.configured:
        settings.configure(SECRET_KEY="x", INSTALLED_APPS=[], USE_TZ=True)
        django.setup()
    from django.db import connections

    return connections


def by_cursor(connection: Any, order: str) -> Any:
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO stock (name) VALUES (%s)", [order])


def by_model(connection: Any, order: str) -> Any:
    """In an atomic block of its own, as code that knows nothing of the step is written."""
    from django.db import transaction

    with transaction.atomic(using=connection.alias):
        django_stock().objects.using(connection.alias).create(name=order)


@functools.cache
def django_stock() -> Any:
    from django.db import models

    class DjangoStock(models.Model):
        name = models.TextField()

        class Meta:
            app_label = "shop"
            db_table = "stock"
            managed = False

    return DjangoStock


# -- the user's work -----------------------------------------------------------------------------


def by_question_mark(db: sqlite3.Connection, order: str) -> Any:
    db.execute("INSERT INTO stock (name) VALUES (?)", (order,))


def by_percent(db: Any, order: str) -> Any:
    return db.execute("INSERT INTO stock (name) VALUES (%s)", (order,))


def by_dollar(db: Any, order: str) -> Any:
    return db.execute("INSERT INTO stock (name) VALUES ($1)", order)


def by_text(db: Any, order: str) -> Any:
    return db.execute(sqlalchemy.text("INSERT INTO stock (name) VALUES (:name)"), {"name": order})


def by_object(session: Any, order: str) -> Any:
    """Kept back by the session until it is flushed."""
    session.add(Stock(name=order))


WAYS = [
    Way("sqlite3", "sqlite", False, default, by_question_mark),
    Way("sqlite3 awaited", "sqlite", True, default, by_question_mark),
    Way(
        "sqlite3 of the user",
        "sqlite",
        False,
        lambda place: Plain(lambda: sqlite3.connect(file_of(place))),
        by_question_mark,
    ),
    Way("SQLAlchemy connection, SQLite", "sqlite", False, engine("sqlite"), by_text),
    Way("SQLAlchemy session, SQLite", "sqlite", False, engine("sqlite", session=True), by_object),
    Way("Django, SQLite", "sqlite", False, django_connection("sqlite3"), by_cursor),
    Way("Django models, SQLite", "sqlite", False, django_connection("sqlite3", given="connection"), by_model),
    Way("psycopg", "postgres", False, default, by_percent),
    Way("psycopg awaited", "postgres", True, default, by_percent),
    Way("psycopg in autocommit", "postgres", False, psycopg_by_itself, by_percent),
    Way("psycopg lent", "postgres", False, lent, by_percent),
    Way("Django, psycopg", "postgres", False, django_connection("postgresql"), by_cursor),
    Way("Django models, psycopg", "postgres", False, django_connection("postgresql", given="connection"), by_model),
    Way("asyncpg", "postgres", True, asyncpg_connection, by_dollar),
    Way("asyncpg pool", "postgres", True, asyncpg_pool, by_dollar),
    Way("SQLAlchemy connection, psycopg", "postgres", False, engine("psycopg"), by_text),
    Way("SQLAlchemy session, psycopg", "postgres", False, engine("psycopg", session=True), by_object),
    Way("SQLAlchemy awaited, psycopg", "postgres", True, awaited_engine("psycopg"), by_text),
    Way("SQLAlchemy awaited, asyncpg", "postgres", True, awaited_engine("asyncpg"), by_text),
    Way("SQLAlchemy awaited session, asyncpg", "postgres", True, awaited_engine("asyncpg", session=True), by_object),
    Way("PyMySQL", "mariadb", False, default, by_cursor),
    Way("PyMySQL awaited", "mariadb", True, default, by_cursor),
    Way("PyMySQL in autocommit", "mariadb", False, pymysql_by_itself, by_cursor),
    Way("SQLAlchemy connection, PyMySQL", "mariadb", False, engine("pymysql"), by_text),
    Way("SQLAlchemy session, PyMySQL", "mariadb", False, engine("pymysql", session=True), by_object),
    Way("Django, PyMySQL", "mariadb", False, django_connection("mysql"), by_cursor),
    Way("Django models, PyMySQL", "mariadb", False, django_connection("mysql", given="connection"), by_model),
]
