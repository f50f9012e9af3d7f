"""The ledger inside a user's own transaction: Join, JoinedStore."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from msgspec import Struct

from ..errors import Misuse
from ..operations import Operation
from ..records import Batch, Insert, Outcome, Write, Written
from .user_drivers import Driver, MaybeAwait, is_connection, is_django
from .validate import validate_writes

__all__ = ["Join", "JoinedStore", "Joins", "Opened", "TransactionEnded", "open_from"]


class TransactionEnded(Exception):
    """The transaction that was opened has been ended by other code. Internal to the stores."""


class Joins(Protocol):
    """What a SQL engine offers for it, as `engine.joins`. `mark` names the transaction, to be known again."""

    dialect: str

    def connect(self, *, awaited: bool) -> Any:
        """A connection to the store's own database, as the user's function gets it where no connect= is given."""

    def is_own(self, driver: Driver) -> Operation[bool]:
        """Whether the connection is to the store's own database, as the same user, so that the ledger may be written
        on it."""

    def lock(self, driver: Driver) -> Operation[None]:
        """What is needed once the transaction is ours to open."""

    def check(self, driver: Driver, mark: str) -> Operation[str]:
        """Refuse what is not the store's own database, or would not keep what is acknowledged.

        What the server knows the transaction by, for `end`.
        """

    def land(self, driver: Driver, mark: str, batch: Batch) -> Operation[Outcome]:
        """Check the batch's conditions and write it. Raises TransactionEnded if it is not the marked one."""

    def check_for_inserts(self, driver: Driver, mark: str, *, ordered: bool) -> Operation[None]:
        """As `check`, for a transaction of which only inserts are part that share the fate of the user's own rows: any
        isolation level and durability will do, unless the inserts are to be in the order of their commits."""

    def insert_each(
        self, driver: Driver, mark: str, batches: Sequence[Batch], *, first: bool
    ) -> Operation[Sequence[Outcome]]:
        """Land batches of one Insert each, with one statement where the server allows it.

        `first`: the transaction was not looked at yet; what `check_for_inserts` refuses is refused here.
        """

    def allow_end(self, driver: Driver) -> None:
        """Called before we end the transaction: until then its end is refused where the driver can do so."""

    def prove(self, landed: Sequence[Batch]) -> None:
        """Called after our commit. Raises if what `land` has written is not there."""

    def end(self, session: str) -> None:
        """The transaction that `check` reported was given up: the server need not keep it."""

    def explain(self, error: BaseException) -> BaseException:
        """An error of the user's work, with a clearer message where there is one."""


class JoinedStore(Protocol):
    """A store whose records can be written in a user's own transaction."""

    joins: Joins

    def join(self, connection: Any) -> Join:
        """The ledger, in the transaction that is open, or will be, on this connection."""


