"""Races: however many try at the same moment, one wins, and the others are told by whom."""

from __future__ import annotations

import asyncio

from ...records import Check, Conflict, Insert, Outcome, Remove, Replace, Written
from ...stores.base import Store
from .asking import all_at_once, claim, in_threads, is_absent, land, met, place, record_at
from .case import StoreCase

__all__ = ["Races"]

CROWD = 50


def one_winner(store: Store, outcomes: list[Outcome]) -> Written:
    """Insist on one winner, and that each loser was shown the winner's record and the store's time."""
    winners = [outcome for outcome in outcomes if isinstance(outcome, Written)]
    losers = [outcome for outcome in outcomes if isinstance(outcome, Conflict)]
    assert len(winners) == 1
    assert len(losers) == len(outcomes) - 1
    record = record_at(store, place())
    assert record.version == winners[0].version
    assert all(loser.found == record and abs(loser.now - record.updated_at) < 20 for loser in losers)
    return winners[0]


class Races(StoreCase):
    def test_of_fifty_threads_one_inserts(self, store: Store) -> None:
        outcomes = in_threads(CROWD, lambda n: store.write(Insert(place(), str(n), draw=True)).block())
        winner = one_winner(store, outcomes)
        assert outcomes[int(record_at(store, place()).body)] is winner

    def test_of_fifty_tasks_one_inserts(self, store: Store) -> None:
        outcomes = all_at_once(lambda: [store.write(Insert(place(), str(n), draw=True)) for n in range(CROWD)])
        winner = one_winner(store, outcomes)
        assert outcomes[int(record_at(store, place()).body)] is winner

    def test_of_threads_and_event_loops_together_one_inserts(self, store: Store) -> None:
        def work(nth: int) -> list[Outcome]:
            if nth % 2:
                return [store.write(Insert(place(), f"thread {nth}")).block()]
            return all_at_once(lambda: [store.write(Insert(place(), f"task {nth}")) for _ in range(5)])

        one_winner(store, [outcome for part in in_threads(10, work) for outcome in part])

    def test_each_of_many_keys_has_one_winner(self, store: Store) -> None:
        def work(_: int) -> list[bool]:
            return [isinstance(store.write(Insert(place(key), "")).block(), Written) for key in range(25)]

        wins = in_threads(8, work)
        assert [sum(column) for column in zip(*wins, strict=True)] == [1] * 25

    def test_of_many_takeovers_one_lands(self, store: Store) -> None:
        old = claim(store, place())
        outcomes = in_threads(
            20, lambda n: store.write(Replace(place(), str(n), version=old.version, draw=True)).block()
        )
        assert one_winner(store, outcomes).fence > old.fence

    def test_of_many_removals_one_lands(self, store: Store) -> None:
        landed = claim(store, place())
        outcomes = in_threads(20, lambda _: store.write(Remove(place(), fence=landed.fence)).block())
        assert sum(isinstance(outcome, Written) for outcome in outcomes) == 1
        assert is_absent(store, place())

    def test_no_update_is_lost_among_many_writers(self, store: Store) -> None:
        land(store, Insert(place(), "0"))

        def count(_: int) -> int:
            done = 0
            for _ in range(1_000):
                found = record_at(store, place())
                write = Replace(place(), str(int(found.body) + 1), version=found.version)
                done += isinstance(store.write(write).block(), Written)
                if done == 10:
                    break
            return done

        assert in_threads(6, count) == [10] * 6
        assert record_at(store, place()).body == "60"

    def test_a_sleeper_and_its_callback_never_miss_each_other(self, store: Store) -> None:
        """One goes to sleep unless the callback is there; the other leaves it, and wakes who sleeps."""

        def sleep(n: int, fence: int) -> bool:
            writes = (Replace(place(n), "asleep", fence=fence), Check(place(f"{n} arrived"), absent=True))
            return isinstance(store.write(*writes).block(), Written)

        def arrive(n: int) -> bool:
            land(store, Insert(place(f"{n} arrived"), ""))
            return record_at(store, place(n)).body == "asleep"

        for n in range(10):
            fence = claim(store, place(n)).fence
            slept, woken = in_threads(2, lambda w, n=n, fence=fence: arrive(n) if w else sleep(n, fence))  # type: ignore[misc]
            assert slept == woken

    def test_batches_that_cross_each_other_all_end(self, store: Store) -> None:
        """Two batches that name the same records in opposite order must not wait for each other for ever."""

        def work(nth: int) -> int:
            keys = [place(f"{n}") for n in (range(5) if nth % 2 else reversed(range(5)))]
            won = 0
            for _ in range(10):
                won += isinstance(store.write(*(Insert(at, "") for at in keys)).block(), Written)
                found = store.read(place("0")).block().record
                if found is not None:
                    store.write(*(Remove(at, version=found.version) for at in keys)).block()
            return won

        assert sum(in_threads(6, work)) >= 1
        assert len(met(store)) in (0, 5)

    def test_a_cancelled_task_leaves_the_store_usable_and_the_truth_readable(self, store: Store) -> None:
        async def cancel_some() -> None:
            tasks = [asyncio.ensure_future(store.write(Insert(place(n), "")).wait()) for n in range(20)]
            await asyncio.sleep(0)
            for task in tasks[::2]:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        asyncio.run(cancel_some())
        assert {record.at.key for record in met(store)} >= {str(n) for n in range(1, 20, 2)}
        land(store, Insert(place("after"), ""))
