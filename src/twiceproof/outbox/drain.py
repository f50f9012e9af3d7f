"""Drain: moves messages from an outbox table in another database into the ledger.

Rows are read in the order of their order keys and numbers, written to the ledger by their keys, and then deleted. A row
with an order key is written only after the previous row of that key is known to be in the ledger. A process that dies
or stalls in between leaves rows that are read again and recognised by their keys: each message is in the ledger once
and in order, even with two movers. A refused row holds back the later rows of its order key. A lease in the ledger only
keeps several processes from reading the same rows; it follows the interval, so that another mover soon takes over from
one that died.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from hashlib import sha256
from itertools import groupby
from typing import Any

import msgspec
from msgspec import Raw, Struct

from ..claims.policy import lease_for
from ..clock import Clock
from ..effects.sql_connection import SqlConnection, SqlError
from ..effects.sql_databases import database_of
from ..errors import Misuse, NotDone, PayloadMismatch, StoreError, StoreUnavailable
from ..keys.canonical import duplicate_name
from ..operations import block
from ..records import SELF, Address, Insert, Record, Replace, record_kind
from ..stores.base import Store
from ..threads import ThreadGroup
from .foreign_table import TABLE, marked
from .message import JSON, Message
from .pauses import Outage
from .relay import LOOK
from .routing import Routing
from .sending import MessageOrigin, Sending, make_messages, write_message, write_unordered

__all__ = ["DRAIN_KIND", "Drain", "Drains"]


log = logging.getLogger("twiceproof.drain")

DRAIN_KIND = record_kind("drain")
SPACE = "~drains"  # cannot clash with a tenant: their names have no tilde
BATCH = 500
TOLERANCE = 5.0  # seconds: a time that is further ahead than was declared was written under a wrong clock
GRACE = 30.0  # seconds for which the end waits for a batch under way


class OutboxRow(Struct, frozen=True):
    """A row of the outbox table."""

    id: int
    topic: str
    key: str
    order: str
    body: str
    content_type: str
    headers: str


class Drain:
    """Moves the messages of one tenant from one database."""

    def __init__(
        self, store: Store, source: Any, tenant: str, routing: Routing, *, every: float, name: str, clock: Clock
    ) -> None:
        self.name = name
        self.tenant = tenant
        self.moved = self.refused = 0
        self._store = store
        self._database = database_of(source)
        self._kept = source  # an engine or a function is only weakly held by the database
        self._routing = routing
        self._every = every
        self._at = Address(f"{SPACE}/{sha256(f'{tenant} {name}'.encode()).hexdigest()[:24]}", DRAIN_KIND, SELF)
        self._queue = self._at.space
        self._declared = False
        self._outage = Outage(f"the outbox {name}", clock)
        self._store_outage = Outage("the store", clock)

    def run_once(self) -> float:
        """Move what is there, up to a batch. Return after how many seconds to look again."""
        try:
            pause = self._turn()
        except StoreError as error:
            if isinstance(error, StoreUnavailable) and error.data.get("closed"):
                raise
            return self._store_outage.fail(error)
        except (SqlError, NotDone) as error:
            return self._outage.fail(error)
        self._store_outage.end()
        return pause

    def _turn(self) -> float:
        held = self._taken()
        if held is None:
            return self._every
        moved = self.move()
        self._outage.end()
        again = 0.0 if moved >= BATCH else self._every
        freed = Replace(held.at, None, held.state, version=held.version, queue=self._queue, due_in=again)
        self._store.write(freed).block()  # refused if the lease had expired and another mover took it
        return again

    def _taken(self) -> Record | None:
        """Return the lease of this source, if it is free."""
        if not self._declared:
            self._store.write(Insert(self._at, "", queue=self._queue, due_in=0.0)).block()  # or it exists already
            self._declared = True
        lease = lease_for(self._every)
        due = self._store.due(DRAIN_KIND, queues=[self._queue], limit=1, hide=lease).block()
        if due.next_in is not None and due.next_in > max(lease, self._every) + TOLERANCE:
            self._bring_back()
        return due.records[0] if due.records else None

    def _bring_back(self) -> None:
        """Make the source due at the next turn: its time was written while the store's clock was ahead."""
        found = self._store.read(self._at).block().record
        if found is not None:
            back = Replace(self._at, None, found.state, version=found.version, queue=self._queue, due_in=0.0)
            self._store.write(back).block()

    def move(self) -> int:
        """Move one batch, without looking at the lease. Return how many rows were read."""
        with self._database.open() as connection:
            rows = self._read(connection)
            if not rows:
                return 0
            moved, refused = self._write(rows)
            for row_id, why in refused.items():
                self._mark(connection, row_id, why)
            self._delete(connection, moved)
        self.moved += len(moved)
        self.refused += len(refused)
        return len(rows)

    # -- the other database ----------------------------------------------------------------------

    def _read(self, connection: SqlConnection) -> list[OutboxRow]:
        """Read up to a batch of rows without order keys and a batch with, so that a backlog of one kind does not delay
        the other.

        Rows are not locked while they are moved: if a locked row were skipped, the next one of its order key would
        overtake it. Rows behind a refused row of the same order key also wait for a person.
        """
        key = "`key`" if connection.dialect == "mysql" else "key"
        behind = (
            f"SELECT 1 FROM {TABLE} AS no WHERE no.tenant = one.tenant AND no.refused <> '' "  # noqa: S608 - our names
            "AND no.order_key = one.order_key AND no.seq < one.seq"
        )
        found: list[OutboxRow] = []
        for which in ("order_key = ''", f"order_key <> '' AND NOT EXISTS ({behind})"):
            sql = (
                f"SELECT id, topic, {key}, order_key, body, content_type, headers FROM {TABLE} AS one "  # noqa: S608
                f"WHERE tenant = $1 AND refused = '' AND {which} ORDER BY order_key, seq, id LIMIT {BATCH}"
            )
            found += [OutboxRow(*row) for row in self._run(connection, sql, [self.tenant])]
        return found

    def _delete(self, connection: SqlConnection, ids: Sequence[int]) -> None:
        if ids:
            chosen = ", ".join(str(int(one)) for one in ids)
            self._run(connection, f"DELETE FROM {TABLE} WHERE id IN ({chosen})")  # noqa: S608 - numbers

    def _mark(self, connection: SqlConnection, row_id: int, why: str) -> None:
        """Mark a row that cannot become a message. It stays in the table and is not read again until a person repairs
        it.
        """
        word = why.partition(":")[0][:64]
        self._run(connection, f"UPDATE {TABLE} SET refused = $1 WHERE id = {int(row_id)}", [word])  # noqa: S608
        log.error(
            "the row %d of %s in %s cannot be sent: %s Repair it and set refused = '', or delete it.",
            row_id,
            TABLE,
            self.name,
            why,
        )

    def _run(self, connection: SqlConnection, sql: str, values: Sequence[Any] = ()) -> Sequence[Sequence[Any]]:
        return connection.run(marked(sql, connection.dialect), values).rows

    # -- the ledger ------------------------------------------------------------------------------

    def _write(self, rows: Sequence[OutboxRow]) -> tuple[list[int], dict[int, str]]:
        """Write each row's messages. Return the rows that were written, and those that cannot be, with the reason."""
        moved: list[int] = []
        refused: dict[int, str] = {}
        for order, group in groupby(rows, key=lambda row: row.order):
            tried = list(group)
            if order:
                tried = self._write_in_order(tried, refused)
            else:
                self._write_together([(row, self._messages(row, refused)) for row in tried], refused)
            moved += [row.id for row in tried if row.id not in refused]
        return moved, refused

    def _write_in_order(self, rows: Sequence[OutboxRow], refused: dict[int, str]) -> list[OutboxRow]:
        """Write the rows of one order key up to the first that is refused. Return those that were tried."""
        for at, row in enumerate(rows, 1):
            self._write_each(row, self._messages(row, refused), refused)
            if row.id in refused:
                return list(rows[:at])
        return list(rows)

    def _messages(self, row: OutboxRow, refused: dict[int, str]) -> list[Message]:
        try:
            headers = msgspec.json.decode(row.headers, type=dict[str, str])
            _refuse_repeated_name(row.headers)
            given = Sending(row.topic, _body(row), row.key, row.order or None, headers, 0.0, _kind(row))
            return make_messages(self._routing, given, row.key, MessageOrigin(f"twiceproof/{self.tenant}"))
        except (Misuse, msgspec.MsgspecError, ValueError) as error:
            refused[row.id] = f"{type(error).__name__}: {error}"
            return []

    def _write_each(self, row: OutboxRow, messages: Sequence[Message], refused: dict[int, str]) -> None:
        try:
            for message in messages:
                block(write_message(self._store, self.tenant, message, 0.0))
        except (PayloadMismatch, Misuse) as error:
            refused[row.id] = f"{type(error).__name__}: {error}"

    def _write_together(self, made: Sequence[tuple[OutboxRow, list[Message]]], refused: dict[int, str]) -> None:
        """Write messages without an order key in few commits; what is there already is compared one by one."""
        first = {message.key: row for row, messages in reversed(made) for message in messages}
        fresh = [(row, message) for row, messages in made for message in messages if first[message.key] is row]
        known = block(write_unordered(self._store, self.tenant, [message for _, message in fresh]))
        again = {row.id for (row, _), is_known in zip(fresh, known, strict=True) if is_known}
        for row, messages in made:
            if row.id in again or any(first[message.key] is not row for message in messages):
                self._write_each(row, messages, refused)


