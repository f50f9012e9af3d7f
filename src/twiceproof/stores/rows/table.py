"""SortedTable: the interface to a service with sorted rows and compare-and-set; its changes and answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from typing import Any, Generic, Protocol, TypeVar

from msgspec import Struct

from ..base import Disconnected
from .server_clock import ServerClock

__all__ = [
    "ABSENT",
    "ANY",
    "UNANSWERED",
    "Change",
    "Landed",
    "LaneRow",
    "Place",
    "RowsDiffer",
    "ServiceClient",
    "SortedTable",
    "Throttled",
    "Together",
    "Workers",
    "closed",
]


class Closable(Protocol):
    def close(self) -> Any: ...


I = TypeVar("I")  # noqa: E741
A = TypeVar("A")
C = TypeVar("C", bound=Closable)

BESIDE = 500  # bytes of a change beside its data, at most: its key, and how the service writes it
# Statuses of a request that was given up on its way, by the service or by something in between: it may have been done.
UNANSWERED = (408, 425, 499)
Place = tuple[int, str]  # a lane, and a row's key in it


class _Expected(Struct, frozen=True):
    name: str


ABSENT = _Expected("absent")  # the row must not exist
ANY = _Expected("any")  # any row or none; for index rows, which change together with their record


class LaneRow(Struct, frozen=True, gc=False):
    """A stored row. `token` is what the service compares: it is different after every change."""

    place: Place
    token: Any
    data: bytes


class Change(Struct, frozen=True, gc=False):
    """One change of a transaction: put `data`, or delete (None), or only compare (`check`)."""

    place: Place
    expected: Any  # a token, ABSENT or ANY
    data: bytes | None = None
    number: int = 0
    check: bool = False


class Landed(Struct, frozen=True):
    """All changes were made. A token for each, in order; None where it has none."""

    tokens: Sequence[Any]


class RowsDiffer(Struct, frozen=True):
    """No change was made: other rows were found. Rows (or None) by place, as far as the service returned them."""

    found: Mapping[Place, LaneRow | None] = {}


class Throttled(Exception):
    """The service did nothing: too many requests, or another transaction on the same row."""

    def __init__(self, cause: BaseException, after: float | None = None) -> None:
        super().__init__(str(cause))
        self.after = after  # seconds that it demands


Answer = Landed | RowsDiffer | Exception


class SortedTable(Protocol):
    """A table. Blocking, safe to use from several threads; retries nothing by itself."""

    clock: ServerClock
    checks: bool  # a transaction can compare a row without changing it
    most_changes: int  # in one transaction

    def read(self, places: Sequence[Place]) -> Sequence[LaneRow | None]:
        """Return the current rows, in order. Sees every change that was acknowledged before."""

    def range(self, lane: int, after: str, before: str, limit: int) -> Sequence[LaneRow]:
        """The first rows of a lane with keys between these two, in order; fewer than `limit`: there are no more."""

    def ranges(self, asked: Sequence[tuple[int, str, str, int]]) -> Sequence[Sequence[LaneRow]]:
        """Several `range`s at once."""

    def change_each(self, transactions: Sequence[Sequence[Change]]) -> Sequence[Answer]:
        """Carry out each transaction, of one lane, whole or not at all. Failures are answers, such as `Throttled`."""

    def close(self) -> None: ...
    def abandon(self) -> None: ...


class Workers:
    """Does several requests at once, each on a thread. Threads are started when there is more than one request."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._pool: ThreadPoolExecutor | None = None

    def each(self, work: Callable[[I], A], items: Iterable[I]) -> list[A]:
        items = list(items)
        if len(items) < 2:
            return [work(item) for item in items]
        try:
            pool = self._pool = self._pool or ThreadPoolExecutor(self._most, "twiceproof-rows")
            running = [pool.submit(work, item) for item in items]
        except RuntimeError:  # no thread can be started, the process is ending, or the table was closed meanwhile
            return [work(item) for item in items]
        try:
            return [future.result() for future in running]
        except CancelledError:
            raise closed(sent=True) from None  # others of them were under way

    def close(self) -> None:
        """Cancel requests that have not begun. Does not wait for threads."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)

    def abandon(self) -> None:
        """In a forked child: the parent's threads do not exist here."""
        self._pool = None


class Together(Struct, frozen=True):
    """Sends many transactions in one request each: one request with many changes costs the client and the service far
    less than many requests. `send` carries out all of them or none; where one was to blame for that, it answers only
    this one, and None for the others, which are sent again.
    """

    workers: Workers
    send: Callable[[Sequence[Sequence[Change]]], Sequence[Answer | None]]
    most_changes: int
    most_bytes: int
    within_lane: bool = False  # the service's transactions are of one lane

    def each(self, transactions: Sequence[Sequence[Change]]) -> Sequence[Answer]:
        answers: dict[int, Answer] = {}
        left = list(range(len(transactions)))
        if self.within_lane:
            left.sort(key=lambda nth: transactions[nth][0].place[0])
        while left:
            parts = list(self._parts(transactions, left))
            sent = [[transactions[nth] for nth in part] for part in parts]
            for part, heard in zip(parts, self.workers.each(self.send, sent), strict=True):
                answers |= {nth: answer for nth, answer in zip(part, heard, strict=True) if answer is not None}
            left = [nth for nth in left if nth not in answers]
        return [answers[nth] for nth in range(len(transactions))]

    def _parts(self, transactions: Sequence[Sequence[Change]], left: Sequence[int]) -> Iterator[list[int]]:
        """Return which of them go into one request, by position: as many as the service accepts."""
        part: list[int] = []
        changes = size = 0
        for nth in left:
            one = transactions[nth]
            bytes_ = sum(len(change.data or b"") + BESIDE for change in one)
            fits = changes + len(one) <= self.most_changes and size + bytes_ <= self.most_bytes
            if part and not (fits and self._may_join(one, transactions[part[0]])):
                yield part
                part, changes, size = [], 0, 0
            part.append(nth)
            changes, size = changes + len(one), size + bytes_
        if part:
            yield part

    def _may_join(self, one: Sequence[Change], other: Sequence[Change]) -> bool:
        return not self.within_lane or one[0].place[0] == other[0].place[0]


class ServiceClient(Generic[C]):
    """A service's client, made when first needed, and threads for several requests at once."""

    def __init__(self, make: Callable[[], C], most: int) -> None:
        self._make = make
        self.workers = Workers(most)
        self._client: C | None = None
        self._closed = False
        self._leaked: list[C | None] = []

    def get(self) -> C:
        if self._closed:
            raise closed()
        if self._client is None:
            self._client = self._make()
        return self._client

    def close(self) -> None:
        """Requests under way end with their time-out; no further one begins."""
        self._closed = True
        self.workers.close()
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def abandon(self) -> None:
        """In a forked child the parent's connections stay open and unused: closing them would end them for both."""
        self._leaked.append(self._client)
        self._client = None
        self.workers.abandon()


def closed(*, sent: bool = False) -> Disconnected:
    """Return the error for requests after a table has been closed."""
    return Disconnected(ConnectionError("the store was closed"), sent=sent)
