"""MariadbEngine: a commit is one packet with one transaction in it, and so one round trip."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import pymysql
from msgspec import Struct
from pymysql.constants import CLIENT

from ...clock import Clock, jitter, system_clock
from ...errors import StoreError, StoreUnavailable
from ...records import Address, Batch, Conflict, Due, Found, Outcome, Page, Record, Write, Written
from ..base import (
    FEW,
    PASSED,
    POINT,
    SPACE_BUSY,
    Disconnected,
    Finding,
    NoLedger,
    SpaceBusy,
    StorePromises,
    chosen,
    fits,
    indexed_by_time,
    soonest,
)
from .connection import (
    HELD,
    MISFITTING,
    TOO_LARGE,
    TRANSIENT,
    DriverConnection,
    MariadbConnection,
    MariadbRefusal,
    named,
)
from .doctor import MariadbSettings, examine, refuse_unsafe, refuse_unsafe_tables, restored, tables
from .join import MariadbJoins
from .primary import MariadbPrimary
from .rows import (
    NONCE,
    NOW,
    STEP,
    VERSION,
    LedgerSql,
    Row,
    inserts_any,
    is_lone,
    lone_inserts,
    lone_replaces,
    marked,
    misfit_of,
    record_of,
    written,
)
from .scans import MariadbPrefixScan, MariadbScan
from .schema import applied, connection_parameters, is_current, migrate, split_durability

__all__ = ["MariadbEngine"]

PATIENCE = 10.0
SIDE_PATIENCE = 60.0
TRIES = 20  # of a transaction that the server rolled back
PAUSE = 0.002
UNNOTIFIED = 0.5  # seconds between queries of waiting callers: MariaDB has no notifications
SPARE = 100  # records beyond the limit that are read, because others may hold some

Ask = Callable[..., Sequence[Sequence[Row]]]


class DueHeads(Struct, frozen=True):
    """The records that are due, the time of the next one, and the server's time."""

    ids: list[int]
    times: dict[int, float]
    later: float | None
    now: float


