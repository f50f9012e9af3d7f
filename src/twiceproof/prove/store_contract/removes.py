"""Remove: only who knows the fence or the version may, and nothing of the record stays behind."""

from __future__ import annotations

from ...records import Conflict, Insert, Remove, Replace, Written
from ...stores.base import Store
from .asking import Ask, by_both_drivers, claim, due_keys, is_absent, land, met, place, record_at, refuse, schedule
from .case import StoreCase

__all__ = ["Removes"]


class Removes(StoreCase):
    @by_both_drivers
    def test_the_right_fence_removes(self, store: Store, ask: Ask) -> None:
        fence = claim(store, place()).fence
        assert isinstance(ask(store.write(Remove(place(), fence=fence))), Written)
        assert is_absent(store, place())

    @by_both_drivers
    def test_a_stale_fence_removes_nothing(self, store: Store, ask: Ask) -> None:
        first = claim(store, place())
        land(store, Replace(place(), "taken over", version=first.version, draw=True))
        before = record_at(store, place())
        outcome = ask(store.write(Remove(place(), fence=first.fence)))
        assert isinstance(outcome, Conflict)
        assert outcome.found == before == record_at(store, place())

    def test_the_right_version_removes(self, store: Store) -> None:
        landed = land(store, Insert(place(), ""))
        land(store, Remove(place(), version=landed.version))
        assert is_absent(store, place())

    def test_a_stale_version_removes_nothing(self, store: Store) -> None:
        first = land(store, Insert(place(), "1"))
        land(store, Replace(place(), "2", version=first.version))
        before = record_at(store, place())
        assert refuse(store, Remove(place(), version=first.version)).found == before
        assert record_at(store, place()) == before

    def test_a_remove_of_nothing_conflicts_with_nothing(self, store: Store) -> None:
        landed = claim(store, place())
        land(store, Remove(place(), fence=landed.fence))
        assert refuse(store, Remove(place(), fence=landed.fence)).found is None
        assert refuse(store, Remove(place(), version=landed.version)).found is None

    def test_a_remove_takes_away_one_record_and_no_other(self, store: Store) -> None:
        landed = [land(store, Insert(place(nth), "")) for nth in range(3)]
        land(store, Remove(place(1), version=landed[1].version))
        assert [record.at.key for record in sorted(met(store), key=lambda r: r.at.key)] == ["0", "2"]

    def test_a_removed_record_is_not_met_by_a_scan(self, store: Store) -> None:
        landed = land(store, Insert(place(), "", "held"))
        land(store, Remove(place(), version=landed.version))
        assert met(store) == met(store, state="held") == met(store, space=place().space) == []

    def test_a_removed_record_does_not_fall_due(self, store: Store) -> None:
        at = schedule(store, "gone", 0)
        land(store, Remove(at, version=record_at(store, at).version))
        assert due_keys(store) == []

    def test_a_record_inserted_again_does_not_inherit_the_old_due_time(self, store: Store) -> None:
        at = schedule(store, "back", 0)
        land(store, Remove(at, version=record_at(store, at).version))
        land(store, Insert(at, ""))
        assert due_keys(store) == []
        assert record_at(store, at).due_at is None
