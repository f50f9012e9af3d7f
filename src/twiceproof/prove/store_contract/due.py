"""Due and hidden records."""

from __future__ import annotations

import math
from typing import Any

import pytest

from ...errors import BadWrite
from ...records import Insert, Replace
from ...stores.base import Store
from .case import (
    QUEUE,
    StoreCase,
    StoreRequest,
    by_both_drivers,
    due_keys,
    in_threads,
    land,
    place,
    record_at,
    refuse,
    schedule,
    take_due,
)

__all__ = ["DueRecords", "HiddenRecords"]


class DueRecords(StoreCase):
    @by_both_drivers
    def test_only_what_has_fallen_due_is_handed_out(self, store: Store, ask: StoreRequest) -> None:
        schedule(store, "now", 0)
        schedule(store, "later", 1_000)
        due = ask(store.due("claim", queues=[QUEUE]))
        assert [record.at.key for record in due.records] == ["now"]

    def test_a_record_is_handed_out_when_its_time_has_come(self, store: Store) -> None:
        schedule(store, "later", 1_000)
        self.advance(900)
        assert due_keys(store) == []
        self.advance(200)
        assert due_keys(store) == ["later"]

    def test_the_longest_overdue_comes_first(self, store: Store) -> None:
        for key, due_in in [("c", 300), ("d", 100), ("b", 500), ("a", 200), ("e", 400)]:
            schedule(store, key, due_in)
        self.advance(1_000)
        assert due_keys(store) == ["d", "a", "c", "e", "b"]

    def test_the_limit_leaves_the_least_overdue_for_the_next(self, store: Store) -> None:
        for key, due_in in [("c", 300), ("d", 100), ("b", 500), ("a", 200), ("e", 400)]:
            schedule(store, key, due_in)
        self.advance(1_000)
        assert due_keys(store, limit=2) == ["d", "a"]
        assert due_keys(store, limit=2) == ["c", "e"]
        assert due_keys(store, limit=2) == ["b"]

    def test_the_longest_overdue_comes_first_across_queues(self, store: Store) -> None:
        for key, queue, due_in in [("c", "q2", 200), ("d", "q1", 100), ("a", "q1", 300), ("b", "q2", 400)]:
            schedule(store, key, due_in, queue=queue)
        self.advance(1_000)
        assert due_keys(store, "q2", "q1", limit=3) == ["d", "c", "a"]

    def test_only_the_queues_asked_for_are_served(self, store: Store) -> None:
        for queue in ("sync@1", "sync@2", "sync", "SYNC@1", "sync@1 ", ""):
            schedule(store, f"in {queue!r}", 0, queue=queue)
        assert due_keys(store, "sync@1") == ["in 'sync@1'"]
        assert due_keys(store, "") == ["in ''"]
        assert sorted(due_keys(store, "sync", "sync@2", "unknown")) == ["in 'sync'", "in 'sync@2'"]

    def test_no_queues_no_records(self, store: Store) -> None:
        schedule(store, "now", 0)
        due = take_due(store, [])
        assert (list(due.records), due.next_in) == ([], None)

    def test_only_the_kind_asked_for_is_served(self, store: Store) -> None:
        schedule(store, "claim", 0, kind="claim")
        schedule(store, "step", 0, kind="step")
        assert due_keys(store, kind="step") == ["step"]
        assert due_keys(store, kind="message") == []

    def test_a_record_without_a_due_time_is_never_handed_out(self, store: Store) -> None:
        land(store, Insert(place(), "", queue=QUEUE))
        self.advance(1_000_000)
        assert due_keys(store) == []
        assert take_due(store).next_in is None

    def test_what_is_handed_out_is_what_is_stored(self, store: Store) -> None:
        at = schedule(store, "now", 0)
        handed = take_due(store).records
        assert list(handed) == [record_at(store, at)]

    def test_a_replace_that_sets_no_due_time_takes_it_off_the_list(self, store: Store) -> None:
        at = schedule(store, "done", 0)
        land(store, Replace(at, "done", version=record_at(store, at).version))
        assert due_keys(store) == due_keys(store, "") == []
        assert take_due(store).next_in is None

    def test_a_replace_moves_the_due_time(self, store: Store) -> None:
        at = schedule(store, "moved", 0)
        land(store, Replace(at, "", version=record_at(store, at).version, queue=QUEUE, due_in=1_000))
        assert due_keys(store) == []
        self.advance(1_100)
        assert due_keys(store) == ["moved"]

    def test_a_replace_moves_a_record_to_another_queue(self, store: Store) -> None:
        at = schedule(store, "moved", 0, queue="old")
        land(store, Replace(at, "", version=record_at(store, at).version, queue="new", due_in=0))
        assert due_keys(store, "old") == []
        assert due_keys(store, "new") == ["moved"]

    def test_nothing_waits_so_there_is_no_next(self, store: Store) -> None:
        schedule(store, "elsewhere", 100, queue="other")
        schedule(store, "of another kind", 100, kind="step")
        assert take_due(store).next_in is None

    def test_the_next_is_the_earliest_that_waits(self, store: Store) -> None:
        schedule(store, "later", 3_000)
        schedule(store, "sooner", 1_000)
        schedule(store, "elsewhere", 100, queue="other")
        assert take_due(store).next_in == pytest.approx(1_000, abs=20)
        self.advance(400)
        assert take_due(store).next_in == pytest.approx(600, abs=20)

    def test_the_next_is_now_when_the_limit_left_some(self, store: Store) -> None:
        for nth in range(3):
            schedule(store, nth, 0)
        assert take_due(store, limit=2).next_in == 0
        assert take_due(store, limit=2, hide=5_000).next_in != 0

    @pytest.mark.parametrize("limit", [0, -1, 10_001])
    def test_a_limit_of_a_due_call_out_of_range_is_refused(self, store: Store, limit: int) -> None:
        with pytest.raises(BadWrite):
            take_due(store, limit=limit)

    @pytest.mark.parametrize("limit", [1, 10_000])
    def test_a_limit_of_a_due_call_in_range_is_taken(self, store: Store, limit: int) -> None:
        schedule(store, "now", 0)
        assert due_keys(store, limit=limit) == ["now"]


