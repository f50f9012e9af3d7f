"""Bugs of stores: what they would do if a condition, a lease or an acknowledgement were forgotten."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from msgspec import structs

from tests.faults.planted.batches import rewrite
from twiceproof.records import Batch, Check, Insert, Record, Remove, Replace, Write, Written
from twiceproof.stores.base import Disconnected
from twiceproof.stores.grouped import GroupedStore
from twiceproof.stores.sqlite.engine import SqliteEngine


def _there(engine: Any, write: Write) -> Record | None:
    """Return the record there; None if the store cannot be read."""
    try:
        return engine.fetch([write.at])[0].record
    except Disconnected:
        return None


def fence_ignored() -> None:
    """The fence of a write is not compared."""

    def change(engine: Any, write: Write) -> Iterator[Write]:
        if isinstance(write, Replace) and write.fence is not None and (found := _there(engine, write)):
            write = structs.replace(write, fence=None, version=found.version)
        yield write

    rewrite(change)


def version_ignored() -> None:
    """Two that read the same record may both replace it."""

    def change(engine: Any, write: Write) -> Iterator[Write]:
        if isinstance(write, Replace) and write.version is not None and (found := _there(engine, write)):
            write = structs.replace(write, version=found.version)
        yield write

    rewrite(change)


def check_then_insert() -> None:
    """A record is looked for and then written in two steps: one that another caller wrote in between is overwritten."""

    def change(engine: Any, write: Write) -> Iterator[Write]:
        if isinstance(write, Insert) and write.draw and (found := _there(engine, write)):
            yield Replace(
                write.at,
                write.body,
                write.state,
                version=found.version,
                draw=True,
                lease=write.lease,
                queue=write.queue,
                due_in=write.due_in,
            )
        else:
            yield write

    rewrite(change)


def checks_dropped() -> None:
    """A batch lands whether or not its condition holds: the ledger of a run is not fenced."""
    rewrite(lambda engine, write: () if isinstance(write, Check) else (write,))


def no_fence_drawn() -> None:
    """A take-over gets the same number as the previous holder."""

    def change(engine: Any, write: Write) -> Iterator[Write]:
        yield structs.replace(write, draw=False) if isinstance(write, Replace) and write.draw else write

    rewrite(change)


def lease_born_dead() -> None:
    """A lease ends as soon as it is taken."""

    def change(engine: Any, write: Write) -> Iterator[Write]:
        yield structs.replace(write, lease=0.0) if isinstance(write, Insert | Replace) and write.lease else write

    rewrite(change)


def lease_for_ever() -> None:
    """The claim of a dead worker never lapses."""

    def change(engine: Any, write: Write) -> Iterator[Write]:
        if isinstance(write, Insert | Replace) and write.lease:
            write = structs.replace(write, lease=1e9, due_in=1e9 if write.queue else None)
        yield write

    rewrite(change)


def removed_by_anybody() -> None:
    """A key is released even if another caller holds it by now."""

    def change(engine: Any, write: Write) -> Iterator[Write]:
        if isinstance(write, Remove) and (found := _there(engine, write)):
            write = structs.replace(write, fence=None, version=found.version)
        yield write

    rewrite(change)


def half_a_batch() -> None:
    """Of several writes only the first lands, and all are acknowledged."""
    commit = GroupedStore._commit

    def torn(self: GroupedStore, batches: Any) -> Any:
        return commit(self, [structs.replace(batch, writes=batch.writes[:1]) for batch in batches])

    GroupedStore._commit = torn  # type: ignore[method-assign]


def acknowledged_before_commit() -> None:
    """A completion is acknowledged at once, and committed together with whatever comes next."""
    commit = GroupedStore._commit

    def early(self: GroupedStore, batches: Any) -> Any:
        waiting: list[Any] = self.__dict__.setdefault("_planted", [])
        if all(_is_an_end(batch) for batch in batches):
            waiting.extend(batches)
            return [Written("1", 1, 0.0) for _ in batches]
        held_back, waiting[:] = list(waiting), []
        return commit(self, [*held_back, *batches])[len(held_back) :]

    GroupedStore._commit = early  # type: ignore[method-assign]


def _is_an_end(batch: Batch) -> bool:
    return isinstance(batch.writes[0], Replace) and batch.writes[0].state == "done"


def nonce_not_read_back() -> None:
    """After a lost acknowledgement a write's own first try is taken for another caller's."""
    GroupedStore._recognise_lost_acknowledgement = lambda self, batch, answer: answer  # type: ignore[method-assign]


def lost_answer_is_a_failure() -> None:
    """A missing answer is treated as nothing written: the same is written again, with another nonce."""
    commit = GroupedStore._commit

    def again(self: GroupedStore, batches: Any) -> Any:
        try:
            return self.engine.commit(batches)
        except Disconnected:
            return commit(self, [structs.replace(batch, nonce=batch.nonce[::-1]) for batch in batches])

    GroupedStore._commit = again  # type: ignore[method-assign]


def power_is_trusted() -> None:
    """SQLite hands its log to the system and does not wait until it is on the disk."""
    made = SqliteEngine.__init__

    def careless(self: SqliteEngine, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **(kwargs | {"durability": "process"}))

    SqliteEngine.__init__ = careless  # type: ignore[method-assign]


def numbers_from_the_clock() -> None:
    """Fences are the time of day: two within a second are equal, and a clock set back makes old ones new."""
    from twiceproof.stores.sqlite.rows import VersionCounter

    VersionCounter.next = lambda self, db: int(time.time())  # type: ignore[method-assign]


def packet_without_commit() -> None:
    """MariaDB acknowledges a packet whose last statement is missing: the next BEGIN commits it."""
    from twiceproof.stores.mariadb.rows import LedgerSql

    commit = LedgerSql.commit
    LedgerSql.commit = lambda self, batches: commit(self, batches)[:-1]  # type: ignore[method-assign]
