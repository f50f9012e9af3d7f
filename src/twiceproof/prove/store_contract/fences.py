"""Fences, versions and leases."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

from ...errors import BadWrite
from ...records import Insert, Remove, Replace
from ...stores.base import Store
from .case import (
    StoreCase,
    StoreRequest,
    by_both_drivers,
    claim,
    due_keys,
    in_threads,
    is_absent,
    land,
    met,
    place,
    record_at,
    refuse,
)

__all__ = ["Fences", "Leases"]


def draw(store: Store) -> int:
    """The next fence of the one key that these tests use."""
    found = store.read(place()).block().record
    if found is None:
        return claim(store, place()).fence
    return land(store, Replace(place(), version=found.version, draw=True)).fence


def remove(store: Store) -> None:
    land(store, Remove(place(), version=record_at(store, place()).version))


def grow(numbers: list[int]) -> bool:
    return all(earlier < later for earlier, later in itertools.pairwise(numbers))


class Fences(StoreCase):
    def test_each_fence_of_a_key_is_higher_than_all_before(self, store: Store) -> None:
        assert grow([draw(store) for _ in range(30)])

    def test_fences_go_on_growing_after_a_removal(self, store: Store) -> None:
        fences = []
        for _ in range(10):
            fences += [draw(store), draw(store)]
            remove(store)
        assert grow(fences)

    def test_fences_go_on_growing_past_other_writes(self, store: Store) -> None:
        fences = [draw(store)]
        for nth in range(30):
            land(store, Insert(place(f"other {nth}"), "", draw=nth % 2 == 0))
            fences.append(draw(store))
        assert grow(fences)

    def test_fences_go_on_growing_when_the_clock_goes_back(self, store: Store) -> None:
        """A fence taken from a clock lets a paused holder overwrite its successor."""
        fences = [draw(store)]
        for seconds in (-3_600, -86_400, 1_000_000, -2_000_000):
            self.advance(seconds)
            fences.append(draw(store))
            remove(store)
            fences.append(draw(store))
        assert grow(fences)

    def test_fences_drawn_at_the_same_moment_are_never_the_same(self, store: Store) -> None:
        claim(store, place())

        def take_over(_: int) -> list[int]:
            found = record_at(store, place())
            outcome = store.write(Replace(place(), version=found.version, draw=True)).block()
            return [outcome.fence] if hasattr(outcome, "fence") else []

        fences = [fence for _ in range(3) for drawn in in_threads(8, take_over) for fence in drawn]
        assert len(fences) == len(set(fences)) >= 3

    def test_the_fence_of_a_removed_record_never_fits_its_successor(self, store: Store) -> None:
        old = draw(store)
        remove(store)
        assert draw(store) > old
        refuse(store, Replace(place(), "too late", fence=old))
        refuse(store, Remove(place(), fence=old))

    def test_fences_fit_into_json_numbers(self, store: Store) -> None:
        fence = draw(store)
        assert type(fence) is int
        assert 0 < fence < 2**53

    def test_a_version_never_comes_back(self, store: Store) -> None:
        versions = []
        for _ in range(10):
            versions.append(land(store, Insert(place(), "same")).version)
            for _ in range(3):
                versions.append(land(store, Replace(place(), "same", version=versions[-1])).version)
            remove(store)
        assert len(set(versions)) == len(versions)

    def test_a_version_from_before_a_removal_is_stale_although_all_looks_the_same(self, store: Store) -> None:
        old = land(store, Insert(place(), "same")).version
        remove(store)
        land(store, Insert(place(), "same"))
        refuse(store, Replace(place(), "too late", version=old))
        refuse(store, Remove(place(), version=old))
        assert record_at(store, place()).body == "same"

    def test_a_version_is_stale_after_the_clock_went_back(self, store: Store) -> None:
        old = land(store, Insert(place(), "1")).version
        self.advance(-3_600)
        land(store, Replace(place(), "2", version=old))
        refuse(store, Replace(place(), "3", version=old))

    def test_a_version_of_one_record_does_not_fit_another(self, store: Store) -> None:
        one = land(store, Insert(place(1), ""))
        land(store, Insert(place(2), ""))
        refuse(store, Replace(place(2), "", version=one.version))


NOT_SECONDS = [-1.0, -0.001, math.nan, math.inf, -math.inf, 1e300, "5", True]


class Leases(StoreCase):
    @by_both_drivers
    def test_a_lease_ends_so_many_seconds_after_the_write(self, store: Store, ask: StoreRequest) -> None:
        landed = ask(store.write(Insert(place(), "", lease=60.0)))
        lease_until = record_at(store, place()).lease_until
        assert lease_until == pytest.approx(landed.now + 60.0, abs=0.001)

    @by_both_drivers
    def test_a_record_falls_due_so_many_seconds_after_the_write(self, store: Store, ask: StoreRequest) -> None:
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
        """Stamped earlier, a lease would be born dead: its holder trusts a claim that others may take."""
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
