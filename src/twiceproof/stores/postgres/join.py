"""The ledger in a user's PostgreSQL transaction: the server function of every commit, called on their connection."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Container, Sequence
from typing import Any

import msgspec
import psycopg

from ...clock import Clock, jitter
from ...errors import Misuse, StoreError
from ...operations import Operation, Sleep
from ...records import Batch, Conflict, Insert, Outcome, Written
from ..base import SpaceBusy
from ..user_drivers import Driver
from ..user_transaction import TransactionEnded
from ..waiting import held_elsewhere
from .codec import COMMIT_TYPES, commit_values, fetch_values, found, outcomes
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

# For inserts alone: what must be known, and the mark, in one statement; whether the mark stays shows when they land.
MARKED = f"""
SELECT {_TABLE}, pg_catalog.set_config('twiceproof.joined', $1::{TEXT}, true),
    pg_catalog.current_setting('transaction_isolation')"""
# A space is locked so that no sender of the same key is waited for; many locks would fill the server's table.
_COLUMNS = "space, kind, key, version, fence, nonce, created_at, updated_at, state, lease_until, queue, due_at, body"
_ROWS = """
    w.space, w.kind, w.key, n.number, 0, w.nonce, n.at, n.at, w.state, NULL, w.queue,
    n.at OPERATOR(pg_catalog.+) w.due, w.body"""
_STAMP = """pg_catalog.nextval('{schema}.twiceproof_number') OPERATOR(pg_catalog.+) 1 AS number,
    {schema}.twiceproof_now() AS at"""
_GIVEN = f"""w(space {TEXT}, kind {TEXT}, key {TEXT},
        nonce {TEXT}, state {TEXT}, queue {TEXT}, due pg_catalog.float8, body {TEXT})"""
INSERT_EACH = f"""
INSERT INTO {{schema}}.twiceproof_records ({_COLUMNS})
SELECT {_ROWS}
FROM (SELECT {_STAMP}) AS n, pg_catalog.json_to_recordset($1::{TEXT}::pg_catalog.json) AS {_GIVEN}
WHERE CASE WHEN pg_catalog.current_setting('twiceproof.joined', true) {EQ} $2::{TEXT}
    THEN NOT $3::{TEXT}::pg_catalog.bool OR {{schema}}.twiceproof_hold(w.space) ELSE false END
