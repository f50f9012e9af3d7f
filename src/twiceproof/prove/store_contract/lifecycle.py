"""Forks, closing and durability."""

from __future__ import annotations

import asyncio
import os
import select
import warnings
from collections.abc import Callable, Iterator

import pytest

from ...records import Insert, Outcome, Remove, Replace, Written
from ...stores.base import Store
from .case import StoreCase, claim, due_keys, in_threads, land, met, place, record_at, refuse, schedule
from .concurrency import one_winner

__all__ = ["Durable", "LifecycleTests", "in_a_fork"]


LONGEST_CHILD = 20.0


def in_a_fork(work: Callable[[], object]) -> str:
    """Do the work in a forked child; returns "done", or the error."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # the warning about a multi-threaded process: that is what is tested
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
    except BaseException as error:  # noqa: BLE001 - reported by the parent
        os.write(writer, repr(error).encode()[:4_096])
    finally:
        os._exit(0)


class LifecycleTests(StoreCase):
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
        assert store.body_limit >= 90_000  # a claim with an inline result of 64 KiB fits
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


class Durable(StoreCase):
    """Adds to the contract: `open_again` opens the same data once more, as another process would."""

    def open_again(self) -> Store:
        raise NotImplementedError("Open the same data once more in open_again().")

    @pytest.fixture
    def other(self, store: Store) -> Iterator[Store]:
        other = self.open_again()
        yield other
        other.close()

    def test_all_that_was_acknowledged_is_there_after_reopening(self) -> None:
        store = self.make_store()
        for nth in range(10):
            land(store, Insert(place(nth), f"body {nth}", "held", draw=True, lease=60.0, queue="q", due_in=5.0))
        before = [record_at(store, place(nth)) for nth in range(10)]
        store.close()
        again = self.open_again()
        assert [record_at(again, place(nth)) for nth in range(10)] == before
        again.close()

    def test_a_store_that_was_not_closed_loses_nothing(self, store: Store, other: Store) -> None:
        claim(store, place(), "body")
        assert record_at(other, place()) == record_at(store, place())

    def test_fences_and_versions_go_on_after_reopening(self) -> None:
        fences, versions = [], []
        store = self.make_store()
        for _ in range(4):
            landed = claim(store, place())
            fences.append(landed.fence)
            versions.append(landed.version)
            land(store, Remove(place(), fence=landed.fence))
            store.close()
            store = self.open_again()
        store.close()
        assert fences == sorted(set(fences))
        assert len(set(versions)) == len(versions)

    def test_each_sees_what_the_other_was_told_has_landed(self, store: Store, other: Store) -> None:
        landed = land(store, Insert(place(), "0"))
        for nth in range(1, 10):
            writer, reader = (store, other) if nth % 2 else (other, store)
            landed = land(writer, Replace(place(), str(nth), version=landed.version))
            assert record_at(reader, place()).body == str(nth)

    def test_a_holder_is_locked_out_by_the_others_takeover(self, store: Store, other: Store) -> None:
        old = claim(store, place())
        land(other, Replace(place(), "theirs", version=old.version, draw=True))
        refuse(store, Replace(place(), "mine", fence=old.fence))

    def test_of_two_crowds_one_inserts(self, store: Store, other: Store) -> None:
        def work(nth: int) -> Outcome:
            return (store if nth % 2 else other).write(Insert(place(), str(nth), draw=True)).block()

        one_winner(store, in_threads(30, work))

    def test_each_of_many_keys_has_one_winner_among_two(self, store: Store, other: Store) -> None:
        def work(nth: int) -> list[bool]:
            mine = store if nth % 2 else other
            return [isinstance(mine.write(Insert(place(key), "")).block(), Written) for key in range(25)]

        wins = in_threads(6, work)
        assert [sum(column) for column in zip(*wins, strict=True)] == [1] * 25

    def test_two_never_hand_out_the_same_due_record(self, store: Store, other: Store) -> None:
        for nth in range(40):
            schedule(store, nth, 0)
        handed = in_threads(
            8, lambda nth: [key for _ in range(2) for key in due_keys(store if nth % 2 else other, limit=4)]
        )
        keys = [key for part in handed for key in part]
        assert len(keys) == len(set(keys))

    def test_a_scan_begun_by_one_can_be_continued_by_the_other(self, store: Store, other: Store) -> None:
        for nth in range(10):
            land(store, Insert(place(nth, space=f"space {nth}"), ""))
        first = store.scan("claim", limit=4).block()
        seen, after = list(first.records), first.after
        while after is not None:
            page = other.scan("claim", after=after, limit=4).block()
            seen, after = [*seen, *page.records], page.after
        assert sorted(record.at.key for record in seen) == sorted(str(nth) for nth in range(10))

    def test_the_parent_sees_what_a_forked_child_wrote(self, store: Store) -> None:
        land(store, Insert(place("parent"), ""))
        assert in_a_fork(lambda: land(store, Insert(place("child"), ""))) == "done"
        assert {record.at.key for record in met(store)} == {"parent", "child"}
