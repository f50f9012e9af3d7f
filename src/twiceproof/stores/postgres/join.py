"""The ledger in a user's PostgreSQL transaction: the server function of every commit, called on their connection."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import psycopg

from ...clock import Clock, jitter
from ...errors import Misuse, StoreError
from ...operations import Operation
from ...records import Batch, Outcome
from ..base import Again
from ..user_drivers import Driver, Pause
from ..user_transaction import Torn
from ..waiting import held_elsewhere
from .codec import COMMIT_TYPES, commit_values, outcomes
from .schema import EQ, TEXT, in_schema

__all__ = ["PostgresJoins"]


Ask = Callable[[bytes, Sequence[bytes]], Sequence[Sequence[bytes | None]]]

PAUSE = 0.005

# Which table of which database of which server: what a name or an address may lie about.
_TABLE = f"""
pg_catalog.concat((SELECT system_identifier FROM pg_catalog.pg_control_system()), '/',
(SELECT oid FROM pg_catalog.pg_database WHERE datname {EQ} pg_catalog.current_database()), '/',
coalesce(pg_catalog.to_regclass('{{schema}}.twiceproof_records')::pg_catalog.oid::{TEXT}, 'no table of twiceproof'))
"""  # noqa: S608 - constants
WHERE = f"SELECT {_TABLE}"
WHOSE = f"SELECT {_TABLE}, current_user::{TEXT}"
# The mark goes with its transaction. On a connection that commits by itself it is gone at once.
MARK = f"SELECT pg_catalog.set_config('twiceproof.joined', $1::{TEXT}, true)"
FOUND = f"""
SELECT {_TABLE}, coalesce(pg_catalog.current_setting('twiceproof.joined', true), ''),
    pg_catalog.current_setting('transaction_isolation'), pg_catalog.current_setting('synchronous_commit'),
    pg_catalog.concat(pg_catalog.pg_backend_pid(), '/', extract(epoch FROM pg_catalog.now()))"""  # noqa: S608 - constants
# This very transaction, and no later one of the same session. One that waits for a standby has committed.
END = f"""
SELECT pg_catalog.pg_terminate_backend(pid) FROM pg_catalog.pg_stat_activity
WHERE pid {EQ} $1::int AND extract(epoch FROM xact_start) {EQ} $2::numeric
    AND NOT coalesce(wait_event {EQ} 'SyncRep', false)""".encode()  # noqa: S608 - constants
# Every value travels as text, whatever the driver would make of a list or a number.
_VALUES = ", ".join(f"${n}::{TEXT}::{kind}" for n, kind in enumerate(COMMIT_TYPES, 2))
LAND = (
    f"SELECT CASE WHEN pg_catalog.current_setting('twiceproof.joined', true) {EQ} $1::{TEXT} "
    f"THEN {{schema}}.twiceproof_commit({_VALUES})::{TEXT} END"
)


class PostgresJoins:
    dialect = "postgresql"

    def __init__(self, parameters: dict[str, Any], clock: Clock, ask: Ask, *, schema: str, patience: float) -> None:
        self._parameters = parameters
        self._ask = ask
        self._asks_where = in_schema(WHERE, schema)
        self._asks_whose = in_schema(WHOSE, schema)
        self._found, self._land = (in_schema(sql, schema).decode() for sql in (FOUND, LAND))
        self._clock = clock
        self._where = ""
        self._patience = patience

    def _ask_where(self) -> str:
        ((where,),) = self._ask(self._asks_where, ())
        return (where or b"").decode()

    def learn(self) -> None:
        """Before a transaction is open: behind a pooler there may be no second connection to ask on."""
        with contextlib.suppress(StoreError):  # needed by users with transactions only
            self._where = self._ask_where()

    def connect(self, *, awaited: bool) -> Any:
        if awaited:
            return psycopg.AsyncConnection.connect(**self._parameters)
        return psycopg.connect(**self._parameters)

    def is_own(self, driver: Driver) -> Operation[bool]:
        ((where, user),) = yield from driver.rows(self._asks_whose.decode(), [])
        ((our_where, our_user),) = self._ask(self._asks_whose, ())
        return (where, user) == ((our_where or b"").decode(), (our_user or b"").decode())

    def lock(self, driver: Driver) -> Operation[None]:
        """Nothing here: the space's lock is taken by the ledger's write, and held from there to the commit."""
        yield from ()

    def check(self, driver: Driver, mark: str) -> Operation[str]:
        self._where = self._where or self._ask_where()
        yield from driver.rows(MARK, [mark])
        ((where, marked, isolation, durable, session),) = yield from driver.rows(self._found, [])
        if where != self._where:
            raise Misuse(
                f"The connection is to another database than the ledger's ({where}, not {self._where}); "
                'effect and ledger entry commit together only in one. Use @app.step(repeat="keyed") or check(…).'
            )
        if marked != mark:
            raise Misuse("The connection commits each statement by itself; turn its autocommit mode off.")
        if isolation != "read committed":
            raise Misuse(f"The ledger needs READ COMMITTED, and this transaction is {isolation}; set it so.")
        if durable == "off":
            raise Misuse("The connection would lose its last commits in a crash; set synchronous_commit=on.")
        return str(session)

    def end(self, session: str) -> None:
        """Its connection was cut here, but with a silent network the server does not learn of it."""
        pid, _, began = session.partition("/")
        with contextlib.suppress(Exception):  # a user's own role may be one that we may not end
            self._ask(END, [pid.encode(), began.encode()])

    def land(self, driver: Driver, mark: str, batch: Batch) -> Operation[Outcome]:
        """Never waits in the server: who holds the space may be waiting for a row of this very transaction."""
        values = [mark, *_texts(batch)]
        deadline = self._clock.monotonic() + self._patience
        while True:
            ((text,),) = yield from driver.rows(self._land, values)
            if text is None:
                raise Torn
            (outcome,) = outcomes([batch], text.encode())
            if not isinstance(outcome, Again):
                return outcome
            if self._clock.monotonic() >= deadline:
                raise held_elsewhere(unsure=False)
            yield from Pause(self._clock, jitter(PAUSE))

    def loosen(self, driver: Driver) -> None: ...

    def explain(self, error: BaseException) -> BaseException:
        return error


def _texts(batch: Batch) -> Sequence[str | None]:
    return [None if value is None else value.decode() for value in commit_values([batch])]
