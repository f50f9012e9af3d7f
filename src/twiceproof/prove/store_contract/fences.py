"""Fences and versions: a fence only ever grows, a version never comes back."""

from __future__ import annotations

import itertools

from ...records import Insert, Remove, Replace
from ...stores.base import Store
from .asking import claim, in_threads, land, place, record_at, refuse
from .case import StoreCase

__all__ = ["Fences"]


def draw(store: Store) -> int:
    """The next fence of the one key these tests are about."""
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
