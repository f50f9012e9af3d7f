"""Store and Engine protocols, Finding, the one rule when a write fits; cursors and migrations of SQL engines.

`Store` is what the rest of the package uses. `Engine` is what a backend implements: a handful of blocking methods.
`stores.grouped.GroupedStore` turns an engine into a store, with group commit and the handling of lost acknowledgements,
so a new backend is one short file. Their contract is written as tests in `twiceproof.prove.store_contract`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct

from ..errors import BadWrite, SchemaMismatch, StoreError, StoreUnsafe
from ..operations import Operation, Request
from ..records import Address, Batch, Check, Due, Found, Insert, Outcome, Page, Record, Write

if TYPE_CHECKING:
    from .notifications import Subscription

__all__ = [
    "EVERY",
    "FEW",
    "LOCKED",
    "LOCKED_LEDGER",
    "MOST_LOOKED_AT",
    "PASSED",
    "POINT",
    "SPACE_BUSY",
    "Disconnected",
    "Engine",
    "Finding",
    "LedgerLock",
    "Migration",
    "NoLedger",
    "SpaceBusy",
    "Store",
    "StorePromises",
    "after_id",
    "after_key",
    "after_place",
    "all_beside",
    "chosen",
    "condition_number",
    "cursor_of_key",
    "cursor_of_place",
    "end_of_prefix",
    "fits",
    "indexed_by_time",
    "migrations",
    "refuse_locked",
    "refuse_unsafe_findings",
    "row_of",
    "scan_all",
    "soonest",
]


class Store(Protocol):
    """Records with versions. Knows neither claims nor flows.

    A returned request is answered by `yield from` in an operation, by `.block()`, or by awaiting `.wait()`.
    """

    batch_limit: int  # writes that land together; 1 = the backend has no transactions
    body_limit: int  # bytes of a record's body
    best_effort: bool  # acknowledged writes can be lost (replicated Redis on failover)
    newest_first: bool  # `scan` can go by age; a store without that order lists by its own, and says so here
    links_spaces: bool  # `write` can land writes to several spaces together

    @property
    def reads_first(self) -> bool:
        """Whether, right now, a read costs so little that it pays to look before writing."""

    def read(self, at: Address) -> Request[Found]:
        """What is at this address now. Sees every write acknowledged before it began."""

    def write(self, *writes: Write, also: Insert | None = None, linked: Sequence[Write] = ()) -> Request[Outcome]:
        """Writes to one space, all or none.

        `linked` are writes to other spaces, which land with `writes` or not at all; only where `links_spaces` is set.

        `also` is an index record of another space. It is inserted by the same commit, so that it costs no second one,
        but independently: neither of the two prevents the other. The outcome is that of `writes` alone.
        """

    def scan(
        self,
        kind: str,
        *,
        space: str | None = None,
        state: str | None = None,
        after: str | None = None,
        limit: int = 100,
        newest: bool | None = None,
        prefix: str | None = None,
    ) -> Request[Page]:
        """Records of a kind, page by page. A record that stays put is met exactly once.

        `newest`: True for the latest first, by when they were inserted; False for the oldest first, from a cursor of
        either direction. It is ignored where `newest_first` is not set. `prefix`: only spaces that begin so; such a
        page may be short, even empty, while `after` goes on: none looks at more than `MOST_LOOKED_AT` entries. Both
        together: `prefix` is a family, the first two parts of a space with their slashes (`default/sync_order/`), and
        the kind is indexed by it. Neither goes with `space`.
        """

    def beside(self, spaces: Sequence[str], kinds: Sequence[str], *, limit: int = 100) -> Request[Sequence[Record]]:
        """Records of these kinds in these spaces: of each space at most `limit`, the first by key; in no order."""

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

    `fetch`, `scan` and `due` may be called from several threads, also while `commit` runs. Any method may raise
    `Disconnected`, and is then called again. One that is notified of changes in other processes may have
    `listen(on_change)`: called when a caller begins to wait, it passes on which names changed, and returns for how long
    callers may wait without looking (None: it is notified of every change). One whose records can be read before they
    are as durable as acknowledged ones has `confirm()`, which returns when all that could be read is. One whose records
    take less than `validate.MOST_BODY` says how many bytes in `body_limit`; one that lands batches of several spaces
    sets `links_spaces`; one that estimates its service's time says in `lease_margin` by how much two processes may
    differ. For speed alone, an engine may have `beside(spaces, kinds, limit)`, which reads many spaces at once, and be
    `instant` (a commit waits for no server or disk, so that an event loop may do it itself) or `remote` (a commit is
    mostly a server's work, and the callers run meanwhile).
    """

    batch_limit: int
    reads_first: bool  # reads are local and take microseconds: callers do them themselves
    best_effort: bool
    newest_first: bool  # `scan` honours `newest`
    group_limit: int  # batches that `commit` takes at once
    one_per_space: bool  # `commit` must not be given two batches of one space

    def commit(self, batches: Sequence[Batch]) -> Sequence[Outcome | SpaceBusy | Exception]:
        """Land each batch or not, each on its own. An answer per batch, in order."""

    def fetch(self, addresses: Sequence[Address]) -> Sequence[Found]:
        """What is at these addresses, in order."""

    def scan(
        self,
        kind: str,
        space: str | None,
        state: str | None,
        after: str | None,
        limit: int,
        newest: bool | None = None,
        prefix: str | None = None,
    ) -> Page: ...

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