class HiddenRecords(StoreCase):
    def test_a_record_handed_out_is_hidden_from_others(self, store: Store) -> None:
        schedule(store, "once", 0)
        assert due_keys(store) == ["once"]
        assert due_keys(store) == []

    def test_a_hidden_record_comes_back(self, store: Store) -> None:
        """Or the work would be lost with the worker that got it."""
        schedule(store, "back", 0)
        assert due_keys(store, hide=1_000) == ["back"]
        self.advance(900)
        assert due_keys(store, hide=1_000) == []
        self.advance(200)
        assert due_keys(store, hide=1_000) == ["back"]

    def test_a_hidden_record_tells_until_when(self, store: Store) -> None:
        schedule(store, "back", 0)
        due = take_due(store, hide=1_000)
        assert due.records[0].due_at == pytest.approx(due.now + 1_000, abs=0.001)

    def test_what_is_hidden_is_what_is_next(self, store: Store) -> None:
        schedule(store, "back", 0)
        schedule(store, "later", 3_000)
        assert take_due(store, hide=1_000).next_in == pytest.approx(1_000, abs=20)
        assert take_due(store, hide=1_000).next_in == pytest.approx(1_000, abs=20)

    def test_hiding_changes_the_version_and_keeps_the_fence(self, store: Store) -> None:
        landed = land(store, Insert(place(), "b", "asleep", draw=True, lease=60.0, queue=QUEUE, due_in=0))
        before = record_at(store, place())
        self.advance(10)  # or a store that stamps the hiding as a change would show the same time
        (handed,) = take_due(store).records
        assert handed.version != landed.version
        assert handed.fence == landed.fence
        kept = ("at", "body", "state", "nonce", "created_at", "updated_at", "lease_until", "queue")
        assert [getattr(handed, name) for name in kept] == [getattr(before, name) for name in kept]

    def test_a_version_from_before_the_hiding_is_stale(self, store: Store) -> None:
        """Or two workers, one with an older list, would both take the run."""
        landed = land(store, Insert(place(), "", queue=QUEUE, due_in=0))
        (handed,) = take_due(store).records
        refuse(store, Replace(place(), "taken", version=landed.version, draw=True))
        land(store, Replace(place(), "taken", version=handed.version, draw=True))

    def test_a_holder_can_still_write_by_its_fence(self, store: Store) -> None:
        landed = land(store, Insert(place(), "", draw=True, queue=QUEUE, due_in=0))
        take_due(store)
        land(store, Replace(place(), "done", fence=landed.fence))

    def test_a_record_done_while_hidden_does_not_come_back(self, store: Store) -> None:
        at = schedule(store, "done", 0)
        (handed,) = take_due(store, hide=1_000).records
        land(store, Replace(at, "done", version=handed.version))
        self.advance(2_000)
        assert due_keys(store) == []

    def test_callers_at_the_same_moment_never_get_the_same_record(self, store: Store) -> None:
        for nth in range(60):
            schedule(store, nth, 0)
        handed = in_threads(12, lambda _: [key for _ in range(3) for key in due_keys(store, limit=4)])
        keys = [key for part in handed for key in part]
        assert len(keys) == len(set(keys))
        assert sorted(keys + due_keys(store)) == sorted(str(nth) for nth in range(60))

    @pytest.mark.parametrize("hide", [-1.0, math.nan, math.inf, "5"], ids=repr)
    def test_hiding_for_no_time_at_all_is_refused(self, store: Store, hide: Any) -> None:
        schedule(store, "now", 0)
        with pytest.raises(BadWrite):
            take_due(store, hide=hide)
        assert due_keys(store) == ["now"]

    def test_hiding_for_some_time_is_taken(self, store: Store) -> None:
        schedule(store, "now", 0)
        assert due_keys(store, hide=0.5) == ["now"]