class MariadbEngine:
    """Three connections, each opened when first needed: commits, reads, and everything else."""

    promises = StorePromises(
        "yes", "kept by Galera's majority", "the server's", "2", "1", "MariaDB, Galera of three nodes"
    )
    batch_limit = 500
    group_limit = 200
    reads_first = False
    best_effort = False
    newest_first = True
    one_per_space = True
    links_spaces = True
    remote = True
    now_sql = NOW  # tests replace it

    def __init__(self, url: str, *, clock: Clock = system_clock, create: bool = True, accept: bool = False) -> None:
        self._clock = clock
        url, self._durability = split_durability(url)
        self._parameters = connection_parameters(url)
        self._database = str(self._parameters["database"])
        self.sql = LedgerSql(self._database, now=self.now_sql)
        self._primary = MariadbPrimary()
        self._newest = 0
        greet = self._primary.greet
        self._commits = MariadbConnection(self._dial(PATIENCE), clock, greet=greet, writes=True)
        self._reads = MariadbConnection(self._dial(PATIENCE), clock, greet=greet)
        self._side = MariadbConnection(self._dial(SIDE_PATIENCE), clock, greet=greet)
        self._links = (self._commits, self._reads, self._side)
        self._prepare(create, accept)
        self.joins = MariadbJoins(self._parameters, clock, self._side.ask, self.sql, patience=PATIENCE)

    def _dial(self, patience: float) -> Callable[[], pymysql.Connection[Any]]:
        return lambda: DriverConnection(
            **self._parameters,
            connect_timeout=5,
            read_timeout=patience,
            write_timeout=patience,
            charset="utf8mb4",
            autocommit=True,
            client_flag=CLIENT.MULTI_STATEMENTS,
            defer_connect=True,
        )

    def _prepare(self, create: bool, accept: bool) -> None:
        try:
            settings = MariadbSettings.read(self._side.ask)
            refuse_unsafe(settings, self._durability)
            self.sql = LedgerSql(self._database, now=self.now_sql, galera=settings.galera)
            self._bring_up_to_date(create, settings)
            refuse_unsafe_tables(self._side.ask, self._database)
            self._primary.open(self._side.ask, self.sql, accept=accept)
        except Disconnected as error:
            raise StoreUnavailable(
                f"MariaDB does not answer ({error}). Check that it runs and that the URL is right.", unsure=False
            ) from None
        except BaseException:
            self._side.close()
            raise

    def _bring_up_to_date(self, create: bool, settings: MariadbSettings) -> None:
        done = applied(self._side.ask, self.sql, self._database)
        if is_current(done):
            return
        if not create and not done:
            found = examine(self._side.ask, settings, self._durability, self._clock)
            raise NoLedger(f"There is no ledger in this database; {POINT}.", findings=found)
        migrate(self._side.ask, self.sql, self._database, self._clock)

    # -- commits ---------------------------------------------------------------------------------

    def commit(self, batches: Sequence[Batch]) -> Sequence[Outcome | SpaceBusy | Exception]:
        answers = self._commit(batches)
        newest = max((answer.fence for answer in answers if type(answer) is Written), default=self._newest)
        if newest < self._newest and not self.sql.galera:  # an older ledger has replaced this one
            with _after_a_commit():
                self._primary.skip(self._side.ask)
        self._newest = newest
        return answers

    def _commit(self, batches: Sequence[Batch]) -> Sequence[Outcome | SpaceBusy | Exception]:
        for _ in range(TRIES):
            try:
                return self._answers(batches, self._commits.exchange(*self.sql.commit(batches)))
            except MariadbRefusal as error:
                if error.code not in TRANSIENT:
                    return self._commit_apart(batches, error)
            self._clock.sleep(jitter(PAUSE))
        return [SPACE_BUSY] * len(batches)

    def _answers(
        self, batches: Sequence[Batch], results: Sequence[Sequence[Row]]
    ) -> list[Outcome | SpaceBusy | Exception]:
        (((now, number),), *told) = results
        placed = list(enumerate(batches, 1))
        proved = self._proved(placed, told)
        again = _drawn(told.pop()) if any(inserts_any(batch) for batch in batches) else None
        answers: list[Outcome | SpaceBusy | Exception] = [
            written(batch, place, number, again, now) for place, batch in placed
        ]
        inserts, replaces = lone_inserts(batches), lone_replaces(batches)
        rows = told.pop(0) if inserts else ()
        for (place, batch), row in zip(inserts, rows, strict=True):
            if row[VERSION] != number + place or row[NONCE] != batch.nonce.encode():  # an earlier attempt of ours
                numbered_alike = (
                    number < row[VERSION] <= number + STEP
                )  # by another node: its body was left out as ours
                answers[place - 1] = SPACE_BUSY if numbered_alike else _misfit(batch.writes[0], row, now)
        for place, *row in told.pop(0) if replaces else ():
            answers[place - 1] = _misfit(batches[place - 1].writes[0], row, now)
        _refuse_unproved([place for place, answer in enumerate(answers, 1) if type(answer) is Written], proved)
        return answers

    def _proved(self, placed: Sequence[tuple[int, Batch]], told: list[Sequence[Row]]) -> set[int]:
        """Take what was asked behind the COMMIT from the end of what was told. For batches that leave no nonce, it is
        enough that this session has written something.
        """
        if not self.sql.galera:
            return {place for place, _ in placed}
        there = {row[0] for row in told.pop()} if self.sql.proof(placed) else set()
        changed = _is_changed(told.pop())
        return there | {place for place, batch in placed if marked(batch) is None and changed}

    def _commit_apart(
        self, batches: Sequence[Batch], error: MariadbRefusal
    ) -> Sequence[Outcome | SpaceBusy | Exception]:
        """Commit the batches separately, after one did not fit, was locked by another transaction, or was too large
        together with the others.
        """
        if error.code in MISFITTING and not all(is_lone(batch) for batch in batches):
            return self._commit_slowly(batches)
        if error.code not in (HELD, TOO_LARGE, *MISFITTING):
            raise named(error) from None
        return self._commit_halves(batches, error)

    def _commit_halves(
        self, batches: Sequence[Batch], error: MariadbRefusal
    ) -> Sequence[Outcome | SpaceBusy | Exception]:
        if len(batches) > 1:
            middle = len(batches) // 2
            first = self._half(batches[:middle])
            with _after_a_commit():
                return [*first, *self._half(batches[middle:])]
        if error.code == TOO_LARGE:
            raise named(error) from None
        return [SPACE_BUSY]

    def _half(self, batches: Sequence[Batch]) -> Sequence[Outcome | SpaceBusy | Exception]:
        try:
            return self._commit(batches)
        except StoreError as error:  # its own error, not that of the other half
            return [error] * len(batches)

    def _commit_slowly(self, batches: Sequence[Batch]) -> Sequence[Outcome | SpaceBusy | Exception]:
        """Read with locks, then write the batches that fit: two requests, no matter how many do not fit."""
        for _ in range(TRIES):
            try:
                return self._look_and_write(batches)
            except MariadbRefusal as error:
                if error.code in (HELD, TOO_LARGE):
                    return self._commit_halves(batches, error)
                if error.code not in (*TRANSIENT, *MISFITTING):
                    raise named(error) from None
        return [SPACE_BUSY] * len(batches)

    def _look_and_write(self, batches: Sequence[Batch]) -> Sequence[Outcome | SpaceBusy]:
        addresses = [write.at for batch in batches for write in batch.writes]
        with self._commits.transaction() as ask:
            ((now, number),), rows = ask(*self.sql.beginning, self.sql.stamp, self.sql.fetch(addresses, lock=True))
            found = {addresses[place]: record_of(row) for place, *row in rows}
            placed = list(enumerate(batches, 1))
            misfits = {place: answer for place, batch in placed if (answer := misfit_of(batch, found, number, now))}
            fitting = [(place, batch) for place, batch in placed if place not in misfits]
            told = self._write_locked(ask, fitting)
        if fitting:
            _refuse_unproved([place for place, _ in fitting], self._proved(fitting, told))
        again = _drawn(told[0]) if told else None
        return [misfits.get(place) or written(batch, place, number, again, now) for place, batch in placed]

    def _write_locked(
        self, ask: Callable[..., list[Sequence[Row]]], fitting: Sequence[tuple[int, Batch]]
    ) -> list[Sequence[Row]]:
        if not fitting:
            return []
        again = self.sql.renumbering([batch for _, batch in fitting])
        written = self.sql.together(self.sql.writes(fitting))
        return ask(*written, *again, *self.sql.ending, *self.sql.proof(fitting))

    def confirm(self) -> None:
        """InnoDB shows a commit to others before it is on disk. A commit of our own is on disk only after all earlier
        ones.
        """
        facts = f"{self.sql.ledger}.twiceproof_facts"
        self._commits.ask((f"REPLACE INTO {facts} VALUES ('confirmed', UUID())", ()))  # noqa: S608

    # -- reads -----------------------------------------------------------------------------------

    def fetch(self, addresses: Sequence[Address]) -> Sequence[Found]:
        ((now,),), rows = self._reads.ask(self.sql.clock(), self.sql.fetch(addresses))
        there = {place: record_of(row) for place, *row in rows}
        return [Found(there.get(place), now) for place in range(len(addresses))]

    def scan(
        self,
        kind: str,
        space: str | None,
        state: str | None,
        after: str | None,
        limit: int,
        newest: bool | None = None,
        prefix: str | None = None,
    ) -> Page:
        if prefix is not None and newest is None:
            return self._scan_prefix(MariadbPrefixScan(self.sql, kind, prefix, state, after, limit))
        asked = MariadbScan(self.sql, kind, space, state, after, limit, newest, prefix)
        link = self._side if space is None else self._reads  # reading a run's ledger must not wait for long scans
        states: list[Any] = []
        if asked.needs_states:
            states = [row[0] for row in link.ask(asked.states())[0]]
            if not states:
                return asked.page((), self._now(link))
        ((now,),), rows = link.ask(self.sql.clock(), asked.rows(states))
        return asked.page(rows, now)

    def _scan_prefix(self, asked: MariadbPrefixScan) -> Page:
        ((now,),), rows = self._side.ask(self.sql.clock(), asked.rows())
        border = self._side.ask(asked.border())[0] if asked.is_short(rows) else ()
        if border:
            ((now,),), rows = self._side.ask(self.sql.clock(), asked.rows(border[0]))
        return asked.page(rows, border, now)

    def _now(self, link: MariadbConnection) -> float:
        (((now,),),) = link.ask(self.sql.clock())
        return float(now)

    def beside(self, spaces: Sequence[str], kinds: Sequence[str], limit: int) -> Sequence[Record]:
        if not spaces or not kinds:
            return []
        (rows,) = self._side.ask(self.sql.beside(spaces, kinds, limit))
        return [record_of(row) for row in rows]

    # -- what is due -----------------------------------------------------------------------------

    def due(self, kind: str, queues: Collection[str], limit: int, hide: float) -> Due:
        names, others = list(queues), None
        if len(names) > FEW:
            names, others = self._ripe(kind, frozenset(queues), limit)
        if not names:
            now = self._now(self._side)
            return Due([], None if others is None else max(0.0, others - now), now)
        looked = self._look(kind, names, limit)
        records, now, until = self._hand_out(looked, names, limit, hide) if looked.ids else ([], looked.now, None)
        taken = {int(ident) for ident, _ in records}
        left = [at for ident, at in looked.times.items() if ident not in taken]
        later = min((at for at in (*left, looked.later, others, until) if at is not None), default=None)
        return Due([record for _, record in records], None if later is None else max(0.0, later - now), now)

    def _look(self, kind: str, queues: Sequence[str], limit: int) -> DueHeads:
        """Read without locks, and only the head of each queue, however long the queue is."""
        ((now,),), rows = self._side.ask(self.sql.clock(), self.sql.heads(kind, queues, limit + SPARE))
        ripe = sorted((due_at, ident) for ident, due_at in rows if due_at <= now)[: limit + SPARE]
        later = min((due_at for _, due_at in rows if due_at > now), default=None)
        return DueHeads([ident for _, ident in ripe], {ident: at for at, ident in ripe}, later, now)

    def _hand_out(
        self, looked: DueHeads, queues: Sequence[str], limit: int, hide: float
    ) -> tuple[list[tuple[int, Record]], float, float | None]:
        """Hide the records that no other transaction has locked."""
        for _ in range(TRIES):
            try:
                with self._side.transaction() as ask:
                    ((now, number),), rows = ask(*self.sql.lock_due(looked.ids, queues, limit))
                    if not rows:
                        return [], now, None
                    told = ask(*self.sql.hide([row[0] for row in rows], hide))
                    if told and not _is_changed(told.pop()):
                        continue
            except MariadbRefusal as error:
                if error.code not in (*TRANSIENT, HELD):
                    raise named(error) from None
            else:
                until = now + hide
                return [(row[0], record_of((*row[:5], number, *row[6:12], until, row[13]))) for row in rows], now, until
        return [], looked.now, None

    def _ripe(self, kind: str, asked: frozenset[str], limit: int) -> tuple[list[str], float | None]:
        """Of many queues, return those with due records, and the next time at which another record is due."""
        if indexed_by_time(asked):
            most = limit + PASSED
            ((now,),), rows = self._side.ask(self.sql.clock(), self.sql.waiting(kind, most))
            ripe, later, told = soonest(_heads(rows), asked, now, limit, most)
            if told or (later is not None and later > now):
                return ripe, later
        ((now,),), rows = self._side.ask(self.sql.clock(), self.sql.first_of_all(kind))
        return chosen(_heads(rows), asked, now, limit)

    def listen(self, on_change: Callable[..., bool]) -> float | None:
        """Changes of other processes are not notified: waiting callers query again."""
        return UNNOTIFIED

    # -- life ------------------------------------------------------------------------------------

    def examine(self) -> Sequence[Finding]:
        settings = MariadbSettings.read(self._side.ask)
        found = examine(self._side.ask, settings, self._durability, self._clock)
        ask = self._side.ask
        return [*found, *tables(ask, self._database), *restored(ask, self.sql), *self._primary.examine(ask)]

    def close(self) -> None:
        for link in self._links:
            link.cancel_waiters()  # signal all of them before waiting for any
        for link in self._links:
            link.close()

    def abandon(self) -> None:
        for link in self._links:
            link.abandon()


