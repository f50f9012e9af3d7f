"""Time: goes in as seconds, is stamped by the store's clock when the write lands, and ends nothing by itself."""

from __future__ import annotations

import math
from typing import Any

import pytest

from ...errors import BadWrite
from ...records import Insert, Replace
from ...stores.base import Store
from .asking import Ask, by_both_drivers, claim, due_keys, is_absent, land, met, place, record_at, refuse
from .case import StoreCase

__all__ = ["Leases"]

NOT_SECONDS = [-1.0, -0.001, math.nan, math.inf, -math.inf, 1e300, "5", True]


class Leases(StoreCase):
    @by_both_drivers
    def test_a_lease_ends_so_many_seconds_after_the_write(self, store: Store, ask: Ask) -> None:
        landed = ask(store.write(Insert(place(), "", lease=60.0)))
        lease_until = record_at(store, place()).lease_until
        assert lease_until == pytest.approx(landed.now + 60.0, abs=0.001)

    @by_both_drivers
    def test_a_record_falls_due_so_many_seconds_after_the_write(self, store: Store, ask: Ask) -> None:
        landed = ask(store.write(Insert(place(), "", queue="q", due_in=90.0)))
        assert record_at(store, place()).due_at == pytest.approx(landed.now + 90.0, abs=0.001)

    def test_a_renewed_lease_counts_from_the_renewal(self, store: Store) -> None:
        fence = claim(store, place(), lease=60.0).fence
        self.advance(1_000)
        landed = land(store, Replace(place(), fence=fence, lease=60.0))
        lease_until = record_at(store, place()).lease_until
        assert lease_until == pytest.approx(landed.now + 60.0, abs=0.001)

    def test_every_time_is_told_by_the_stores_clock(self, store: Store) -> None:
        before = store.read(place()).block().now
        self.advance(100_000)
        landed = land(store, Insert(place(), "", lease=60.0, queue="q", due_in=60.0))
        record = record_at(store, place())
        assert record.lease_until is not None
        assert record.due_at is not None
        told = [landed.now, record.created_at, record.updated_at, record.lease_until - 60, record.due_at - 60]
        told += [store.read(place()).block().now, refuse(store, Insert(place(), "")).now]
        told += [store.scan("claim").block().now, store.due("claim", queues=["q"]).block().now]
        assert told == [pytest.approx(before + 100_000, abs=20)] * len(told)

    def test_the_stores_clock_may_go_back(self, store: Store) -> None:
        before = land(store, Insert(place(1), "")).now
        self.advance(-100_000)
        assert land(store, Insert(place(2), "")).now == pytest.approx(before - 100_000, abs=20)

    def test_a_lease_is_stamped_when_the_write_lands_not_when_it_was_asked(self, store: Store) -> None:
        """Stamped before, a lease is born dead: its holder believes in a claim that anybody may take."""
        request = store.write(Insert(place(), "", lease=60.0, queue="q", due_in=60.0))
        self.advance(3_600)
        landed = request.block()
        record = record_at(store, place())
        assert record.lease_until == pytest.approx(landed.now + 60.0, abs=0.001)
        assert record.lease_until is not None
        assert record.lease_until > store.read(place()).block().now
        assert record.due_at == pytest.approx(landed.now + 60.0, abs=0.001)

    def test_a_lease_is_stamped_by_the_try_that_landed(self, store: Store) -> None:
        self.make_faulty(store).refuse_connection(meanwhile=lambda: self.advance(3_600))
        landed = land(store, Insert(place(), "", lease=60.0))
        lease_until = record_at(store, place()).lease_until
        assert lease_until == pytest.approx(landed.now + 60.0, abs=0.001)
        assert lease_until is not None
        assert lease_until > store.read(place()).block().now

    def test_a_lapsed_lease_removes_nothing(self, store: Store) -> None:
        """Expiry makes a key reclaimable. A store that forgets it would let the work happen again."""
        landed = claim(store, place(), lease=0.5)
        before = record_at(store, place())
        self.advance(400 * 86_400)
        assert record_at(store, place()) == before
        assert met(store) == [before]
        refuse(store, Insert(place(), ""))
        land(store, Replace(place(), "late, but nobody took over", fence=landed.fence))

    def test_a_lapsed_lease_does_not_fall_due_by_itself(self, store: Store) -> None:
        claim(store, place(), lease=0.5)
        self.advance(3_600)
        assert due_keys(store, "", "q") == []

    @pytest.mark.parametrize("lease", [0, 0.0, *NOT_SECONDS], ids=repr)
    def test_a_lease_that_is_no_time_is_refused(self, store: Store, lease: Any) -> None:
        with pytest.raises(BadWrite):
            store.write(Insert(place(), "", lease=lease)).block()
        assert is_absent(store, place())

    @pytest.mark.parametrize("lease", [0.001, 1, 86_400 * 365.0])
    def test_a_lease_that_is_some_time_is_taken(self, store: Store, lease: float) -> None:
        landed = land(store, Insert(place(), "", lease=lease))
        assert record_at(store, place()).lease_until == pytest.approx(landed.now + lease, abs=0.0005)

    @pytest.mark.parametrize("due_in", NOT_SECONDS, ids=repr)
    def test_a_due_time_that_is_no_time_is_refused(self, store: Store, due_in: Any) -> None:
        with pytest.raises(BadWrite):
            store.write(Insert(place(), "", queue="q", due_in=due_in)).block()
        assert is_absent(store, place())

    @pytest.mark.parametrize("due_in", [0, 0.0, 0.5, 86_400 * 365.0])
    def test_a_due_time_from_now_on_is_taken(self, store: Store, due_in: float) -> None:
        landed = land(store, Insert(place(), "", queue="q", due_in=due_in))
        assert record_at(store, place()).due_at == pytest.approx(landed.now + due_in, abs=0.001)

    def test_a_replace_refuses_the_same_times(self, store: Store) -> None:
        landed = claim(store, place())
        before = record_at(store, place())
        for lease, due_in in ((0.0, None), (math.nan, None), (None, -1.0), (None, math.inf)):
            with pytest.raises(BadWrite):
                store.write(Replace(place(), fence=landed.fence, lease=lease, due_in=due_in)).block()
        assert record_at(store, place()) == before