class SpaceBusy(Struct, frozen=True):
    """An engine's answer for a batch that could not be tried yet: another transaction holds its space."""


SPACE_BUSY = SpaceBusy()


class Disconnected(Exception):
    """The connection broke. `sent`: the work may have reached the server. `answers`: a commit's, None where unknown."""

    def __init__(self, cause: BaseException, *, sent: bool, answers: Sequence[Any] = ()) -> None:
        super().__init__(str(cause))
        self.sent, self.answers = sent, answers


class StorePromises(Struct, frozen=True):
    """What an engine declares of itself, in a few words: the page on choosing a store is made from it."""

    power_cut: str  # whether acknowledged writes survive one
    failover: str  # what becomes of them when another server takes over
    clock: str  # whose clock leases are measured by
    claim: str  # round trips to take and complete a claim
    duplicate: str  # round trips to answer a duplicate
    checked: str  # what it was checked against


class Finding(Struct, frozen=True):
    """One line of `doctor`: `ok`, `warn` or `refuse`, what was found, and the next move."""

    level: str
    name: str
    found: str
    advice: str = ""


def refuse_unsafe_findings(technology: str, findings: Iterable[Finding]) -> None:
    """Raise StoreUnsafe if one of them says `refuse`: the message has the first, `findings` all."""
    unsafe = [finding for finding in findings if finding.level == "refuse"]
    if unsafe:
        first = unsafe[0]
        raise StoreUnsafe(f"{technology} {first.name}: {first.found}. {first.advice}", findings=unsafe)


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


MOST_BIGINT = 2**63 - 1


def condition_number(write: Write) -> int:
    """The fence that must be there or, below zero, the version; 0 is never found."""
    if isinstance(write, Insert):
        return 0
    if write.fence is not None:
        return write.fence if write.fence <= MOST_BIGINT else 0
    # A version of another store, or one written differently ("007"), is simply not the one found.
    version = write.version or ""
    if not (version.isascii() and version.isdecimal()) or version[0] == "0" or int(version) > MOST_BIGINT:
        return 0
    return -int(version)


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
# Said when it is opened, and by triggers to processes that had it open before.
LOCKED = (
    "This ledger was moved to another place, or a copy into it has not ended; point to the other one, finish the copy "
    "(twiceproof ledger copy), or use this one again: twiceproof ledger unlock"
)


class LedgerLock(Struct, frozen=True):
    """Why a ledger must not be used. It stands among the migrations, so that older releases refuse the ledger, too."""

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
        raise SchemaMismatch(LOCKED)


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


EVERY = 10**9  # more records than there are


def scan_all(
    store: Store, kind: str, *, space: str | None = None, state: str | None = None, page: int = 1_000, most: int = EVERY
) -> Operation[list[Record]]:
    """Every record of a kind, page by page, at most so many. For one space or a short list: all of it is in memory."""
    found: list[Record] = []
    after: str | None = None
    while True:
        part = yield from store.scan(kind, space=space, state=state, after=after, limit=min(page, most - len(found)))
        found += part.records
        after = part.after
        if after is None or len(found) == most:
            return found


# -- what SQL engines share: cursors of scans, and migrations --------------------------------------


MOST_LOOKED_AT = 5_000  # entries that one page of a scan by prefix passes over
KEY_CURSOR, PLACE_CURSOR = "key:", "at:"


def after_id(cursor: str | None, *, newest: bool | None = None) -> int:
    """The id after which a scan goes on: upwards from 0, or downwards from the largest."""
    if cursor is None:
        return MOST_BIGINT if newest else 0
    if cursor.isascii() and cursor.isdecimal() and len(cursor) < 19:
        return int(cursor)
    raise _foreign(cursor)


def after_place(cursor: str | None, prefix: str) -> tuple[str, str, str]:
    """The space, kind and key after which a scan by prefix goes on. No kind is empty: the first ones come after it."""
    if cursor is None:
        return prefix, "", ""
    place = cursor.removeprefix(PLACE_CURSOR).split("\0")
    if cursor.startswith(PLACE_CURSOR) and len(place) == 3 and place[0].startswith(prefix):
        return place[0], place[1], place[2]
    raise _foreign(cursor)


def cursor_of_place(space: str, kind: str, key: str) -> str:
    """No text holds a NUL."""
    return PLACE_CURSOR + "\0".join((space, kind, key))


def end_of_prefix(prefix: str) -> str:
    """The first text, in the order of UTF-8, that is behind all that begin so."""
    last = ord(prefix[-1])
    if last == 0x10FFFF:
        return end_of_prefix(prefix[:-1]) if len(prefix) > 1 else prefix + chr(last)
    return prefix[:-1] + chr(0xE000 if last == 0xD7FF else last + 1)


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
