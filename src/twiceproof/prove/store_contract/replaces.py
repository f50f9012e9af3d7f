"""Replace: only who knows the fence or the version may, and nobody else's word is lost by it."""

from __future__ import annotations

import pytest

from ...records import Conflict, Insert, Remove, Replace, Written
from ...stores.base import Store
from .asking import Ask, by_both_drivers, claim, land, place, record_at, refuse
from .case import StoreCase

__all__ = ["Replaces"]

FOREIGN_VERSIONS = ["", "nonsense", "-1", "0", "01", "9" * 40, "1.5", "\u0661", "'; --", "é"]


class Replaces(StoreCase):
    @by_both_drivers
    def test_the_right_fence_replaces(self, store: Store, ask: Ask) -> None:
        fence = claim(store, place()).fence
        outcome = ask(store.write(Replace(place(), "done", "done", fence=fence)))
        assert isinstance(outcome, Written)
        record = record_at(store, place())
        assert (record.body, record.state, record.version) == ("done", "done", outcome.version)

    @by_both_drivers
    def test_a_stale_fence_is_refused(self, store: Store, ask: Ask) -> None:
        first = claim(store, place())
        land(store, Replace(place(), "taken over", version=first.version, draw=True))
        before = record_at(store, place())
        outcome = ask(store.write(Replace(place(), "too late", fence=first.fence)))
        assert isinstance(outcome, Conflict)
        assert outcome.found == before == record_at(store, place())

    @by_both_drivers
    def test_the_right_version_replaces(self, store: Store, ask: Ask) -> None:
        landed = land(store, Insert(place(), "1"))
        assert isinstance(ask(store.write(Replace(place(), "2", version=landed.version))), Written)
        assert record_at(store, place()).body == "2"

    @by_both_drivers
    def test_a_stale_version_is_refused(self, store: Store, ask: Ask) -> None:
        first = land(store, Insert(place(), "1"))
        land(store, Replace(place(), "2", version=first.version))
        before = record_at(store, place())
        outcome = ask(store.write(Replace(place(), "3", version=first.version)))
        assert isinstance(outcome, Conflict)
        assert outcome.found == before == record_at(store, place())

    @pytest.mark.parametrize("version", FOREIGN_VERSIONS)
    def test_a_version_of_no_store_is_simply_not_the_one_found(self, store: Store, version: str) -> None:
        land(store, Insert(place(), "1"))
        assert refuse(store, Replace(place(), "2", version=version)).found == record_at(store, place())

    def test_a_fence_higher_than_any_drawn_is_refused(self, store: Store) -> None:
        fence = claim(store, place()).fence
        refuse(store, Replace(place(), "2", fence=fence + 1_000_000))
        assert record_at(store, place()).body == "held"

    def test_another_records_fence_is_refused(self, store: Store) -> None:
        claim(store, place(1))
        other = claim(store, place(2))
        refuse(store, Replace(place(1), "2", fence=other.fence))

    def test_a_replace_of_nothing_conflicts_with_nothing(self, store: Store) -> None:
        landed = claim(store, place())
        land(store, Remove(place(), version=landed.version))
        assert refuse(store, Replace(place(), "x", fence=landed.fence)).found is None
        assert refuse(store, Replace(place(), "x", version=landed.version)).found is None
        assert store.read(place()).block().record is None

    def test_a_heartbeat_changes_the_version_and_keeps_the_fence(self, store: Store) -> None:
        landed = claim(store, place())
        beat = land(store, Replace(place(), state="held", fence=landed.fence, lease=60.0))
        record = record_at(store, place())
        assert record.fence == landed.fence
        assert record.version == beat.version != landed.version
        land(store, Replace(place(), state="held", fence=landed.fence, lease=60.0))

    def test_a_version_from_before_a_heartbeat_is_refused(self, store: Store) -> None:
        landed = claim(store, place())
        land(store, Replace(place(), state="held", fence=landed.fence, lease=60.0))
        refuse(store, Replace(place(), "taken over", version=landed.version, draw=True))

    def test_a_draw_gives_a_new_fence_and_locks_the_old_holder_out(self, store: Store) -> None:
        old = claim(store, place())
        new = land(store, Replace(place(), "taken over", version=old.version, draw=True))
        assert record_at(store, place()).fence == new.fence > old.fence
        refuse(store, Replace(place(), "too late", fence=old.fence))
        land(store, Replace(place(), "in time", fence=new.fence))
        assert record_at(store, place()).body == "in time"

    def test_a_holder_may_draw_for_itself(self, store: Store) -> None:
        old = claim(store, place())
        new = land(store, Replace(place(), "again", fence=old.fence, draw=True))
        assert record_at(store, place()).fence == new.fence > old.fence

    def test_a_body_not_given_is_kept(self, store: Store) -> None:
        fence = claim(store, place(), "kept").fence
        land(store, Replace(place(), fence=fence))
        assert record_at(store, place()).body == "kept"

    def test_an_empty_body_is_a_body(self, store: Store) -> None:
        fence = claim(store, place(), "not kept").fence
        land(store, Replace(place(), "", fence=fence))
        assert record_at(store, place()).body == ""

    def test_all_else_that_is_not_given_is_cleared(self, store: Store) -> None:
        landed = land(store, Insert(place(), "", "held", draw=True, lease=60.0, queue="q", due_in=60.0))
        land(store, Replace(place(), fence=landed.fence))
        record = record_at(store, place())
        assert (record.state, record.queue) == ("", "")
        assert (record.lease_until, record.due_at) == (None, None)

    def test_all_that_is_given_is_set(self, store: Store) -> None:
        landed = land(store, Insert(place(), "", draw=True))
        again = land(store, Replace(place(), "b", "s", fence=landed.fence, lease=60.0, queue="q", due_in=30.0))
        record = record_at(store, place())
        assert (record.body, record.state, record.queue) == ("b", "s", "q")
        assert record.lease_until == pytest.approx(again.now + 60.0, abs=0.001)
        assert record.due_at == pytest.approx(again.now + 30.0, abs=0.001)

    def test_the_time_of_creation_is_kept_and_that_of_the_update_moves(self, store: Store) -> None:
        first = land(store, Insert(place(), "1"))
        created = record_at(store, place()).created_at
        self.advance(1_000)
        second = land(store, Replace(place(), "2", version=first.version))
        record = record_at(store, place())
        assert record.created_at == created
        assert record.updated_at == pytest.approx(second.now, abs=0.001)
        assert record.updated_at >= created + 1_000

    def test_each_replace_leaves_its_own_nonce(self, store: Store) -> None:
        landed = land(store, Insert(place(), "1"))
        before = record_at(store, place()).nonce
        land(store, Replace(place(), "2", version=landed.version))
        assert record_at(store, place()).nonce != before
