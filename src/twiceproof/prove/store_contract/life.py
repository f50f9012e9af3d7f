"""Life: forks, pauses, the doctor, and the end."""

from __future__ import annotations

import asyncio
import os
import select
import warnings
from collections.abc import Callable

from ...records import Insert, Replace
from ...stores.base import Store
from .asking import claim, in_threads, land, met, place, record_at
from .case import StoreCase

__all__ = ["Life", "in_a_fork"]

LONGEST_CHILD = 20.0


def in_a_fork(work: Callable[[], object]) -> str:
    """Do the work in a forked child; "done", or what went wrong there."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # "multi-threaded": that is the point
        child = os.fork()
    if child == 0:
        _work_and_exit(work, writer)
    os.close(writer)
    try:
        ready, _, _ = select.select([reader], [], [], LONGEST_CHILD)
        return os.read(reader, 4_096).decode() if ready else "the child hangs"
    finally:
        os.close(reader)
        os.kill(child, 9)
        os.waitpid(child, 0)


def _work_and_exit(work: Callable[[], object], writer: int) -> None:
    try:
        work()
        os.write(writer, b"done")
    except BaseException as error:  # noqa: BLE001 - the parent tells it
        os.write(writer, repr(error).encode()[:4_096])
    finally:
        os._exit(0)


class Life(StoreCase):
    def test_a_forked_child_can_use_the_store_and_so_can_its_parent(self, store: Store) -> None:
        self._use_all_ways(store, "before")

        def child() -> None:
            self._use_all_ways(store, "child")

        assert in_a_fork(child) == "done"
        self._use_all_ways(store, "after")
        assert record_at(store, place("before 0")).body == "again"

    def test_two_forked_children_draw_different_nonces(self, store: Store) -> None:
        land(store, Insert(place("before"), ""))

        def child() -> None:
            landed = land(store, Insert(place("child"), ""))
            assert landed.version
            raise RuntimeError(record_at(store, place("child")).nonce)

        first = in_a_fork(child)
        assert "RuntimeError" in first or "Assertion" in first  # a shared server refuses the second insert
        land(store, Insert(place("parent"), ""))
        assert record_at(store, place("parent")).nonce not in first

    def _use_all_ways(self, store: Store, name: str) -> None:
        def write(nth: int) -> None:
            landed = land(store, Insert(place(f"{name} {nth}"), ""))
            land(store, Replace(place(f"{name} {nth}"), "again", version=landed.version))

        in_threads(3, write)
        asyncio.run(store.write(Insert(place(f"{name} awaited"), "")).wait())
        asyncio.run(store.scan("claim").wait())
        asyncio.run(store.due("claim", queues=["q"]).wait())
        assert len([record for record in met(store) if record.at.key.startswith(name)]) == 4

    def test_a_pause_ends_by_itself(self, store: Store) -> None:
        store.pause("shop", 0.001).block()
        asyncio.run(store.pause("shop", 0.001).wait())

    def test_the_store_says_what_it_promises(self, store: Store) -> None:
        assert store.batch_limit >= 1
        assert {type(store.reads_first), type(store.best_effort)} == {bool}
        for finding in store.examine():
            assert finding.level in ("ok", "warn", "refuse")
            assert finding.name
            assert finding.advice or finding.level == "ok" or finding.found

    def test_a_request_is_nothing_until_it_is_run(self, store: Store) -> None:
        store.write(Insert(place(), ""))
        assert met(store) == []

    def test_closing_twice_is_harmless(self) -> None:
        store = self.make_store()
        claim(store, place())
        asyncio.run(store.scan("claim").wait())
        store.close()
        store.close()
