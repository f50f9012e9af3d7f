"""Fixtures and helpers of the store contract."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any, Protocol, TypeVar

import pytest

from ...errors import BadWrite
from ...operations import Request
from ...records import Address, Conflict, Due, Insert, Lost, Record, Write, Written
from ...stores.base import Store
from ..faulty_engine import FaultyEngine

__all__ = [
    "KIND",
    "QUEUE",
    "SPACE",
    "StoreCase",
    "StoreRequest",
    "all_at_once",
    "by_both_drivers",
    "claim",
    "due_keys",
    "in_one_batch",
    "in_threads",
    "is_absent",
    "land",
    "land_each",
    "lose",
    "met",
    "place",
    "record_at",
    "refuse",
    "schedule",
    "take_due",
]


R = TypeVar("R")

SPACE, KIND, QUEUE = "shop", "claim", "sync@1"
A_MINUTE = 60.0


class StoreRequest(Protocol):
    """A driver: takes a request to its answer."""

    def __call__(self, request: Request[R]) -> R: ...


def _blocking(request: Request[R]) -> R:
    return request.block()


def _awaiting(request: Request[R]) -> R:
    return asyncio.run(request.wait())


by_both_drivers = pytest.mark.parametrize("ask", [_blocking, _awaiting], ids=["blocking", "asyncio"])


def place(key: object = "key", *, space: str = SPACE, kind: str = KIND) -> Address:
    return Address(space, kind, str(key))


def land(store: Store, *writes: Write) -> Written:
    """Write, and assert that it landed."""
    outcome = store.write(*writes).block()
    assert isinstance(outcome, Written)
    return outcome


def land_each(store: Store, *writes: Write) -> None:
    """Write each by itself, and assert that it landed."""
    for write in writes:
        land(store, write)


def in_one_batch(count: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Of a test that needs a batch of so many writes. A store whose batches are smaller refuses such a batch whole,
    which is what the test then asserts: it never lands in parts."""

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def run(self: Any, store: Store, **given: Any) -> None:
            if store.batch_limit >= count:
                test(self, store, **given)
                return
            before = met(store)
            with pytest.raises(BadWrite, match=f"lands together .{store.batch_limit}."):
                store.write(*(Insert(place(f"{nth} of a batch"), "") for nth in range(count))).block()
            assert met(store) == before

        return run

    return decorate


def refuse(store: Store, *writes: Write) -> Conflict:
    """Write, and assert that it conflicted."""
    outcome = store.write(*writes).block()
    assert isinstance(outcome, Conflict)
    return outcome


def lose(store: Store, *writes: Write) -> Lost:
    """Write, and assert that its outcome was lost."""
    outcome = store.write(*writes).block()
    assert isinstance(outcome, Lost)
    return outcome


def claim(store: Store, at: Address, body: str = "held", lease: float = A_MINUTE) -> Written:
    """Insert a record as a holder does: with a fence and a lease."""
    return land(store, Insert(at, body, "held", draw=True, lease=lease))


def schedule(
    store: Store, key: object, due_in: float, *, kind: str = KIND, queue: str = QUEUE, space: str = ""
) -> Address:
    """Insert a record that falls due, in a space of its own: a partitioned engine has them in all its partitions."""
    at = Address(space or f"space of {key}", kind, str(key))
    land(store, Insert(at, "{}", queue=queue, due_in=due_in))
    return at


def record_at(store: Store, at: Address) -> Record:
    record = store.read(at).block().record
    assert record is not None
    return record


def is_absent(store: Store, at: Address) -> bool:
    return store.read(at).block().record is None


def met(store: Store, kind: str = KIND, *, limit: int = 100, **narrow: Any) -> list[Record]:
    """All records that a scan returns, page after page."""
    records: list[Record] = []
    after: str | None = None
    for _ in range(1_000):
        page = store.scan(kind, after=after, limit=limit, **narrow).block()
        records += page.records
        after = page.after
        if after is None:
            return records
    raise AssertionError("The scan does not end.")


def due_keys(store: Store, *queues: str, kind: str = KIND, limit: int = 100, hide: float = 1_000.0) -> list[str]:
    due = take_due(store, queues or (QUEUE,), kind=kind, limit=limit, hide=hide)
    return [record.at.key for record in due.records]


def take_due(
    store: Store, queues: Collection[str] = (QUEUE,), *, kind: str = KIND, limit: int = 100, hide: float = 1_000.0
) -> Due:
    return store.due(kind, queues=queues, limit=limit, hide=hide).block()


def in_threads(count: int, work: Callable[[int], R]) -> list[R]:
    """The work done by so many threads, which all start at the same moment."""
    start = Barrier(count)

    def begin(nth: int) -> R:
        start.wait(timeout=30)
        return work(nth)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(begin, range(count)))


def all_at_once(requests: Callable[[], Sequence[Request[Any]]]) -> list[Any]:
    """The answers to requests that are awaited together on one event loop; errors are answers too."""

    async def together() -> list[Any]:
        waits = [request.wait() for request in requests()]
        return await asyncio.gather(*waits, return_exceptions=True)

    return asyncio.run(together())


class StoreCase:
    """The hooks that a store's test class fills in. Pytest makes a new object of it for each test."""

    def make_store(self) -> Store:
        """A fresh, empty store."""
        raise NotImplementedError("Return a fresh, empty store from make_store().")

    def advance(self, seconds: float) -> None:
        """Move the store's clock, forwards or (seconds < 0) backwards."""
        raise NotImplementedError("Move the store's clock in advance(seconds).")

    def make_faulty(self, store: Any) -> FaultyEngine:
        """Put a faulty engine under the store. A store that is not a `GroupedStore` overrides this."""
        faulty = store.engine = FaultyEngine(store.engine)
        return faulty

    @pytest.fixture
    def store(self) -> Iterator[Store]:
        store = self.make_store()
        yield store
        store.close()