class Join:
    """One transaction. Used by hand: open it yourself, `write`, then commit. Write last, for the space stays locked."""

    def __init__(self, joins: Joins, driver: Driver, *, ids: Callable[[], str], batch_limit: int) -> None:
        self._joins = joins
        self._driver = driver
        self._ids = ids
        self._limit = batch_limit
        self._mark = ""
        self._session = ""
        self._landed: list[Batch] = []
        if driver.dialect != joins.dialect:
            raise Misuse(
                f"The connection is to {driver.dialect}, and the ledger is in {joins.dialect}; effect and ledger entry "
                'commit together only in one database. Use @app.step(repeat="keyed") or check(…) for another one.'
            )

    @property
    def handle(self) -> Any:
        """What the user works with."""
        return self._driver.handle

    def begin(self) -> Operation[None]:
        """Open it. Nothing but `commit` here can end it well."""
        yield from self._driver.begin()
        yield from self._joins.lock(self._driver)
        yield from self._check()

    def write(self, *writes: Write) -> Operation[Outcome]:
        """As a store's `write`; it lands when the transaction is committed."""
        validate_writes(writes, self._limit)
        if not self._mark:
            yield from self._driver.adopt()
            yield from self._check()
        yield from self._driver.flush()
        batch = Batch(writes, self._ids())
        outcome = yield from self._joins.land(self._driver, self._mark, batch)
        if isinstance(outcome, Written):
            self._landed.append(batch)
        return outcome

    def insert_each(self, inserts: Sequence[Insert], *, ordered: bool) -> Operation[Sequence[Outcome]]:
        """Insert records of spaces of their own in the transaction that is open, each independently of the others.

        `ordered`: the caller writes records to one space afterwards, whose order is that of the commits.
        """
        for insert in inserts:
            validate_writes((insert,), self._limit)
        yield from self._driver.flush()
        first, mark = not self._mark, self._mark or self._ids()
        if first and (ordered or not inserts):
            yield from self._joins.check_for_inserts(self._driver, mark, ordered=ordered)
            first = False
        batches = [Batch((insert,), self._ids()) for insert in inserts]
        landed: Sequence[Outcome] = ()
        if batches:
            landed = yield from self._joins.insert_each(self._driver, mark, batches, first=first)
        self._mark = mark
        return landed

    def _check(self) -> Operation[None]:
        mark = self._ids()
        self._session = yield from self._joins.check(self._driver, mark)
        self._mark = mark

    def commit(self) -> Operation[None]:
        yield from self._driver.flush()
        self._joins.allow_end(self._driver)
        yield from self._driver.commit()
        self._joins.prove(self._landed)

    def rollback(self) -> Operation[None]:
        """Of a connection that is broken, its end is the rollback."""
        with contextlib.suppress(Exception):
            self._joins.allow_end(self._driver)
        with contextlib.suppress(Exception):
            yield from self._driver.rollback()

    def drop(self) -> None:
        self._driver.drop()

    def cut(self) -> None:
        """From another thread: a caller that waits on the connection gets an error."""
        self._driver.cut()
        if self._session:
            self._joins.end(self._session)

    def explain(self, error: BaseException) -> BaseException:
        return self._joins.explain(error)


class Opened(Struct, frozen=True):
    """A connection, and how it is given back."""

    connection: Any
    close: Callable[[], Any]


def open_from(source: Any) -> Operation[Opened]:
    """From a SQLAlchemy engine, a pool, Django, or a function: of a connection, a session, a block that lends one."""
    if is_django(source):
        from .django_driver import django_source

        return _of_django((yield from MaybeAwait(django_source(source))))
    if is_connection(source):
        raise Misuse("connect= wants something that makes connections, not one; write it as connect=lambda: …")
    if hasattr(source, "acquire") and hasattr(source, "release"):  # asyncpg's pool
        connection = yield from MaybeAwait(source.acquire)
        return Opened(connection, lambda: source.release(connection))
    made = yield from MaybeAwait(_maker(source))
    if is_django(made):
        return _of_django(made)
    if is_connection(made):
        return Opened(made, made.close)
    return (yield from _lent(made))


def _of_django(connection: Any) -> Opened:
    """It stays its thread's: Django's own settings say for how long it is kept."""
    return Opened(connection, connection.close_if_unusable_or_obsolete)


def _maker(source: Any) -> Callable[[], Any]:
    for maker in (source, getattr(source, "connect", None), getattr(source, "connection", None)):
        if callable(maker):  # a function or a sessionmaker; SQLAlchemy's engines; psycopg's pools
            return maker  # type: ignore[no-any-return]
    raise Misuse(f"connect={source!r} makes no connections; give a function, a SQLAlchemy engine or a pool.")


def _lent(made: Any) -> Operation[Opened]:
    """A context manager: entered now, left when the step is over."""
    kind = type(made)
    if hasattr(kind, "__aenter__"):
        connection = yield from MaybeAwait(lambda: kind.__aenter__(made))
        return Opened(connection, lambda: kind.__aexit__(made, None, None, None))
    if hasattr(kind, "__enter__"):
        connection = yield from MaybeAwait(lambda: kind.__enter__(made))
        return Opened(connection, lambda: kind.__exit__(made, None, None, None))
    return Opened(made, lambda: None)  # `driver_of` refuses it if it is no connection
