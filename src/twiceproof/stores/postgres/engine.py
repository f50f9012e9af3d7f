"""PostgresEngine: one round trip per commit.

Scans read no more rows than they return, however large the table is. Positions are compared as rows, `(kind, state, id)
> (…)`: with `kind = … AND state = … ORDER BY id` the planner may choose to read the whole table by id.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import msgspec
import psycopg
from msgspec import Struct, structs
from psycopg.conninfo import conninfo_to_dict

from ...clock import Clock, system_clock
from ...errors import Misuse, SchemaMismatch, StoreUnavailable
from ...records import Address, Batch, Due, Found, Outcome, Page, Record, Written
from ..base import (
    FEW,
    PASSED,
    POINT,
    Disconnected,
    Finding,
    NoLedger,
    SpaceBusy,
    StorePromises,
    chosen,
    indexed_by_time,
    soonest,
)
from ..notifications import names_to_notify
from .codec import (
    ServerFunctions,
    beside_values,
    commit_call,
    decode_records,
    decode_waiting,
    due_of,
    due_values,
    fetch_values,
    found,
    outcomes,
)
from .connection import PostgresConnection
from .doctor import SETTINGS, SETTINGS_OF_AN_EMPTY_DATABASE, PostgresSettings, examine, examine_server, refuse_unsafe
from .join import PostgresJoins
from .notify import OnChange, PostgresListener, PostgresNotifier
from .primary import Primary
from .scans import GT, LE, PostgresPrefixScan, PostgresScan, Rows
from .schema import EQ, SCHEMA, TEXT, in_schema, is_current, migrate, split_schema

__all__ = ["PostgresEngine", "connection_parameters"]


# From each queue in which something waits to the next: the index has them in this order, and the first due first.
HEADS = f"""
WITH RECURSIVE heads (queue, due_at) AS (
    (
        SELECT queue, due_at FROM {{schema}}.twiceproof_records WHERE kind {EQ} $1::{TEXT} AND due_at IS NOT NULL
        ORDER BY kind, queue, due_at LIMIT 1
    )
    UNION ALL
    SELECT following.queue, following.due_at FROM heads, LATERAL (
        SELECT r.queue, r.due_at FROM {{schema}}.twiceproof_records AS r
        WHERE (r.kind, r.queue) {GT} ($1::{TEXT}, heads.queue) AND r.kind {LE} $1::{TEXT} AND r.due_at IS NOT NULL
        ORDER BY r.kind, r.queue, r.due_at LIMIT 1
    ) AS following
)
SELECT clock.now, first.queue, first.due_at FROM (SELECT {{schema}}.twiceproof_now() AS now) AS clock
LEFT JOIN (SELECT queue, due_at FROM heads ORDER BY due_at LIMIT $2::bigint) AS first ON true
ORDER BY first.due_at"""  # noqa: S608 - constants
BESIDES, LARGER = 32, 16  # heads of others' queues that are put up with, and how many more if that was not enough


class Looked(Struct, frozen=True):
    """The queues in which something is due, when the first of the others is, and the server's time."""

    ripe: list[str]
    later: float | None
    now: float


def by_time(first: Callable[[int], bytes], asked: Collection[str], limit: int) -> Looked | None:
    """Look at what is due first, whatever its queue. None: too much of that is of other workers' queues."""
    for most in (limit + BESIDES, limit + PASSED):
        now, waiting = decode_waiting(first(most))
        ripe, later, told = soonest(waiting, asked, now, limit, most)
        if told:
            break
    return Looked(ripe, later, now) if told or (later is not None and later > now) else None


def by_heads(first: Callable[[int], Rows], asked: Collection[str], limit: int) -> Looked:
    """Look at the first of each queue in which something waits."""
    most = limit + BESIDES
    while True:
        rows = first(most)
        now = float(rows[0][0] or 0)
        heads = [(queue.decode(), float(due_at)) for _, queue, due_at in rows if queue is not None and due_at]
        ripe, later = chosen(heads, asked, now, limit)
        if later is not None or len(heads) < most:
            return Looked(ripe, later, now)
        most *= LARGER


# Something of its own in the log: committed when the standbys have that, and so all that came before.
CONFIRM = b"""
SELECT CASE WHEN pg_catalog.length(pg_catalog.current_setting('synchronous_standby_names')) OPERATOR(pg_catalog.>) 0
    THEN pg_catalog.pg_logical_emit_message(true, 'twiceproof', ''::pg_catalog.text) END"""

