"""Races and lost acknowledgements."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ...records import Check, Conflict, Insert, Lost, Outcome, Remove, Replace, Written
from ...stores.base import Store
from ...stores.grouped import GroupedStore
from .case import (
    StoreCase,
    StoreRequest,
    all_at_once,
    by_both_drivers,
    claim,
    in_one_batch,
    in_threads,
    is_absent,
    land,
    lose,
    met,
    place,
    record_at,
    refuse,
)

__all__ = ["LostAnswers", "Races"]


class LostAnswers(StoreCase):
    def somebody_else(self, store: Any) -> Store:
        """A second store on the same data, without faults."""
        return GroupedStore(store.engine.inner)

    @by_both_drivers
    def test_an_insert_that_landed_unheard_is_recognised(self, store: Store, ask: StoreRequest) -> None:
        self.make_faulty(store).lose_reply()
        outcome = ask(store.write(Insert(place(), "mine", draw=True)))
        assert isinstance(outcome, Written)
        record = record_at(store, place())
        assert (record.body, record.version, record.fence) == ("mine", outcome.version, outcome.fence)

    @by_both_drivers
    def test_an_insert_that_never_arrived_lands_on_the_second_try(self, store: Store, ask: StoreRequest) -> None:
        self.make_faulty(store).lose_request()
        outcome = ask(store.write(Insert(place(), "mine", draw=True)))
        assert isinstance(outcome, Written)
        record = record_at(store, place())
        assert (record.body, record.version, record.fence) == ("mine", outcome.version, outcome.fence)

    def test_a_replace_that_landed_unheard_is_recognised(self, store: Store) -> None:
        first = claim(store, place())
        self.make_faulty(store).lose_reply()
        landed = land(store, Replace(place(), "mine", version=first.version, draw=True))
        record = record_at(store, place())
        assert (record.body, record.version, record.fence) == ("mine", landed.version, landed.fence)
        land(store, Replace(place(), "still mine", fence=landed.fence))

    def test_a_heartbeat_that_landed_unheard_is_written(self, store: Store) -> None:
        first = claim(store, place())
        self.make_faulty(store).lose_reply()
        landed = land(store, Replace(place(), fence=first.fence, lease=60.0))
        assert record_at(store, place()).version == landed.version
        assert record_at(store, place()).fence == first.fence

    @by_both_drivers
    @pytest.mark.parametrize("arrives", [True, False])
    def test_an_index_record_lands_though_no_answer_came(self, store: Store, ask: StoreRequest, arrives: bool) -> None:
        faulty, index = self.make_faulty(store), place(space="index")
        (faulty.lose_reply if arrives else faulty.lose_request)()
        outcome = ask(store.write(Insert(place(), "mine", draw=True), also=Insert(index, "to it")))
        assert isinstance(outcome, Written)
        assert outcome.fence == record_at(store, place()).fence
        assert record_at(store, index).body == "to it"

    @in_one_batch(2)
    def test_a_recognised_batch_tells_the_fence_that_was_drawn(self, store: Store) -> None:
        """Not that of the first record found."""
        self.make_faulty(store).lose_reply()
        landed = land(store, Insert(place("plain"), ""), Insert(place("held"), "", draw=True))
        assert landed.fence == record_at(store, place("held")).fence > 0

    @in_one_batch(2)
    def test_a_batch_is_recognised_although_one_record_was_replaced_since(self, store: Store) -> None:
        faulty = self.make_faulty(store)
        other = self.somebody_else(store)

        def replace_one() -> None:
            land(other, Replace(place(1), "theirs", version=record_at(other, place(1)).version))

        faulty.lose_reply(meanwhile=replace_one)
        land(store, Insert(place(1), "mine"), Insert(place(2), "mine"))
        assert [record_at(store, place(nth)).body for nth in (1, 2)] == ["theirs", "mine"]

    def test_a_write_that_was_replaced_since_is_lost(self, store: Store) -> None:
        faulty = self.make_faulty(store)
        other = self.somebody_else(store)

        def take_over() -> None:
            land(other, Replace(place(), "theirs", version=record_at(other, place()).version, draw=True))

        faulty.lose_reply(meanwhile=take_over)
        lost = lose(store, Insert(place(), "mine", draw=True))
        assert (lost.at, lost.found) == (place(), record_at(store, place()))
        assert record_at(store, place()).body == "theirs"

    def test_a_write_that_was_removed_since_is_lost(self, store: Store) -> None:
        first = claim(store, place())
        faulty = self.make_faulty(store)
        other = self.somebody_else(store)

        def remove() -> None:
            land(other, Remove(place(), version=record_at(other, place()).version))

        faulty.lose_reply(meanwhile=remove)
        assert lose(store, Replace(place(), "mine", version=first.version, draw=True)).found is None
        assert is_absent(store, place())

    def test_a_write_that_never_arrived_is_lost_when_another_came_first(self, store: Store) -> None:
        """It might have landed and been replaced, which cannot be known."""
        faulty = self.make_faulty(store)
        other = self.somebody_else(store)
        faulty.lose_request(meanwhile=lambda: land(other, Insert(place(), "theirs")))
        found = lose(store, Insert(place(), "mine")).found
        assert found is not None
        assert found.body == "theirs"

    def test_a_write_that_was_not_even_sent_conflicts_when_another_came_first(self, store: Store) -> None:
        faulty = self.make_faulty(store)
        other = self.somebody_else(store)
        faulty.refuse_connection(meanwhile=lambda: land(other, Insert(place(), "theirs")))
        assert refuse(store, Insert(place(), "mine")).found == record_at(store, place())

    def test_a_remove_that_landed_unheard_is_lost_and_no_conflict(self, store: Store) -> None:
        landed = claim(store, place())
        self.make_faulty(store).lose_reply()
        assert lose(store, Remove(place(), fence=landed.fence)).found is None

    @in_one_batch(2)
    def test_a_remove_is_recognised_by_what_was_written_beside_it(self, store: Store) -> None:
        landed = claim(store, place())
        self.make_faulty(store).lose_reply()
        land(store, Remove(place(), fence=landed.fence), Insert(place("tombstone"), ""))
        assert is_absent(store, place())
        assert record_at(store, place("tombstone")).body == ""

    def test_a_check_that_failed_after_a_lost_answer_is_lost(self, store: Store) -> None:
        first = claim(store, place())
        faulty = self.make_faulty(store)
        other = self.somebody_else(store)
        faulty.lose_reply(meanwhile=lambda: land(other, Replace(place(), version=first.version, draw=True)))
        lose(store, Check(place(), fence=first.fence))

    @pytest.mark.parametrize("cuts", [2, 3])
    def test_an_answer_lost_again_and_again_changes_nothing(self, store: Store, cuts: int) -> None:
        faulty = self.make_faulty(store)
        for _ in range(cuts):
            faulty.lose_reply()
        landed = land(store, Insert(place(), "mine", draw=True))
        assert record_at(store, place()).version == landed.version

    def test_a_lost_answer_is_remembered_through_later_trouble(self, store: Store) -> None:
        faulty = self.make_faulty(store)
        faulty.lose_reply()
        faulty.refuse_connection()
        land(store, Insert(place(), "mine"))
        assert record_at(store, place()).body == "mine"

    def test_everyone_in_the_commit_whose_answer_was_lost_learns_the_truth(self, store: Store) -> None:
        for nth in range(0, 20, 2):
            land(store, Insert(place(nth), "theirs"))
        self.make_faulty(store).lose_reply()
        outcomes = all_at_once(lambda: [store.write(Insert(place(nth), "mine")) for nth in range(20)])
        assert all(type(outcome) in (Conflict, Lost) for outcome in outcomes[::2])
        assert [type(outcome) for outcome in outcomes[1::2]] == [Written] * 10
        assert [record_at(store, place(nth)).body for nth in range(20)] == ["theirs", "mine"] * 10


CROWD = 50


def one_winner(store: Store, outcomes: list[Outcome]) -> Written:
    """Assert that there is one winner, and that each loser got the winner's record and the store's time."""
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

    @in_one_batch(2)
    def test_a_sleeper_and_its_callback_never_miss_each_other(self, store: Store) -> None:
        """One suspends unless the callback is there; the other writes the callback and wakes the suspended one."""

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

    @in_one_batch(5)
    def test_batches_that_cross_each_other_all_end(self, store: Store) -> None:
        """Two batches that name the same records in opposite order must not deadlock."""

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