def _body(row: OutboxRow) -> Any:
    if row.content_type != JSON:
        from base64 import b64decode

        return b64decode(row.body, validate=True)
    msgspec.json.decode(row.body)  # raises where the body is not JSON
    _refuse_repeated_name(row.body)
    return Raw(row.body.encode())


def _refuse_repeated_name(text: str) -> None:
    twice = duplicate_name(text)
    if twice is not None:
        raise Misuse(f"The name {twice[:80]!r} is twice in one object; send each name once.")


def _kind(row: OutboxRow) -> str | None:
    return None if row.content_type == JSON else row.content_type


class Drains:
    """The movers of a process, each on a thread. They run beside a worker or a relay."""

    def __init__(self, drains: Sequence[Drain]) -> None:
        self.drains = drains
        self._stopping = threading.Event()
        self._threads = ThreadGroup()

    def start(self) -> None:
        for one in self.drains:
            self._threads.start(partial(self._serve, one), f"twiceproof-drain-{one.name}")

    def _serve(self, one: Drain) -> None:
        while not self._stopping.is_set():
            try:
                pause = one.run_once()
            except StoreUnavailable:  # the connection was closed
                return
            except Exception:
                log.exception("moving messages from %s failed", one.name)
                pause = LOOK
            self._stopping.wait(pause)

    def drain(self) -> None:
        self._stopping.set()

    def join(self, patience: float) -> int:
        return self._threads.join(patience)

    def run(self, *, until_idle: bool = False) -> int:
        """Move rows until told to drain, or with `until_idle` until none is left. Return how many messages were
        moved.
        """
        if not until_idle:
            self.start()
            self._stopping.wait()
            self.join(GRACE)
        for one in self.drains if until_idle else ():
            while one.move() >= BATCH:
                pass
        return sum(one.moved for one in self.drains)

    def counts(self) -> Mapping[str, Mapping[str, int]]:
        """Nothing is published here."""
        return {}
