"""Scans: page by page, each record that stays exactly once, whatever comes and goes meanwhile."""

from __future__ import annotations

import pytest

from ...errors import BadWrite
from ...records import Address, Insert, Record, Remove, Replace
from ...stores.base import Store
from .asking import Ask, by_both_drivers, claim, land, met, place, record_at
from .case import StoreCase

__all__ = ["Scans"]


def spread(store: Store, count: int, **fields: str) -> list[Address]:
    """Records in as many spaces: a partitioned engine has them in all its parts."""
    addresses = [place(f"key {nth:03}", space=f"space {nth % 20}") for nth in range(count)]
    for at in addresses:
        land(store, Insert(at, f"body of {at.key}", **fields))  # type: ignore[arg-type]
    return addresses


def places_of(records: list[Record]) -> list[tuple[str, str]]:
    return sorted((record.at.space, record.at.key) for record in records)


class Scans(StoreCase):
    @by_both_drivers
    def test_a_scan_of_nothing_is_one_empty_page(self, store: Store, ask: Ask) -> None:
        page = ask(store.scan("claim"))
        assert (list(page.records), page.after) == ([], None)

    @by_both_drivers
    def test_a_scan_meets_what_is_there(self, store: Store, ask: Ask) -> None:
        claim(store, place(), "body")
        assert list(ask(store.scan("claim")).records) == [record_at(store, place())]

    @by_both_drivers
    def test_what_lies_in_several_spaces_is_met_at_once_by_its_kinds(self, store: Store, ask: Ask) -> None:
        for space in ("one", "two", "on", "three"):
            for kind in ("claim", "step", "steps", "arrival"):
                land(store, Insert(place("a", space=space, kind=kind), f"{kind} of {space}"))
        found = ask(store.beside(["one", "two", "none"], ("step", "arrival")))
        bodies = sorted(record.body for record in found)
        assert bodies == ["arrival of one", "arrival of two", "step of one", "step of two"]
        assert all(record == record_at(store, record.at) for record in found)

    def test_of_each_space_no_more_is_told_than_asked(self, store: Store) -> None:
        for space in ("one", "two"):
            land(store, *(Insert(place(nth, space=space, kind="step"), "") for nth in range(5)))
        found = store.beside(["one", "two"], ("step",), limit=3).block()
        assert len(found) >= 3 and {record.at.space for record in found} <= {"one", "two"}
        assert all(sum(record.at.space == space for record in found) <= 5 for space in ("one", "two"))
        assert len(store.beside(["one", "two"], ("step",), limit=5).block()) == 10

    @pytest.mark.parametrize("limit", [1, 7, 20, 45, 46, 1_000])
    def test_a_scan_meets_each_record_exactly_once(self, store: Store, limit: int) -> None:
        addresses = spread(store, 45)
        assert places_of(met(store, limit=limit)) == sorted((at.space, at.key) for at in addresses)

    @pytest.mark.parametrize("limit", [1, 7, 20])
    def test_no_page_is_longer_than_asked(self, store: Store, limit: int) -> None:
        spread(store, 25)
        assert 1 <= len(store.scan("claim", limit=limit).block().records) <= limit

    def test_only_the_kind_asked_for_is_met(self, store: Store) -> None:
        land(store, Insert(place(kind="claim"), ""), Insert(place(kind="step"), ""))
        assert [record.at.kind for record in met(store, "step")] == ["step"]

    def test_only_the_space_asked_for_is_met(self, store: Store) -> None:
        spread(store, 45)
        records = met(store, space="space 3", limit=2)
        assert [record.at.key for record in sorted(records, key=lambda r: r.at.key)] == [
            "key 003",
            "key 023",
            "key 043",
        ]

    def test_only_the_state_asked_for_is_met(self, store: Store) -> None:
        for nth in range(30):
            land(store, Insert(place(nth, space=f"space {nth}"), "", "held" if nth % 3 else "done"))
        assert {record.at.key for record in met(store, state="done", limit=4)} == {str(n) for n in range(0, 30, 3)}
        assert met(store, state="unknown") == []

    def test_the_empty_state_is_a_state(self, store: Store) -> None:
        land(store, Insert(place(1), "", ""), Insert(place(2), "", "held"))
        assert [record.at.key for record in met(store, state="")] == ["1"]

    def test_space_and_state_narrow_together(self, store: Store) -> None:
        for space, state in [("a", "held"), ("a", "done"), ("b", "held"), ("b", "done")]:
            land(store, Insert(place(state, space=space), "", state))
        assert [record.at for record in met(store, space="b", state="done")] == [place("done", space="b")]

    def test_a_scan_by_state_follows_each_change_of_state(self, store: Store) -> None:
        landed = claim(store, place())
        land(store, Replace(place(), "", "done", fence=landed.fence))
        assert met(store, state="held") == []
        assert met(store, state="done") == [record_at(store, place())]

    def test_the_last_page_says_so(self, store: Store) -> None:
        spread(store, 10)
        first = store.scan("claim", limit=10_000).block()
        assert first.after is None

    @pytest.mark.parametrize("limit", [1, 5, 9])
    def test_records_that_stay_are_met_once_while_others_go(self, store: Store, limit: int) -> None:
        addresses = spread(store, 40)
        goers, stayers = set(addresses[::3]), set(addresses) - set(addresses[::3])

        def disturb(nth: int) -> None:
            for at in sorted(goers, key=lambda at: at.key)[nth * 4 : nth * 4 + 4]:
                land(store, Remove(at, version=record_at(store, at).version))

        self._all_meet(store, stayers, limit, disturb)

    @pytest.mark.parametrize("limit", [1, 5, 9])
    def test_records_that_stay_are_met_once_while_others_come(self, store: Store, limit: int) -> None:
        stayers = set(spread(store, 40))

        def disturb(nth: int) -> None:
            for part in range(4):
                land(store, Insert(place(f"key {nth:03}-{part}", space=f"space {part * 5}"), ""))

        self._all_meet(store, stayers, limit, disturb)

    def test_records_that_are_replaced_while_scanned_are_met_once(self, store: Store) -> None:
        addresses = spread(store, 30)

        def disturb(nth: int) -> None:
            for at in addresses[nth::7]:
                land(store, Replace(at, "changed", version=record_at(store, at).version))

        self._all_meet(store, set(addresses), 4, disturb)

    def _all_meet(self, store: Store, stayers: set[Address], limit: int, disturb: object) -> None:
        seen: list[Address] = []
        after: str | None = None
        for nth in range(1_000):
            page = store.scan("claim", after=after, limit=limit).block()
            seen += [record.at for record in page.records if record.at in stayers]
            after = page.after
            if after is None:
                break
            if nth < 4:
                disturb(nth)  # type: ignore[operator]
        assert sorted(seen, key=str) == sorted(stayers, key=str)

    @pytest.mark.parametrize("limit", [0, -1, 10_001])
    def test_a_page_limit_out_of_range_is_refused(self, store: Store, limit: int) -> None:
        with pytest.raises(BadWrite):
            store.scan("claim", limit=limit).block()

    @pytest.mark.parametrize("limit", [1, 10_000])
    def test_a_page_limit_in_range_is_taken(self, store: Store, limit: int) -> None:
        claim(store, place())
        assert len(store.scan("claim", limit=limit).block().records) == 1
