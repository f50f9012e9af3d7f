"""Check: writes nothing, but the batch lands only if it holds."""

from __future__ import annotations

from ...records import Check, Conflict, Insert, Remove, Replace, Written
from ...stores.base import Store
from .asking import Ask, by_both_drivers, claim, is_absent, land, place, record_at, refuse
from .case import StoreCase

__all__ = ["Checks"]

CLAIM, ARRIVAL = place("claim"), place("arrival")


class Checks(StoreCase):
    @by_both_drivers
    def test_a_check_that_holds_lets_the_batch_land(self, store: Store, ask: Ask) -> None:
        fence = claim(store, CLAIM).fence
        outcome = ask(store.write(Check(CLAIM, fence=fence), Insert(ARRIVAL, "here")))
        assert isinstance(outcome, Written)
        assert record_at(store, ARRIVAL).body == "here"

    @by_both_drivers
    def test_a_check_that_does_not_hold_stops_the_batch(self, store: Store, ask: Ask) -> None:
        first = claim(store, CLAIM)
        land(store, Replace(CLAIM, "taken over", version=first.version, draw=True))
        outcome = ask(store.write(Insert(ARRIVAL, "here"), Check(CLAIM, fence=first.fence)))
        assert isinstance(outcome, Conflict)
        assert (outcome.at, outcome.found) == (CLAIM, record_at(store, CLAIM))
        assert is_absent(store, ARRIVAL)

    def test_a_version_check_holds_for_this_version_only(self, store: Store) -> None:
        first = land(store, Insert(CLAIM, "1"))
        land(store, Check(CLAIM, version=first.version), Insert(place("a"), ""))
        land(store, Replace(CLAIM, "2", version=first.version))
        refuse(store, Check(CLAIM, version=first.version), Insert(place("b"), ""))
        assert is_absent(store, place("b"))

    def test_an_absence_check_holds_while_nothing_is_there(self, store: Store) -> None:
        fence = claim(store, CLAIM).fence
        land(store, Replace(CLAIM, "asleep", fence=fence), Check(ARRIVAL, absent=True))
        assert record_at(store, CLAIM).body == "asleep"

    def test_an_absence_check_stops_the_batch_when_something_is_there(self, store: Store) -> None:
        """Or a callback that comes in just before a run goes to sleep would be lost."""
        fence = claim(store, CLAIM).fence
        land(store, Insert(ARRIVAL, "the callback"))
        conflict = refuse(store, Replace(CLAIM, "asleep", fence=fence), Check(ARRIVAL, absent=True))
        assert (conflict.at, conflict.found) == (ARRIVAL, record_at(store, ARRIVAL))
        assert record_at(store, CLAIM).body == "held"

    def test_an_absence_check_holds_again_after_a_removal(self, store: Store) -> None:
        landed = land(store, Insert(ARRIVAL, ""))
        refuse(store, Check(ARRIVAL, absent=True))
        land(store, Remove(ARRIVAL, version=landed.version))
        land(store, Check(ARRIVAL, absent=True))

    def test_a_check_alone_changes_nothing(self, store: Store) -> None:
        landed = claim(store, CLAIM)
        before = record_at(store, CLAIM)
        land(store, Check(CLAIM, fence=landed.fence))
        land(store, Check(CLAIM, version=landed.version))
        assert record_at(store, CLAIM) == before

    def test_a_check_in_a_batch_changes_nothing_where_it_looks(self, store: Store) -> None:
        landed = claim(store, CLAIM)
        before = record_at(store, CLAIM)
        land(store, Check(CLAIM, fence=landed.fence), Insert(ARRIVAL, ""))
        assert record_at(store, CLAIM) == before

    def test_a_check_of_nothing_conflicts_with_nothing(self, store: Store) -> None:
        landed = claim(store, CLAIM)
        land(store, Remove(CLAIM, fence=landed.fence))
        assert refuse(store, Check(CLAIM, fence=landed.fence)).found is None
        assert refuse(store, Check(CLAIM, version=landed.version)).found is None
