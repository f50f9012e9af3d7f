"""Insert, replace, remove and check."""

from __future__ import annotations

import pytest

from ...records import Check, Conflict, Insert, Remove, Replace, Written
from ...stores.base import Store
from .case import (
    StoreCase,
    StoreRequest,
    by_both_drivers,
    claim,
    due_keys,
    in_one_batch,
    is_absent,
    land,
    met,
    place,
    record_at,
    refuse,
    schedule,
)

__all__ = ["Checks", "Inserts", "Removes", "Replaces"]

CLAIM, ARRIVAL = place("claim"), place("arrival")


class Checks(StoreCase):
    @by_both_drivers
    @in_one_batch(2)
    def test_a_check_that_holds_lets_the_batch_land(self, store: Store, ask: StoreRequest) -> None:
        fence = claim(store, CLAIM).fence
        outcome = ask(store.write(Check(CLAIM, fence=fence), Insert(ARRIVAL, "here")))
        assert isinstance(outcome, Written)
        assert record_at(store, ARRIVAL).body == "here"

    @by_both_drivers
    @in_one_batch(2)
    def test_a_check_that_does_not_hold_stops_the_batch(self, store: Store, ask: StoreRequest) -> None:
        first = claim(store, CLAIM)
        land(store, Replace(CLAIM, "taken over", version=first.version, draw=True))
        outcome = ask(store.write(Insert(ARRIVAL, "here"), Check(CLAIM, fence=first.fence)))
        assert isinstance(outcome, Conflict)
        assert (outcome.at, outcome.found) == (CLAIM, record_at(store, CLAIM))
        assert is_absent(store, ARRIVAL)

    @in_one_batch(2)
    def test_a_version_check_holds_for_this_version_only(self, store: Store) -> None:
        first = land(store, Insert(CLAIM, "1"))
        land(store, Check(CLAIM, version=first.version), Insert(place("a"), ""))
        land(store, Replace(CLAIM, "2", version=first.version))
        refuse(store, Check(CLAIM, version=first.version), Insert(place("b"), ""))
        assert is_absent(store, place("b"))

    @in_one_batch(2)
    def test_an_absence_check_holds_while_nothing_is_there(self, store: Store) -> None:
        fence = claim(store, CLAIM).fence
        land(store, Replace(CLAIM, "asleep", fence=fence), Check(ARRIVAL, absent=True))
        assert record_at(store, CLAIM).body == "asleep"

    @in_one_batch(2)
    def test_an_absence_check_stops_the_batch_when_something_is_there(self, store: Store) -> None:
        """Or a callback that arrives just before a run suspends would be lost."""
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

    @in_one_batch(2)
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


class Inserts(StoreCase):
    @by_both_drivers
    def test_an_insert_lands_where_nothing_is(self, store: Store, ask: StoreRequest) -> None:
        outcome = ask(store.write(Insert(place(), "body", "held")))
        assert isinstance(outcome, Written)
        record = record_at(store, place())
        assert (record.body, record.state, record.version) == ("body", "held", outcome.version)
        assert record.nonce

    @by_both_drivers
    def test_an_insert_where_something_is_conflicts_and_carries_what_was_found(
        self, store: Store, ask: StoreRequest
    ) -> None:
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


class Removes(StoreCase):
    @by_both_drivers
    def test_the_right_fence_removes(self, store: Store, ask: StoreRequest) -> None:
        fence = claim(store, place()).fence
        assert isinstance(ask(store.write(Remove(place(), fence=fence))), Written)
        assert is_absent(store, place())

    @by_both_drivers
    def test_a_stale_fence_removes_nothing(self, store: Store, ask: StoreRequest) -> None:
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


FOREIGN_VERSIONS = ["", "nonsense", "-1", "0", "01", "9" * 40, "1.5", "\u0661", "'; --", "é"]


class Replaces(StoreCase):
    @by_both_drivers
    def test_the_right_fence_replaces(self, store: Store, ask: StoreRequest) -> None:
        fence = claim(store, place()).fence
        outcome = ask(store.write(Replace(place(), "done", "done", fence=fence)))
        assert isinstance(outcome, Written)
        record = record_at(store, place())
        assert (record.body, record.state, record.version) == ("done", "done", outcome.version)

    @by_both_drivers
    def test_a_stale_fence_is_refused(self, store: Store, ask: StoreRequest) -> None:
        first = claim(store, place())
        land(store, Replace(place(), "taken over", version=first.version, draw=True))
        before = record_at(store, place())
        outcome = ask(store.write(Replace(place(), "too late", fence=first.fence)))
        assert isinstance(outcome, Conflict)
        assert outcome.found == before == record_at(store, place())

    @by_both_drivers
    def test_the_right_version_replaces(self, store: Store, ask: StoreRequest) -> None:
        landed = land(store, Insert(place(), "1"))
        assert isinstance(ask(store.write(Replace(place(), "2", version=landed.version))), Written)
        assert record_at(store, place()).body == "2"

    @by_both_drivers
    def test_a_stale_version_is_refused(self, store: Store, ask: StoreRequest) -> None:
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