# A connection whose other end is gone silently must not block us: noticed within about ten seconds.
DEFAULTS: dict[str, Any] = {
    "application_name": "twiceproof",
    "connect_timeout": 5,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}
PATIENCE = 10.0
SIDE_PATIENCE = 60.0


class PostgresEngine:
    """Three connections, each opened when first needed: commits, reads, and everything else."""

    promises = StorePromises(
        "yes", "kept by a synchronous standby; else refused until accepted", "the server's", "2", "1", "PostgreSQL"
    )
    batch_limit = 500
    group_limit = 200
    reads_first = False
    best_effort = False
    newest_first = True
    one_per_space = True
    links_spaces = True
    remote = True

    def __init__(self, url: str, *, clock: Clock = system_clock, create: bool = True, accept: bool = False) -> None:
        self._clock = clock
        url, named = split_schema(url)
        self._schema = schema = named or SCHEMA
        self._named = named is not None
        self._newest = 0
        self._calls = ServerFunctions(schema)
        self._parameters = connection_parameters(url)
        self._primary = Primary(schema)
        greet = self._primary.greet
        self._commits = PostgresConnection(
            self._connect, clock, PATIENCE, greet=greet, guard=self._primary.guard, writes=True
        )
        self._reads = PostgresConnection(self._connect, clock, PATIENCE, greet=greet)
        self._side = PostgresConnection(self._connect, clock, SIDE_PATIENCE, greet=greet)
        self._links = (self._commits, self._reads, self._side)
        self.joins = PostgresJoins(self._parameters, clock, self._side.ask, schema=schema, patience=PATIENCE)
        self._notifier = PostgresNotifier(self._side.ask, clock.sleep)
        self._listener = PostgresListener(self._connect, self._side.ask)
        self._prepare(create, accept)

    def _prepare(self, create: bool, accept: bool) -> None:
        try:
            settings = self._settings()
            refuse_unsafe(settings)
            if not is_current(settings.applied):
                self._refuse_second_ledger(settings)
                if not create and not settings.applied:
                    raise self._no_ledger(settings)
                with self._side.session() as db:
                    migrate(db, self._schema)
            (self._primary.accept if accept else self._primary.open)(self._side.ask)
            self.joins.learn()
        except Disconnected as error:
            raise StoreUnavailable(
                f"PostgreSQL does not answer ({error}). Check that it runs and that the URL is right.",
                unsure=False,
            ) from None
        except BaseException:
            self._side.close()
            raise

    def _no_ledger(self, settings: PostgresSettings) -> NoLedger:
        with self._side.session() as db:
            found = examine_server(db, self._side.asking(db), settings, self._clock)
        return NoLedger(f"There is no ledger in this database; {POINT}.", findings=found)

    def _refuse_second_ledger(self, settings: PostgresSettings) -> None:
        """A ledger where an earlier build made it: a new one beside it would repeat all that it has done."""
        if settings.elsewhere and not self._named:
            raise SchemaMismatch(
                f"The ledger of this database is in the schema {settings.elsewhere}, not in {self._schema}; to go on "
                f"with it, add ?schema={settings.elsewhere} to the URL; to begin a new one, ?schema={self._schema}."
            )

    def _settings(self) -> PostgresSettings:
        try:
            text = self._side.ask(in_schema(SETTINGS, self._schema))[0][0]
        except SchemaMismatch:  # no table yet
            text = self._side.ask(SETTINGS_OF_AN_EMPTY_DATABASE.encode())[0][0]
        return msgspec.json.decode(text or b"", type=PostgresSettings)

    def _connect(self) -> psycopg.Connection:
        return psycopg.connect(autocommit=True, prepare_threshold=None, **self._parameters)

    # -- the seam --------------------------------------------------------------------------------

    def commit(self, batches: Sequence[Batch]) -> Sequence[Outcome | SpaceBusy]:
        answers = outcomes(
            batches, _one(self._commits.ask(*commit_call(self._calls, batches), alone=len(batches) == 1))
        )
        self._watch_numbers(answers)
        self._notifier.tell(
            place
            for batch, answer in zip(batches, answers, strict=True)
            if type(answer) is Written
            for place in names_to_notify(batch)
        )
        return answers

    def tell(self, names: Collection[str]) -> None:
        """Notify other processes of a change that another connection has committed."""
        self._notifier.tell(names)

    def _watch_numbers(self, answers: Sequence[Outcome | SpaceBusy]) -> None:
        """Look again at the server if numbers shrank: another ledger was put in its place under an open connection."""
        newest = max((answer.fence for answer in answers if type(answer) is Written), default=self._newest)
        if newest < self._newest:
            try:
                self._primary.look_again(self._side.ask)
            except Disconnected as error:
                raise Disconnected(error, sent=True) from error  # the answers so far go with it
        self._newest = newest

    def confirm(self) -> None:
        """A restart, or ending a session that waits for a standby, lets all see what no standby may have."""
        self._commits.ask(CONFIRM)

    def fetch(self, addresses: Sequence[Address]) -> Sequence[Found]:
        return found(_one(self._reads.ask(self._calls.fetch, fetch_values(addresses), alone=len(addresses) == 1)))

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
            return self._scan_prefix(PostgresPrefixScan(kind, prefix, state, after, limit, schema=self._schema))
        asked = PostgresScan(kind, space, state, after, limit, newest, prefix, schema=self._schema)
        link = self._side if space is None else self._reads  # a run's own ledger must not wait for long scans
        return asked.page(link.ask(asked.sql, asked.values))

    def _scan_prefix(self, asked: PostgresPrefixScan) -> Page:
        rows = self._side.ask(asked.sql, asked.values)
        border = self._side.ask(asked.border, asked.border_values) if asked.is_short(rows) else ()
        if border:
            rows = self._side.ask(*asked.until(border[0]))
        return asked.page(rows, border)

    def beside(self, spaces: Sequence[str], kinds: Sequence[str], limit: int) -> Sequence[Record]:
        return decode_records(_one(self._side.ask(self._calls.beside, beside_values(spaces, kinds, limit))))

    def due(self, kind: str, queues: Collection[str], limit: int, hide: float) -> Due:
        if len(queues) <= FEW:
            return self._hand_out(kind, queues, limit, hide)
        looked = self._look(kind, frozenset(queues), limit)
        due = self._hand_out(kind, looked.ripe, limit, hide) if looked.ripe else Due([], None, looked.now)
        others = None if looked.later is None else max(0.0, looked.later - due.now)
        return structs.replace(due, next_in=min((at for at in (due.next_in, others) if at is not None), default=None))

    def _look(self, kind: str, asked: frozenset[str], limit: int) -> Looked:
        def waiting(most: int) -> bytes:
            return _one(self._side.ask(self._calls.waiting, [kind.encode(), str(most).encode()]))

        def heads(most: int) -> Rows:
            return self._side.ask(in_schema(HEADS, self._schema), [kind.encode(), str(most).encode()])

        found = by_time(waiting, asked, limit) if indexed_by_time(asked) else None
        return found or by_heads(heads, asked, limit)

    def _hand_out(self, kind: str, queues: Collection[str], limit: int, hide: float) -> Due:
        return due_of(_one(self._side.ask(self._calls.due, due_values(kind, queues, limit, hide))))

    def listen(self, on_change: OnChange) -> float | None:
        """Notify of changes by other processes from now on."""
        return self._listener.start(on_change)

    # -- life ------------------------------------------------------------------------------------

    def examine(self) -> Sequence[Finding]:
        settings = self._settings()
        with self._side.session() as db:
            return examine(db, self._side.asking(db), settings, self._clock, self._schema)

    def close(self) -> None:
        self._listener.close()
        self._notifier.close()
        for link in self._links:
            link.cancel_waiters()  # all of them before any is waited for
        for link in self._links:
            link.close()

    def abandon(self) -> None:
        self._listener.reset()
        self._notifier.reset()
        for link in self._links:
            link.abandon()


def _one(rows: Sequence[Sequence[bytes | None]]) -> bytes:
    return rows[0][0] or b""


def connection_parameters(url: str) -> dict[str, Any]:
    """The URL taken apart, with our time-outs where it gives none."""
    try:
        given = conninfo_to_dict(url)
    except psycopg.Error:
        given = {}
    if not given or _is_torn(url, given):
        # Not even the reason: it would quote what could not be read, maybe a piece of the password.
        raise Misuse(
            "The PostgreSQL URL cannot be read; write it as postgresql://user:password@host:5432/database, "
            "with special characters percent-encoded."
        )
    several = {"target_session_attrs": "read-write"} if "," in str(given.get("host", "")) else {}
    return DEFAULTS | several | given | {"client_encoding": "UTF8"}


def _is_torn(url: str, given: dict[str, Any]) -> bool:
    """Whether a password's bare @ or / was taken for the end of it: errors would name the rest as a host."""
    rest = url.partition("://")[2].partition("?")[0]
    ports = str(given.get("port", "")).replace(",", "")
    return "@" in rest.partition("@")[2] or "@" in rest.partition("/")[2] or not f"0{ports}".isdecimal()
