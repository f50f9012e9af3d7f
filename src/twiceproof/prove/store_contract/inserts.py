"""Insert: puts a record where there is none, and tells the losers who won."""

from __future__ import annotations

import pytest

from ...records import Conflict, Insert, Remove, Written
from ...stores.base import Store
from .asking import Ask, by_both_drivers, claim, land, place, record_at, refuse
from .case import StoreCase

__all__ = ["Inserts"]


class Inserts(StoreCase):
    @by_both_drivers
    def test_an_insert_lands_where_nothing_is(self, store: Store, ask: Ask) -> None:
        outcome = ask(store.write(Insert(place(), "body", "held")))
        assert isinstance(outcome, Written)
        record = record_at(store, place())
        assert (record.body, record.state, record.version) == ("body", "held", outcome.version)
        assert record.nonce

    @by_both_drivers
    def test_an_insert_where_something_is_conflicts_and_carries_what_was_found(self, store: Store, ask: Ask) -> None:
        claim(store, place(), "the winner's")
        winner = record_at(store, place())
        outcome = ask(store.write(Insert(place(), "the loser's")))
        assert isinstance(outcome, Conflict)
        assert (outcome.at, outcome.found) == (place(), winner)
        assert outcome.now == pytest.approx(winner.updated_at, abs=20)

    def test_a_refused_insert_leaves_everything_as_it_was(self, store: Store) -> None:
        claim(store, place(), "the winner's")
        before = record_at(store, place())
        refuse(store, Insert(place(), "the loser's", "other", draw=True, lease=5.0, queue="q", due_in=0))
        assert record_at(store, place()) == before

    def test_a_conflict_carries_the_whole_record(self, store: Store) -> None:
        land(store, Insert(place(), "body", "held", draw=True, lease=60.0, queue="q", due_in=30.0))
        found = refuse(store, Insert(place(), "")).found
        assert found == record_at(store, place())
        assert found is not None
        assert (found.body, found.state, found.queue) == ("body", "held", "q")

    def test_an_insert_lands_again_after_the_record_was_removed(self, store: Store) -> None:
        landed = land(store, Insert(place(), "first"))
        land(store, Remove(place(), version=landed.version))
        land(store, Insert(place(), "second"))
        assert record_at(store, place()).body == "second"

    def test_a_new_record_is_created_and_updated_now(self, store: Store) -> None:
        landed = land(store, Insert(place(), ""))
        record = record_at(store, place())
        assert record.created_at == record.updated_at == pytest.approx(landed.now, abs=0.001)

    def test_a_record_inserted_again_is_created_anew(self, store: Store) -> None:
        landed = land(store, Insert(place(), ""))
        land(store, Remove(place(), version=landed.version))
        self.advance(1_000)
        land(store, Insert(place(), ""))
        assert record_at(store, place()).created_at == pytest.approx(landed.now + 1_000, abs=20)

    def test_an_insert_that_draws_gets_the_fence_it_is_told(self, store: Store) -> None:
        landed = land(store, Insert(place(), "", draw=True))
        assert record_at(store, place()).fence == landed.fence > 0

    def test_an_insert_that_draws_nothing_has_no_fence(self, store: Store) -> None:
        land(store, Insert(place(), ""))
        assert record_at(store, place()).fence == 0

    def test_two_writes_never_share_a_nonce(self, store: Store) -> None:
        land(store, Insert(place(1), ""))
        land(store, Insert(place(2), ""))
        assert record_at(store, place(1)).nonce != record_at(store, place(2)).nonce
