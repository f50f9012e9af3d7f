"""The PostgreSQL store: many machines, one database, one round trip per commit."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import msgspec
import psycopg
from msgspec import structs
from psycopg.conninfo import conninfo_to_dict

from ..clock import Clock, system_clock
from ..errors import Misuse, SchemaMismatch, StoreUnavailable
from ..records import Address, Batch, Due, Found, Outcome, Page, Record, Written
from .base import Again, Disconnected, Finding
from .heads import FEW
from .no_ledger import POINT, NoLedger
from .postgres_doctor import (
    SETTINGS,
    SETTINGS_OF_AN_EMPTY_DATABASE,
    Settings,
    examine,
    examine_server,
    refuse_unsafe,
)
from .postgres_due import look
from .postgres_join import PostgresJoins
from .postgres_link import Link
from .postgres_notify import Heard, Listener, Notifier
from .postgres_primary import Primary
from .postgres_rows import (
    Calls,
    beside_values,
    commit_call,
    decode_records,
    due_of,
    due_values,
    fetch_values,
    found,
    outcomes,
)
from .postgres_scan import Scan
from .postgres_schema import SCHEMA, in_schema, is_current, migrate, split_schema
from .rings import rings

__all__ = ["PostgresEngine"]

# Something of its own in the log: committed when the standbys have that, and so all that came before.
CONFIRM = b"""
SELECT CASE WHEN pg_catalog.length(pg_catalog.current_setting('synchronous_standby_names')) OPERATOR(pg_catalog.>) 0
    THEN pg_catalog.pg_logical_emit_message(true, 'twiceproof', ''::pg_catalog.text) END"""

# A connection whose other end is gone without a word must not hang us: known within about ten seconds.
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

    batch_limit = 500
    group_limit = 200
    reads_first = False
    best_effort = False
    one_per_space = True
    remote = True

    def __init__(self, url: str, *, clock: Clock = system_clock, create: bool = True, accept: bool = False) -> None:
        self._clock = clock
        url, named = split_schema(url)
        self._schema = schema = named or SCHEMA
        self._named = named is not None
        self._newest = 0
        self._calls = Calls(schema)
        self._parameters = _parameters(url)
        self._primary = Primary(schema)
        greet = self._primary.greet
        self._commits = Link(self._connect, clock, PATIENCE, greet=greet, guard=self._primary.guard, writes=True)
        self._reads = Link(self._connect, clock, PATIENCE, greet=greet)
        self._side = Link(self._connect, clock, SIDE_PATIENCE, greet=greet)
        self._links = (self._commits, self._reads, self._side)
        self.joins = PostgresJoins(self._parameters, clock, self._side.ask, schema=schema, patience=PATIENCE)
        self._notifier = Notifier(self._side.ask, clock.sleep)
        self._listener = Listener(self._connect, self._side.ask)
        self._prepare(create, accept)

    def _prepare(self, create: bool, accept: bool) -> None:
        try:
            settings = self._settings()
            refuse_unsafe(settings)
            if not is_current(settings.applied):
                self._refuse_a_second(settings)
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

    def _no_ledger(self, settings: Settings) -> NoLedger:
        with self._side.session() as db:
            found = examine_server(db, self._side.asking(db), settings, self._clock)
        return NoLedger(f"There is no ledger in this database; {POINT}.", findings=found)

    def _refuse_a_second(self, settings: Settings) -> None:
        """A ledger where an earlier build made it: a new one beside it would repeat all that it has done."""
        if settings.elsewhere and not self._named:
            raise SchemaMismatch(
                f"The ledger of this database is in the schema {settings.elsewhere}, not in {self._schema}; to go on "
                f"with it, add ?schema={settings.elsewhere} to the URL; to begin a new one, ?schema={self._schema}."
            )

    def _settings(self) -> Settings:
        try:
            text = self._side.ask(in_schema(SETTINGS, self._schema))[0][0]
        except SchemaMismatch:  # no table yet
            text = self._side.ask(SETTINGS_OF_AN_EMPTY_DATABASE.encode())[0][0]
        return msgspec.json.decode(text or b"", type=Settings)

    def _connect(self) -> psycopg.Connection:
        return psycopg.connect(autocommit=True, prepare_threshold=None, **self._parameters)

    # -- the seam --------------------------------------------------------------------------------

    def commit(self, batches: Sequence[Batch]) -> Sequence[Outcome | Again]:
        answers = outcomes(
            batches, _one(self._commits.ask(*commit_call(self._calls, batches), alone=len(batches) == 1))
        )
        self._watch_numbers(answers)
        self._notifier.tell(
            place
            for batch, answer in zip(batches, answers, strict=True)
            if type(answer) is Written
            for place in rings(batch)
        )
        return answers

    def _watch_numbers(self, answers: Sequence[Outcome | Again]) -> None:
        """They only grow, as long as it is the same ledger. On a connection that never broke nobody else would see."""
        newest = max((answer.fence for answer in answers if type(answer) is Written), default=self._newest)
        if newest < self._newest:
            self._primary.look_again(self._side.ask)
        self._newest = newest

    def confirm(self) -> None:
        """A restart, or whoever ends a session that waits for a standby, lets all see what no standby may have."""
        self._commits.ask(CONFIRM)

    def fetch(self, addresses: Sequence[Address]) -> Sequence[Found]:
        return found(_one(self._reads.ask(self._calls.fetch, fetch_values(addresses), alone=len(addresses) == 1)))

    def scan(self, kind: str, space: str | None, state: str | None, after: str | None, limit: int) -> Page:
        asked = Scan(kind, space, state, after, limit, schema=self._schema)
        link = self._side if space is None else self._reads  # a run's own ledger must not wait for long scans
        return asked.page(link.ask(asked.sql, asked.values))

    def beside(self, spaces: Sequence[str], kinds: Sequence[str], limit: int) -> Sequence[Record]:
        return decode_records(_one(self._side.ask(self._calls.beside, beside_values(spaces, kinds, limit))))

    def due(self, kind: str, queues: Collection[str], limit: int, hide: float) -> Due:
        if len(queues) <= FEW:
            return self._hand_out(kind, queues, limit, hide)
        ripe, later, now = look(self._side.ask, kind, frozenset(queues), limit, self._schema)
        due = self._hand_out(kind, ripe, limit, hide) if ripe else Due([], None, now)
        others = None if later is None else max(0.0, later - due.now)
        return structs.replace(due, next_in=min((at for at in (due.next_in, others) if at is not None), default=None))

    def _hand_out(self, kind: str, queues: Collection[str], limit: int, hide: float) -> Due:
        return due_of(_one(self._side.ask(self._calls.due, due_values(kind, queues, limit, hide))))

    def listen(self, heard: Heard) -> float | None:
        """From now on, tell which spaces changed in other processes."""
        return self._listener.start(heard)

    # -- life ------------------------------------------------------------------------------------

    def examine(self) -> Sequence[Finding]:
        settings = self._settings()
        with self._side.session() as db:
            return examine(db, self._side.asking(db), settings, self._clock, self._schema)

    def close(self) -> None:
        self._listener.close()
        self._notifier.close()
        for link in self._links:
            link.hush()  # all of them before any is waited for
        for link in self._links:
            link.close()

    def abandon(self) -> None:
        self._listener.reset()
        self._notifier.reset()
        for link in self._links:
            link.abandon()


def _one(rows: Sequence[Sequence[bytes | None]]) -> bytes:
    return rows[0][0] or b""


def _parameters(url: str) -> dict[str, Any]:
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
