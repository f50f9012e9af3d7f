"""The ledger in a user's MariaDB transaction: read with locks, then written, on their connection.

A locking read sees the latest commit at any isolation level. No statement waits for a lock: the holder of a record may
be waiting for a row of this very transaction.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any

import pymysql
from pymysql.cursors import Cursor

from ...clock import Clock, jitter
from ...errors import Misuse
from ...operations import Inline, Operation, Sleep
from ...records import Address, Batch, Conflict, Outcome, Record, Written
from ..base import SpaceBusy
from ..user_drivers import BlockingDriver, Driver, in_percent
from ..user_transaction import TransactionEnded
from ..waiting import held_elsewhere
from .connection import DEADLOCK, HELD, MISFITTING, DriverConnection
from .rows import (
    STEP,
    LedgerSql,
    Row,
    Statement,
    inserts_any,
    marked,
    misfit_of,
    record_of,
    text_of,
    written,
)

__all__ = ["MariadbJoins", "PymysqlDriver"]

Ask = Callable[..., Sequence[Sequence[Row]]]

PAUSE = 0.005
MANY = 200  # inserts of one statement, for which one drawn number is enough
NO_SAVEPOINT, NO_TABLE, NOT_ALLOWED = 1305, 1146, 1142
NODE = "CONCAT(@@hostname, ':', @@port)"
AT_ONCE = "SET STATEMENT innodb_lock_wait_timeout = 0 FOR "
READ_COMMITTED = "SET SESSION tx_isolation = 'READ-COMMITTED'"
BY_ITSELF = "The connection commits each statement by itself; turn its autocommit mode off, or open a transaction."


class MariadbJoins:
    dialect = "mysql"

    def __init__(self, parameters: dict[str, Any], clock: Clock, ask: Ask, sql: LedgerSql, *, patience: float) -> None:
        self._parameters = parameters
        self._clock = clock
        self._ask = ask
        self._sql = sql
        self._patience = patience
        server = "@@wsrep_cluster_name" if sql.galera else NODE
        facts = f"(SELECT value FROM {sql.ledger}.twiceproof_facts WHERE name = 'ledger')"  # noqa: S608
        self._where = f"CONCAT({server}, '/', {facts})"
        self._stamp = sql.stamp[0]

    def connect(self, *, awaited: bool) -> Any:
        return DriverConnection(**self._parameters, charset="utf8mb4", autocommit=False, init_command=READ_COMMITTED)

    def is_own(self, driver: Driver) -> Operation[bool]:
        whose = f"SELECT {self._where}, CURRENT_USER()"
        try:
            ((where, user),) = yield from driver.rows(whose, [])
        except Exception as error:
            if _code(error) in (NO_TABLE, NOT_ALLOWED):
                return False
            raise
        ((ours,),) = self._ask((whose, ()))
        return (where, user) == tuple(ours)

    def lock(self, driver: Driver) -> Operation[None]:
        """Does nothing: the ledger's write locks the records, which stay locked until the commit."""
        yield from ()

    # -- checks ----------------------------------------------------------------------------------

    def check(self, driver: Driver, mark: str) -> Operation[str]:
        return (
            yield from self._check(driver, mark, "effect and ledger entry", '@app.step(repeat="keyed") or check(…)')
        )

    def check_for_inserts(self, driver: Driver, mark: str, *, ordered: bool) -> Operation[None]:
        yield from driver.adopt()
        yield from self._check(driver, mark, "your rows and the messages", "app.send(…) from a flow")

    def _check(self, driver: Driver, mark: str, what: str, instead: str) -> Operation[str]:
        facts = "@@autocommit, @@in_transaction, @@character_set_client, @@innodb_rollback_on_timeout"
        try:
            found = yield from driver.rows(f"SELECT {self._where}, {facts}, CONCAT({NODE}, ' ', CONNECTION_ID())", [])
        except Exception as error:
            if _code(error) not in (NO_TABLE, NOT_ALLOWED):
                raise
            found = [("another one", 0, 1, "utf8mb4", 0, "")]
        ((where, autocommit, inside, letters, whole, session),) = found
        ((ours,),) = self._ask((f"SELECT {self._where}", ()))
        if where != ours[0]:
            raise Misuse(
                f"The connection is to another database than the ledger's ({where}, not {ours[0]}); {what} commit "
                f"together only in one. Use {instead}."
            )
        if autocommit and not inside:
            raise Misuse(BY_ITSELF)
        if letters != "utf8mb4":
            raise Misuse(f"The connection sends its texts as {letters}; set its charset to utf8mb4.")
        if whole:
            raise Misuse(
                "The server rolls a transaction back where a lock is not to be had; set innodb_rollback_on_timeout=OFF."
            )
        yield from driver.rows(f"SAVEPOINT `{mark}`", [])
        return text_of(session)

    def _still_marked(self, driver: Driver, mark: str) -> Operation[None]:
        """Whether our savepoint still exists: savepoints end with their transaction."""
        try:
            yield from driver.rows(f"RELEASE SAVEPOINT `{mark}`", [])
        except Exception as error:
            if _code(error) == NO_SAVEPOINT:
                raise TransactionEnded from error
            raise
        yield from driver.rows(f"SAVEPOINT `{mark}`", [])

    # -- writing ---------------------------------------------------------------------------------

    def land(self, driver: Driver, mark: str, batch: Batch) -> Operation[Outcome]:
        yield from self._still_marked(driver, mark)
        outcome: Outcome = yield from self._until_free(driver, mark, lambda: self._land(driver, batch))
        if self._sql.galera:
            yield from self._still_ours(driver, mark)
        return outcome

    def _still_ours(self, driver: Driver, mark: str) -> Operation[None]:
        """Raise if a cluster has rolled the transaction back under our own statements. What followed is in another
        one, without the user's work.
        """
        try:
            yield from self._still_marked(driver, mark)
        except TransactionEnded as ended:
            raise _rolled_back() from ended

    def prove(self, landed: Sequence[Batch]) -> None:
        """Raise if what was committed is not there: a COMMIT succeeds where a cluster has left nothing to commit."""
        last = [(1, batch) for batch in landed if marked(batch)][-1:]  # one of them was written last to its record
        for question in self._sql.proof(last):
            if not self._ask(question)[0]:
                raise _rolled_back()

    def _until_free(self, driver: Driver, mark: str, write: Callable[[], Generator[Any, Any, Any]]) -> Operation[Any]:
        deadline = self._clock.monotonic() + self._patience
        while True:
            try:
                return (yield from write())
            except Exception as error:
                if _code(error) not in (HELD, *MISFITTING):
                    raise
            yield from driver.rows(f"ROLLBACK TO SAVEPOINT `{mark}`", [])
            if self._clock.monotonic() >= deadline:
                raise held_elsewhere(unsure=False)
            yield from Sleep(self._clock, jitter(PAUSE))

    def _land(self, driver: Driver, batch: Batch) -> Operation[Outcome]:
        ((now, number),) = yield from driver.rows(self._stamp, [])
        found = yield from self._locked(driver, [write.at for write in batch.writes])
        misfit = misfit_of(batch, found, int(number), now)
        if isinstance(misfit, SpaceBusy):
            raise pymysql.OperationalError(HELD, "a record has a later number than this node's clock")
        if misfit is not None:
            return misfit
        for statement in self._sql.writes([(1, batch)]):
            yield from _run(driver, statement)
        again = yield from self._renumber(driver, [batch], number)
        return written(batch, 1, number, again, now)

    def _renumber(self, driver: Driver, batches: Sequence[Batch], number: int) -> Operation[int | None]:
        """Renumber as a commit of the store does: see `LedgerSql.renumbering`."""
        if not any(inserts_any(batch) for batch in batches):
            return None
        ((again,),) = yield from driver.rows(*self._sql.stamp_again)
        if again > number + STEP:
            yield from _run(driver, self._sql.renumber(batches))
        return int(again)

    def _locked(self, driver: Driver, addresses: Sequence[Address]) -> Operation[dict[Address, Record]]:
        sql, values = self._sql.fetch(addresses, lock=True)
        rows = yield from driver.rows(sql, values)
        return {addresses[int(place)]: record_of(row) for place, *row in rows}

    def insert_each(
        self, driver: Driver, mark: str, batches: Sequence[Batch], *, first: bool
    ) -> Operation[Sequence[Outcome]]:
        if first:
            yield from self.check_for_inserts(driver, mark, ordered=False)
        try:
            yield from self._still_marked(driver, mark)
        except TransactionEnded:
            raise Misuse(BY_ITSELF) from None
        answers: list[Outcome] = []
        for at in range(0, len(batches), MANY):
            part = batches[at : at + MANY]
            answers += yield from self._until_free(driver, mark, partial(self._insert, driver, part))
            yield from self._still_ours(driver, mark)  # and stays if the next part must be tried again
        return answers

    def _insert(self, driver: Driver, batches: Sequence[Batch]) -> Operation[list[Outcome]]:
        ((now, number),) = yield from driver.rows(self._stamp, [])
        for statement in self._sql.inserts(list(enumerate(batches, 1))):
            yield from _run(driver, statement)
        yield from self._renumber(driver, batches, number)
        found = yield from self._locked(driver, [batch.writes[0].at for batch in batches])
        return [self._outcome(batch, found[batch.writes[0].at], now) for batch in batches]

    def _outcome(self, batch: Batch, record: Record, now: float) -> Outcome:
        if record.nonce == batch.nonce:
            return Written(record.version, int(record.version), now)
        return Conflict(batch.writes[0].at, record, now)

    # -- ending ----------------------------------------------------------------------------------

    def allow_end(self, driver: Driver) -> None: ...

    def end(self, session: str) -> None:
        """End the server's session: the connection was closed here, but on a silent network the server does not learn
        that. Each node of a cluster numbers its sessions by itself: one on another node stays.
        """
        node, _, number = session.rpartition(" ")
        with contextlib.suppress(Exception):  # a user's own session may be one that we have no right to end
            self._ask((f"KILL CONNECTION IF({NODE} = %s, %s, 0)", [node, int(number)]))  # there is no session 0

    def explain(self, error: BaseException) -> BaseException:
        return error