ON CONFLICT DO NOTHING RETURNING nonce"""  # noqa: S608 - constants
# The check, the mark and the inserts in one statement, for a transaction that has a number already: the user's own rows
# came first, so that it is surely open. Otherwise nothing is inserted, and INSERT_EACH follows.
CHECK_AND_INSERT = f"""
WITH about AS MATERIALIZED (
    SELECT {_TABLE} AS place, pg_catalog.set_config('twiceproof.joined', $1::{TEXT}, true) AS mark,
        pg_catalog.pg_current_xact_id_if_assigned() IS NOT NULL AS is_open
), stamp AS MATERIALIZED (
    SELECT {_STAMP} FROM about WHERE is_open AND place {EQ} $2::{TEXT}
), landed AS (
    INSERT INTO {{schema}}.twiceproof_records ({_COLUMNS})
    SELECT {_ROWS}
    FROM stamp AS n, pg_catalog.json_to_recordset($3::{TEXT}::pg_catalog.json) AS {_GIVEN}
    WHERE NOT $4::{TEXT}::pg_catalog.bool OR {{schema}}.twiceproof_hold(w.space)
    ON CONFLICT DO NOTHING RETURNING nonce
)
SELECT place, (SELECT pg_catalog.string_agg(nonce, ' ') FROM landed) FROM about"""  # noqa: S608 - constants
_FETCHED = ", ".join(f"${n}::{TEXT}" for n in range(2, 6))
FETCH = (
    f"SELECT CASE WHEN pg_catalog.current_setting('twiceproof.joined', true) {EQ} $1::{TEXT} "
    f"THEN {{schema}}.twiceproof_fetch({_FETCHED})::{TEXT} END"
)
FEW_LOCKS = 100
LANDED = Written("", 0, 0.0)
NO_LEDGER = ("3F000", "42P01", "42883")  # there is no such schema, table, function


class PostgresJoins:
    dialect = "postgresql"

    def __init__(self, parameters: dict[str, Any], clock: Clock, ask: Ask, *, schema: str, patience: float) -> None:
        self._parameters = parameters
        self._ask = ask
        self._asks_where = in_schema(WHERE, schema)
        self._asks_whose = in_schema(WHOSE, schema)
        self._found, self._land = (in_schema(sql, schema).decode() for sql in (FOUND, LAND))
        self._marked, self._check_and_insert, self._insert_each, self._fetch = (
            in_schema(sql, schema).decode() for sql in (MARKED, CHECK_AND_INSERT, INSERT_EACH, FETCH)
        )
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
        self._refuse_other_database(where, "effect and ledger entry", 'Use @app.step(repeat="keyed") or check(…).')
        if marked != mark:
            raise Misuse("The connection commits each statement by itself; turn its autocommit mode off.")
        if isolation != "read committed":
            raise Misuse(f"The ledger needs READ COMMITTED, and this transaction is {isolation}; set it so.")
        if durable == "off":
            raise Misuse("The connection would lose its last commits in a crash; set synchronous_commit=on.")
        return str(session)

    def _refuse_other_database(self, where: str, what: str, advice: str) -> None:
        if where != self._where:
            raise Misuse(
                f"The connection is to another database than the ledger's ({where}, not {self._where}); "
                f"{what} commit together only in one. {advice}"
            )

    # -- inserts alone ---------------------------------------------------------------------------

    def _refuse_other_messages(self, where: str) -> None:
        self._refuse_other_database(where, "your rows and the messages", "Send from a flow instead: app.send(…).")

    def check_for_inserts(self, driver: Driver, mark: str, *, ordered: bool) -> Operation[None]:
        yield from driver.adopt()
        self._where = self._where or self._ask_where()
        ((where, _, isolation),) = yield from driver.rows(self._marked, [mark])
        self._refuse_other_messages(where)
        if ordered and isolation != "read committed":
            raise Misuse(
                f"An ordered message needs READ COMMITTED, and this transaction is {isolation}; set it so, or leave "
                "out order=."
            )

    def insert_each(
        self, driver: Driver, mark: str, batches: Sequence[Batch], *, first: bool
    ) -> Operation[Sequence[Outcome]]:
        known: dict[str, Outcome] = {}
        locks = "t" if len(batches) <= FEW_LOCKS else "f"
        if first:
            known |= yield from self._check_and_land(driver, mark, batches, locks)
        left, deadline = _left(batches, known), self._clock.monotonic() + self._patience
        while left:
            landed = yield from driver.rows(self._insert_each, [_inserts(left), mark, locks])
            known |= {str(nonce): LANDED for (nonce,) in landed}
            left = _left(left, known)
            if left:
                known |= yield from self._found_instead(driver, mark, left)
                left = _left(left, known)
            if left:  # of another transaction that has not ended
                if self._clock.monotonic() >= deadline:
                    raise held_elsewhere(unsure=False)
                yield from Sleep(self._clock, jitter(PAUSE))
        return [known[batch.nonce] for batch in batches]

    def _check_and_land(
        self, driver: Driver, mark: str, batches: Sequence[Batch], locks: str
    ) -> Operation[dict[str, Outcome]]:
        """Return what has landed: nothing where the transaction has written nothing so far."""
        yield from driver.adopt()
        self._where = self._where or self._ask_where()
        values = [mark, self._where, _inserts(batches), locks]
        try:
            ((where, landed),) = yield from driver.rows(self._check_and_insert, values)
        except Exception as error:
            if _state_of(error) not in NO_LEDGER:
                raise
            where, landed = "a database without a ledger", ""
        self._refuse_other_messages(where)
        return dict.fromkeys((landed or "").split(), LANDED)

    def _found_instead(self, driver: Driver, mark: str, left: Sequence[Batch]) -> Operation[dict[str, Outcome]]:
        values = [value.decode() for value in fetch_values([batch.writes[0].at for batch in left]) if value is not None]
        ((text,),) = yield from driver.rows(self._fetch, [mark, *values])
        if text is None:
            raise Misuse("The connection commits each statement by itself; open a transaction on it first.")
        there = zip(left, found(text.encode()), strict=True)
        return {b.nonce: Conflict(b.writes[0].at, one.record, one.now) for b, one in there if one.record is not None}

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
                raise TransactionEnded
            (outcome,) = outcomes([batch], text.encode())
            if not isinstance(outcome, SpaceBusy):
                return outcome
            if self._clock.monotonic() >= deadline:
                raise held_elsewhere(unsure=False)
            yield from Sleep(self._clock, jitter(PAUSE))

    def allow_end(self, driver: Driver) -> None: ...

    def prove(self, landed: Sequence[Batch]) -> None:
        """What a COMMIT has acknowledged is there."""

    def explain(self, error: BaseException) -> BaseException:
        return error


def _texts(batch: Batch) -> Sequence[str | None]:
    return [None if value is None else value.decode() for value in commit_values([batch])]


def _state_of(error: BaseException | None) -> str:
    """The server's code for it, also where SQLAlchemy or Django has wrapped the driver's error."""
    while error is not None:
        if state := getattr(error, "sqlstate", None) or getattr(error, "pgcode", None):
            return str(state)
        error = getattr(error, "orig", None) or error.__cause__
    return ""


def _left(batches: Sequence[Batch], known: Container[str]) -> list[Batch]:
    return [batch for batch in batches if batch.nonce not in known]


def _inserts(batches: Sequence[Batch]) -> str:
    rows = [
        {
            "space": write.at.space,
            "kind": write.at.kind,
            "key": write.at.key,
            "nonce": batch.nonce,
            "state": write.state,
            "queue": write.queue,
            "due": write.due_in,
            "body": write.body,
        }
        for batch in batches
        for write in batch.writes
        if isinstance(write, Insert)
    ]
    return msgspec.json.encode(rows).decode()
