"""Hiding: what was handed out is left to the one who got it, for a while, and then comes back."""

from __future__ import annotations

import math
from typing import Any

import pytest

from ...errors import BadWrite
from ...records import Insert, Replace
from ...stores.base import Store
from .asking import QUEUE, due_keys, in_threads, land, place, record_at, refuse, schedule, take_due
from .case import StoreCase

__all__ = ["HiddenRecords"]


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