def _rolled_back() -> pymysql.OperationalError:
    return pymysql.OperationalError(DEADLOCK, "the cluster rolled the transaction back; nothing of it was written")


def _run(driver: Driver, statement: Statement) -> Operation[None]:
    sql, values = statement
    yield from driver.rows(AT_ONCE + sql, values)


def _code(error: BaseException) -> int | None:
    """Return the server's error number, also from wrapped errors of SQLAlchemy and Django."""
    inner: BaseException | None = error
    while inner is not None:
        first = inner.args[0] if inner.args else None
        if isinstance(first, int):
            return first
        inner = getattr(inner, "orig", None) or inner.__cause__
    return None


class PymysqlDriver(BlockingDriver):
    dialect = "mysql"

    def begin(self) -> Operation[None]:
        if self.handle.server_status & 1:
            raise Misuse("The connection is already in a transaction; let connect= make a fresh one.")
        yield from Inline(self.handle.begin)

    def adopt(self) -> Operation[None]:
        if self.handle.get_autocommit() and not self.handle.server_status & 1:
            raise Misuse("The connection is in no transaction; open one with connection.begin().")
        yield from ()

    def rows(self, sql: str, values: Sequence[Any]) -> Operation[Sequence[Sequence[Any]]]:
        return (yield from Inline(lambda: self._rows(in_percent(sql), values)))

    def _rows(self, sql: str, values: Sequence[Any]) -> Sequence[Sequence[Any]]:
        with self.handle.cursor(Cursor) as cursor:  # the connection's own cursor may return other types of rows
            cursor.execute(sql, tuple(values))
            found: Sequence[Sequence[Any]] = cursor.fetchall()
            return found

    def drop(self) -> None:
        with contextlib.suppress(Exception):
            self.handle._force_close()  # without a message to the server