def _refuse_unproved(landed: Sequence[int], proved: set[int]) -> None:
    """Raise where a batch is not there: the cluster rolled it back, or it was replaced since. Its nonce tells."""
    if not proved.issuperset(landed):
        raise Disconnected(ConnectionError("the cluster rolled a transaction back"), sent=True)


@contextlib.contextmanager
def _after_a_commit() -> Iterator[None]:
    """The answers so far are lost with the connection: even if nothing more was sent, some batches may have landed."""
    try:
        yield
    except Disconnected as error:
        raise Disconnected(error, sent=True) from error


def _is_changed(rows: Sequence[Row]) -> bool:
    """What a cluster's node says of a session behind its COMMIT, which may have found nothing to commit."""
    ((changed,),) = rows
    return bool(changed)


def _drawn(rows: Sequence[Row]) -> int:
    ((number,),) = rows
    return int(number)


def _misfit(write: Write, row: Row, now: float) -> Conflict | SpaceBusy:
    """Return what was found instead. A row that fits but was not written has a number from a node whose clock is
    ahead.
    """
    found = None if row[0] is None else record_of(row)
    return SPACE_BUSY if fits(write, found) else Conflict(write.at, found, now)


def _heads(rows: Sequence[Row]) -> list[tuple[str, float]]:
    return [(queue.decode(), due_at) for queue, due_at in rows]
