"""Store and Engine protocols, Finding, the one rule when a write fits; cursors and migrations of SQL engines.

`Store` is what the rest of the package uses. `Engine` is what a backend implements: a handful of blocking methods.
`stores.grouped.GroupedStore` turns an engine into a store, with group commit and the handling of lost acknowledgements,
so a new backend is one short file. Their contract is written as tests in `twiceproof.prove.store_contract`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from ..errors import BadWrite, SchemaMismatch, StoreError
from ..operations import Operation, Request
from ..records import Address, Batch, Check, Due, Found, Insert, Outcome, Page, Record, Write

if TYPE_CHECKING:
    from .notifications import Subscription

__all__ = [
    "AGAIN",
    "FEW",
    "LOCKED_LEDGER",
    "PASSED",
    "POINT",
    "Again",
    "Disconnected",
    "Engine",
    "Finding",
    "LedgerLock",
    "Migration",
    "NoLedger",
    "Store",
    "after_id",
    "after_key",
    "all_beside",
    "chosen",
    "cursor_of_key",
    "fits",
    "indexed_by_time",
    "migrations",
    "refuse_locked",
    "row_of",
    "scan_all",
    "soonest",
]


class Store(Protocol):
    """Records with versions. Knows neither claims nor flows.

    A request that a method returns is answered by `yield from` in an operation, by `.block()`, or by
    awaiting `.wait()`.
    """

    batch_limit: int  # writes that land together; 1 = the backend has no transactions
    best_effort: bool  # acknowledged writes can be lost (replicated Redis on failover)

    @property
    def reads_first(self) -> bool:
        """Whether, right now, a read costs so little that it pays to look before writing."""

    def read(self, at: Address) -> Request[Found]:
        """What is at this address now. Sees every write acknowledged before it began."""

    def write(self, *writes: Write, also: Insert | None = None) -> Request[Outcome]:
        """Writes to one space, all or none.

        `also` is an index record of another space. It is inserted by the same commit, so that it costs no second one,
        but independently: it may exist already, and neither of the two prevents the other. The outcome is that of
        `writes` alone.
        """

    def scan(
        self,
        kind: str,
        *,
        space: str | None = None,
        state: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> Request[Page]:
        """Records of a kind, page by page. A record that stays put is met exactly once."""

    def beside(self, spaces: Sequence[str], kinds: Sequence[str], *, limit: int = 100) -> Request[Sequence[Record]]:
        """What lies in these spaces, of these kinds: of each space (and kind) at most so much, the first by key; in no
        order."""

    def write_each(
        self, batches: Sequence[Sequence[Write]], *, patience: float | None = None
    ) -> Request[Sequence[Outcome | Exception]]:
        """Several `write`s at once, each for itself: they share commits. An error is the answer to its own.

        `patience`: for how many seconds to try one whose space another transaction holds; by default the store's.
        """

    def read_each(self, addresses: Sequence[Address]) -> Request[Sequence[Found]]:
        """Several `read`s at once."""

    def due(self, kind: str, *, queues: Collection[str], limit: int = 100, hide: float = 5.0) -> Request[Due]:
        """Records whose time has come, longest overdue first; hidden from others for `hide` seconds."""

    def pause(self, space: str, seconds: float) -> Request[None]:
        """Wait until something in this space may have changed, at most so long. A hint, never a promise."""

    def watch(self, places: Collection[str]) -> Subscription:
        """A standing wait for spaces (by name) and queues (by `notifications.queue_channel`)."""

    def examine(self) -> Sequence[Finding]:
        """What this store can and cannot promise here: the substance of `twiceproof doctor`."""

    def close(self) -> None:
        """Finish what is under way and let go of connections and threads, in bounded time whatever the network does."""


class Engine(Protocol):
    """What a backend implements. Blocking; `commit` is never called twice at once.

    `fetch`, `scan` and `due` may be called from several threads, also while `commit` runs. Any method may
    raise `Disconnected`, and is then called again. An engine that is notified of changes in other processes may also
    have `listen(on_change)`: called when a caller begins to wait, it passes on which names changed, and returns for how
    long callers may wait without looking (None: it is notified of every change). One whose records can be read before
    they are as durable as acknowledged ones has `confirm()`, which returns when all that could be read is. For speed
    alone, an engine may have `beside(spaces, kinds, limit)`, which reads many spaces at once, and may be `instant` (a
    commit waits for no server or disk, so that even an event loop may do it itself) or `remote` (a commit is mostly a
    server's work, and the callers run meanwhile).
    """

    batch_limit: int
    reads_first: bool  # reads are local and take microseconds: callers do them themselves
    best_effort: bool
    group_limit: int  # batches that `commit` takes at once
    one_per_space: bool  # `commit` must not be given two batches of one space

    def commit(self, batches: Sequence[Batch]) -> Sequence[Outcome | Again | Exception]:
        """Land each batch or not, each on its own. An answer per batch, in order."""

    def fetch(self, addresses: Sequence[Address]) -> Sequence[Found]:
        """What is at these addresses, in order."""

    def scan(self, kind: str, space: str | None, state: str | None, after: str | None, limit: int) -> Page: ...

    def due(self, kind: str, queues: Collection[str], limit: int, hide: float) -> Due: ...

    def examine(self) -> Sequence[Finding]: ...

    def close(self) -> None:
        """Let go of connections and threads, and wait for none: a network may be silent for ever."""

    def abandon(self) -> None:
        """In a forked child: forget the parent's connections without closing them."""


def all_beside(engine: Engine, spaces: Sequence[str], kinds: Sequence[str], limit: int) -> Sequence[Record]:
    """By one scan each, where an engine knows no better way."""
    if hasattr(engine, "beside"):
        found: Sequence[Record] = engine.beside(spaces, kinds, limit)
        return found
    pages = [engine.scan(kind, space, None, None, limit) for space in spaces for kind in kinds]
    return [record for page in pages for record in page.records]


class Again(Struct, frozen=True):
    """An engine's answer for a batch that could not be tried yet: another transaction holds its space."""


AGAIN = Again()


class Disconnected(Exception):
    """The connection broke. `sent`: whether the work may have reached the server. Internal to the stores."""

    def __init__(self, cause: BaseException, *, sent: bool) -> None:
        super().__init__(str(cause))
        self.sent = sent


class Finding(Struct, frozen=True):
    """One line of `doctor`: `ok`, `warn` or `refuse`, what was found, and the next move."""

    level: str
    name: str
    found: str
    advice: str = ""


def fits(write: Write, found: Record | None) -> bool:
    """Whether a write's condition holds for what is there."""
    if isinstance(write, Insert):
        return found is None
    if isinstance(write, Check) and write.absent:
        return found is None
    if found is None:
        return False
    if write.fence is not None:
        return found.fence == write.fence
    return found.version == write.version


POINT = "point to one with --store URL or TWICEPROOF_STORE"


class NoLedger(StoreError):
    """There is no ledger where the URL points. Carries `findings`, where the server could be examined without one."""


def row_of(record: Record) -> tuple[object, ...]:
    """Return a record as SQL stores have it in a row, from the space to the body."""
    at = record.at
    return (
        *(at.space, at.kind, at.key, record.state, int(record.version), record.fence, record.nonce),
        *(record.created_at, record.updated_at, record.lease_until, record.queue, record.due_at, record.body),
    )


LOCKED_LEDGER = 2_147_483_647  # among the numbers of migrations: a ledger that must not be used


class LedgerLock(Struct, frozen=True):
    """Why a ledger must not be used: a copy into it has not ended, or it was moved to another place.

    It stands among the migrations, so that also an older release refuses the ledger.
    """

    what: str  # "copying" or "moved"
    source: str = ""
    after: int = 0  # the id of the source's last record that is there

    @classmethod
    def read(cls, text: str) -> LedgerLock:
        what, _, rest = text.partition(" ")
        source, _, after = rest.partition(" ")
        return cls(what, source, int(after) if after.isdecimal() else 0)

    def text(self) -> str:
        return f"{self.what} {self.source} {self.after}"


def refuse_locked(applied: int) -> None:
    """Refuse a ledger with such a lock. `applied` is the largest number among its migrations."""
    if applied == LOCKED_LEDGER:
        raise SchemaMismatch(
            "This ledger was moved to another place, or a copy into it has not ended; point to the other one, finish "
            "the copy (twiceproof ledger copy), or use this one again: twiceproof ledger unlock"
        )


FEW = 32  # queues that are asked for one by one


def chosen(
    heads: Iterable[tuple[str, float]], asked: Collection[str], now: float, limit: int
) -> tuple[list[str], float | None]:
    """Of heads in the order of their times: the queues from which the `limit` longest overdue come, and when the first
    of the others is due. None: nothing else waits."""
    ripe: list[str] = []
    for queue, due_at in heads:
        if queue in asked:
            if due_at > now or len(ripe) == limit:
                return ripe, due_at
            ripe.append(queue)
    return ripe, None


PASSED = 1_000  # records of other workers' queues that a look by time passes over


@lru_cache(maxsize=16)
def indexed_by_time(queues: frozenset[str]) -> bool:
    """Whether what waits in these queues is indexed by time: in those named `tenant/…`, of which there may be many
    thousands. Other names are those of a few long queues, such as retention's, and would only be in the way.

    Cached: a worker looks with the same set again and again."""
    return all("/" in queue for queue in queues)


def soonest(
    waiting: Iterable[tuple[str, float]], asked: Collection[str], now: float, limit: int, most: int
) -> tuple[list[str], float | None, bool]:
    """As `chosen`, of the first `most` records in the order of their times: the cost depends on what is due, not on how
    many queues there are. The last value is whether they sufficed; if not, the time is that of the last record, before
    which nothing else in these queues is due."""
    ripe: dict[str, None] = {}
    read, taken, due_at = 0, 0, now
    for queue, due_at in waiting:
        read += 1
        if queue in asked:
            if due_at > now or taken == limit:
                return list(ripe), due_at, True
            ripe[queue] = None
            taken += 1
    return list(ripe), due_at if read == most else None, read < most


def scan_all(
    store: Store, kind: str, *, space: str | None = None, state: str | None = None, page: int = 1_000
) -> Operation[list[Record]]:
    """Every record of a kind, page by page. For one space or a short list: all of it is in memory at once."""
    found: list[Record] = []
    after: str | None = None
    while True:
        part = yield from store.scan(kind, space=space, state=state, after=after, limit=page)
        found += part.records
        after = part.after
        if after is None:
            return found


# -- what SQL engines share: cursors of scans, and migrations --------------------------------------


KEY_CURSOR = "key:"


def after_id(cursor: str | None) -> int:
    if cursor is None or (cursor.isascii() and cursor.isdecimal() and len(cursor) < 19):
        return int(cursor or 0)
    raise _foreign(cursor)


def after_key(cursor: str | None) -> str:
    """No key is empty, so that all of them come after the empty one."""
    if cursor is None or cursor.startswith(KEY_CURSOR):
        return (cursor or KEY_CURSOR).removeprefix(KEY_CURSOR)
    raise _foreign(cursor)


def cursor_of_key(key: str) -> str:
    return KEY_CURSOR + key


def _foreign(cursor: str) -> BadWrite:
    return BadWrite(f"{cursor[:40]!r} is not a cursor of this scan; begin it again without one.")


class Migration(Struct, frozen=True):
    number: int
    name: str
    sql: str


def migrations(dialect: str) -> list[Migration]:
    """The dialect's migrations in order: `0001_schema.sql` is number 1."""
    from importlib.resources import files  # a late import: `App` is imported faster without it

    found = [
        Migration(int(file.name[:4]), file.name, file.read_text("utf-8"))
        for file in files(__package__).joinpath(dialect, "migrations").iterdir()
        if file.name.endswith(".sql")
    ]
    return sorted(found, key=lambda migration: migration.number)
