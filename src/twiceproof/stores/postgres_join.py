"""The ledger in a user's PostgreSQL transaction: the server function of every commit, called on their connection."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import psycopg

from ..clock import Clock, jitter
from ..drive import Operation
from ..errors import Misuse, StoreError
from ..records import Batch, Outcome
from .base import Again
from .gather import held_elsewhere
from .join import Torn
from .joins.do import Pause
from .joins.driver import Driver
from .postgres_rows import COMMIT_TYPES, commit_values, outcomes

__all__ = ["WHERE", "PostgresJoins"]

PAUSE = 0.005

# Which table of which database of which server: what a name or an address may lie about.
_TABLE = """
(SELECT system_identifier FROM pg_control_system()) || '/'
|| (SELECT oid FROM pg_database WHERE datname = current_database()) || '/'
|| coalesce(to_regclass('twiceproof_records')::oid::text, 'no table of twiceproof')"""
WHERE = f"SELECT {_TABLE}".encode()
# The mark goes with its transaction. On a connection that commits by itself it is gone at once.
MARK = "SELECT set_config('twiceproof.joined', $1, true)"
FOUND = f"""
SELECT {_TABLE}, coalesce(current_setting('twiceproof.joined', true), ''), current_setting('transaction_isolation'),
    current_setting('synchronous_commit')"""
# Every value travels as text, whatever the driver would make of a list or a number.
_VALUES = ", ".join(f"${n}::text::{kind}" for n, kind in enumerate(COMMIT_TYPES, 2))
LAND = (
    "SELECT CASE WHEN current_setting('twiceproof.joined', true) = $1::text "
    f"THEN twiceproof_commit({_VALUES})::text END"
)


class PostgresJoins:
    dialect = "postgresql"

    def __init__(
        self, parameters: dict[str, Any], clock: Clock, where: Callable[[], str], *, patience: float
    ) -> None:  # fmt: skip
        self._parameters = parameters
        self._clock = clock
        self._ask_where = where
        self._where = ""
        self._patience = patience

    def learn(self) -> None:
        """Before anybody has a transaction open: behind a pooler there may be no second connection for asking."""
        with contextlib.suppress(StoreError):  # whoever has no transactions does not need to know
            self._where = self._ask_where()

    def connect(self, *, awaited: bool) -> Any:
        if awaited:
            return psycopg.AsyncConnection.connect(**self._parameters)
        return psycopg.connect(**self._parameters)

    def lock(self, driver: Driver) -> Operation[None]:
        """Nothing here: the space's lock is taken by the ledger's write, and held from there to the commit."""
        yield from ()

    def check(self, driver: Driver, mark: str) -> Operation[None]:
        self._where = self._where or self._ask_where()
        yield from driver.rows(MARK, [mark])
        ((where, marked, isolation, durable),) = yield from driver.rows(FOUND, [])
        if where != self._where:
            raise Misuse(
                f"The connection is to another database or schema than the ledger's ({where}, not {self._where}); "
                'effect and ledger entry commit together only in one. Use @app.step(repeat="keyed") or check(…).'
            )
        if marked != mark:
            raise Misuse("The connection commits each statement by itself; turn its autocommit mode off.")
        if isolation != "read committed":
            raise Misuse(f"The ledger needs READ COMMITTED, and this transaction is {isolation}; set it so.")
        if durable == "off":
            raise Misuse("The connection would lose its last commits in a crash; set synchronous_commit=on.")

    def land(self, driver: Driver, mark: str, batch: Batch) -> Operation[Outcome]:
        """Never waits in the server: who holds the space may be waiting for a row of this very transaction."""
        values = [mark, *_texts(batch)]
        deadline = self._clock.monotonic() + self._patience
        while True:
            ((text,),) = yield from driver.rows(LAND, values)
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
