"""Lost acknowledgements: one's own write is recognised, and what cannot be known is never called a conflict."""

from __future__ import annotations

from typing import Any

import pytest

from ...records import Check, Conflict, Insert, Lost, Remove, Replace, Written
from ...stores.base import Store
from ...stores.grouped import GroupedStore
from .asking import Ask, all_at_once, by_both_drivers, claim, is_absent, land, lose, place, record_at, refuse
from .case import StoreCase

__all__ = ["LostAnswers"]


class LostAnswers(StoreCase):
    def somebody_else(self, store: Any) -> Store:
        """A store on the same data that no fault touches."""
        return GroupedStore(store.engine.inner)

    @by_both_drivers
    def test_an_insert_that_landed_unheard_is_recognised(self, store: Store, ask: Ask) -> None:
        self.make_faulty(store).lose_reply()
        outcome = ask(store.write(Insert(place(), "mine", draw=True)))
        assert isinstance(outcome, Written)
        record = record_at(store, place())
        assert (record.body, record.version, record.fence) == ("mine", outcome.version, outcome.fence)

    @by_both_drivers
    def test_an_insert_that_never_arrived_lands_on_the_second_try(self, store: Store, ask: Ask) -> None:
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

    def test_a_recognised_batch_tells_the_fence_that_was_drawn(self, store: Store) -> None:
        """Not that of the first record that comes to hand."""
        self.make_faulty(store).lose_reply()
        landed = land(store, Insert(place("plain"), ""), Insert(place("held"), "", draw=True))
        assert landed.fence == record_at(store, place("held")).fence > 0

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
        """Seen from here it might have landed and been replaced: nobody can tell."""
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
