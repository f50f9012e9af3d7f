"""Scans by age and by prefix, with cursors that go both ways."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from ...claims.claim import RUN
from ...errors import BadWrite
from ...records import Address, Insert, Page, Record, Remove, Replace
from ...stores.base import Store
from .case import KIND, StoreCase, StoreRequest, by_both_drivers, land, met, place, record_at

__all__ = ["FamilyLists", "ListsByAge", "ListsByPrefix"]


def arrive(store: Store, count: int, *, since: int = 0, kind: str = KIND, states: Sequence[str] = ("",)) -> list[str]:
    """Records one after the other, each in a space of its own; their keys in the order in which they came."""
    keys = [f"key {nth:03}" for nth in range(since, since + count)]
    for nth, key in enumerate(keys):
        land(store, Insert(_by_age(key, kind), "body", states[nth % len(states)]))
    return keys


def _by_age(key: str, kind: str = KIND) -> Address:
    """The spaces are in another order than the keys."""
    return Address(f"space {key[::-1]}", kind, key)


def keys_of(records: Sequence[Record]) -> list[str]:
    return [record.at.key for record in records]


def pages(store: Store, limit: int, between: Callable[[int], object] = lambda nth: None, **asked: Any) -> list[Page]:
    """Page after page; `between` happens after each of the first four."""
    found: list[Page] = []
    after: str | None = None
    for nth in range(1_000):
        found.append(store.scan(asked.pop("kind", KIND), after=after, limit=limit, **asked).block())
        after = found[-1].after
        if after is None:
            return found
        if nth < 4:
            between(nth)
    raise AssertionError("The scan does not end.")


def those(found: Sequence[Page], stayers: Sequence[str]) -> list[str]:
    return sorted(key for page in found for key in keys_of(page.records) if key in stayers)


class ListsByAge(StoreCase):
    @by_both_drivers
    def test_the_latest_comes_first_where_the_store_says_so(self, store: Store, ask: StoreRequest) -> None:
        keys = arrive(store, 12)
        found = keys_of(ask(store.scan(KIND, newest=True)).records)
        assert sorted(found) == keys
        assert type(store.newest_first) is bool
        assert found == keys[::-1] or not store.newest_first

    @by_both_drivers
    def test_the_oldest_comes_first_if_that_is_asked_for(self, store: Store, ask: StoreRequest) -> None:
        keys = arrive(store, 12)
        found = keys_of(ask(store.scan(KIND, newest=False)).records)
        assert sorted(found) == keys
        assert found == keys or not store.newest_first

    @pytest.mark.parametrize("limit", [1, 7, 20, 45, 46, 1_000])
    @pytest.mark.parametrize("newest", [True, False])
    def test_each_is_met_exactly_once_by_age(self, store: Store, newest: bool, limit: int) -> None:
        keys = arrive(store, 45, states=("held", "done", ""))
        found = keys_of(met(store, limit=limit, newest=newest))
        assert sorted(found) == keys
        assert found == (keys[::-1] if newest else keys) or not store.newest_first

    @pytest.mark.parametrize("limit", [1, 4, 100])
    def test_a_state_is_listed_by_age(self, store: Store, limit: int) -> None:
        keys = arrive(store, 20, states=("held", "done"))
        found = keys_of(met(store, limit=limit, state="done", newest=True))
        assert sorted(found) == keys[1::2]
        assert found == keys[1::2][::-1] or not store.newest_first

    def test_another_kind_is_not_met_by_age(self, store: Store) -> None:
        arrive(store, 5, kind="step")
        keys = arrive(store, 5)
        assert sorted(keys_of(met(store, newest=True))) == keys

    def test_a_record_that_is_replaced_keeps_its_place(self, store: Store) -> None:
        keys = arrive(store, 9, states=("held",))
        for key in keys[2:5]:
            at = _by_age(key)
            land(store, Replace(at, "changed", "held", version=record_at(store, at).version))
        found = keys_of(met(store, limit=2, newest=True))
        assert sorted(found) == keys
        assert found == keys[::-1] or not store.newest_first

    def test_a_record_that_goes_and_comes_again_is_the_latest(self, store: Store) -> None:
        keys = arrive(store, 5)
        at = _by_age(keys[0])
        land(store, Remove(at, version=record_at(store, at).version))
        land(store, Insert(at, "again"))
        found = keys_of(met(store, limit=2, newest=True))
        assert sorted(found) == keys
        assert found[0] == keys[0] or not store.newest_first

    @pytest.mark.parametrize("limit", [1, 5, 9])
    @pytest.mark.parametrize("newest", [True, False])
    def test_records_that_stay_are_met_once_while_others_come_and_go(
        self, store: Store, limit: int, newest: bool
    ) -> None:
        keys = arrive(store, 40)
        goers = keys[1::3]

        def disturb(nth: int) -> None:
            for key in goers[nth * 3 : nth * 3 + 3]:
                land(store, Remove(_by_age(key), version=record_at(store, _by_age(key)).version))
            for key in keys[nth::8]:
                record = store.read(_by_age(key)).block().record
                if record is not None:
                    land(store, Replace(record.at, "changed", version=record.version))
            arrive(store, 3, since=100 + 10 * nth)

        stayers = sorted(set(keys) - set(goers))
        assert those(pages(store, limit, disturb, newest=newest), stayers) == stayers

    def test_a_list_goes_on_after_any_record_of_a_page(self, store: Store) -> None:
        arrive(store, 10, states=("held", "done"))
        whole = store.scan(KIND, newest=True, limit=10).block()
        assert len(whole.cursors) in (10, 0)  # none: only whole pages go on
        for nth, cursor in enumerate(whole.cursors, 1):
            rest = met_after(store, cursor, newest=True)
            assert keys_of(rest) == keys_of(whole.records[nth:])

    def test_a_cursor_leads_back_the_way_it_came(self, store: Store) -> None:
        keys = arrive(store, 12, states=("held", "done"))
        second = store.scan(KIND, newest=True, limit=4).block()
        second = store.scan(KIND, newest=True, limit=4, after=second.after).block()
        if store.newest_first:
            back = met_after(store, second.cursors[0], newest=False)
            assert keys_of(back) == keys[8:]  # newer than the first of the page, the oldest of them first

    def test_what_came_since_is_found_by_the_first_cursor(self, store: Store) -> None:
        arrive(store, 6)
        seen = store.scan(KIND, newest=True, limit=3).block()
        later = arrive(store, 5, since=6)
        if store.newest_first:
            assert keys_of(met_after(store, seen.cursors[0], limit=2, newest=False)) == later

    def test_a_state_goes_back_by_its_own_cursors(self, store: Store) -> None:
        keys = arrive(store, 12, states=("held", "done"))
        page = store.scan(KIND, state="done", newest=True, limit=4).block()
        if store.newest_first:
            assert keys_of(met_after(store, page.cursors[-1], state="done", newest=False)) == keys[1::2][-3:]

    @pytest.mark.parametrize("cursor", ["nonsense", "-1", "", "9" * 30])
    def test_what_is_no_cursor_is_refused(self, store: Store, cursor: str) -> None:
        arrive(store, 2)
        with pytest.raises(BadWrite):
            store.scan(KIND, newest=True, after=cursor).block()

    def test_one_space_is_not_listed_by_age(self, store: Store) -> None:
        with pytest.raises(BadWrite, match="by key"):
            store.scan(KIND, space="space", newest=True).block()


def met_after(store: Store, after: str, *, limit: int = 3, **asked: Any) -> list[Record]:
    records: list[Record] = []
    cursor: str | None = after
    while cursor is not None:
        page = store.scan(KIND, after=cursor, limit=limit, **asked).block()
        records += page.records
        cursor = page.after
    return records


PREFIXES = {
    "plain": (
        "acme/order",
        ["acme/order", "acme/order 1", "acme/orders/7"],
        ["acme/orde", "acme/or", "acme/ordes", "b"],
    ),
    "case": ("acme/O", ["acme/O", "acme/Order"], ["acme/o", "acme/order"]),
    "wildcards": ("a%_", ["a%_", "a%_b"], ["a%x", "ab_", "axxb"]),
    "blank at the end": ("a ", ["a ", "a b"], ["a", "ab"]),
    "accents": ("caf\u00e9", ["caf\u00e9", "caf\u00e9s"], ["cafe", "cafe\u0301", "caf\u00ea"]),
    "last before the surrogates": ("a\ud7ff", ["a\ud7ff", "a\ud7ffb"], ["a", "a\ue000", "b"]),
    "last of all": ("a\U0010ffff", ["a\U0010ffff", "a\U0010ffffb"], ["a", "a\U0010fffe", "b"]),
    "quotes": ("a'\"\\", ["a'\"\\", "a'\"\\b"], ["a'\"", "a"]),
}


class ListsByPrefix(StoreCase):
    @pytest.mark.parametrize("which", PREFIXES.values(), ids=PREFIXES)
    def test_only_spaces_that_begin_so_are_met(self, store: Store, which: tuple[str, list[str], list[str]]) -> None:
        prefix, within, others = which
        for space in (*within, *others):
            land(store, Insert(Address(space, KIND, "self"), ""))
        assert sorted(record.at.space for record in met(store, prefix=prefix)) == sorted(within)

    @pytest.mark.parametrize("limit", [1, 7, 20, 45, 46])
    def test_each_is_met_exactly_once_by_prefix(self, store: Store, limit: int) -> None:
        wanted = [place(f"key {nth:02}", space=f"acme/{nth % 9}") for nth in range(45)]
        for at in wanted:
            land(store, Insert(at, ""))
            land(store, Insert(Address(at.space, "step", at.key), ""))
        land(store, Insert(place(space="acme"), ""))
        found = pages(store, limit, prefix="acme/")
        assert all(len(page.records) <= limit for page in found)
        met_there = [record.at for page in found for record in page.records]
        assert sorted(met_there, key=str) == sorted(wanted, key=str)

    def test_a_state_narrows_a_prefix(self, store: Store) -> None:
        for nth in range(12):
            land(store, Insert(place(nth, space=f"acme/{nth}"), "", ("held", "done", "")[nth % 3]))
            land(store, Insert(place(nth, space=f"other/{nth}"), "", "done"))
        found = met(store, limit=3, prefix="acme/", state="done")
        assert sorted(int(record.at.key) for record in found) == [1, 4, 7, 10]

    @pytest.mark.parametrize("limit", [1, 5, 9])
    def test_records_that_stay_are_met_once_by_prefix_while_others_come_and_go(self, store: Store, limit: int) -> None:
        spaces = [f"acme/{nth:02}" for nth in range(40)]
        for space in spaces:
            land(store, Insert(place(space, space=space), ""))
        goers = spaces[1::3]

        def disturb(nth: int) -> None:
            for space in goers[nth * 3 : nth * 3 + 3]:
                at = place(space, space=space)
                land(store, Remove(at, version=record_at(store, at).version))
                land(store, Insert(place("new", space=f"{space} new"), ""))

        stayers = sorted(set(spaces) - set(goers))
        assert those(pages(store, limit, disturb, prefix="acme/"), stayers) == stayers

    def test_a_prefix_goes_on_after_any_record_of_a_page(self, store: Store) -> None:
        for nth in range(10):
            land(store, Insert(place(nth, space=f"acme/{nth}"), ""))
        whole = store.scan(KIND, prefix="acme/", limit=10).block()
        for nth, cursor in enumerate(whole.cursors, 1):
            assert keys_of(met_after(store, cursor, prefix="acme/")) == keys_of(whole.records[nth:])

    @pytest.mark.parametrize("cursor", ["nonsense", "", "17"])
    def test_what_is_no_cursor_of_a_prefix_is_refused(self, store: Store, cursor: str) -> None:
        with pytest.raises(BadWrite):
            store.scan(KIND, prefix="acme/", after=cursor).block()

    @pytest.mark.parametrize("asked", [{"prefix": ""}, {"prefix": "a", "space": "acme"}, {"prefix": "a\0"}])
    def test_a_prefix_that_cannot_be_is_refused(self, store: Store, asked: dict[str, str]) -> None:
        with pytest.raises(BadWrite):
            store.scan(KIND, **asked).block()  # type: ignore[arg-type]


FLOWS = ("acme/sync", "acme/sync_order", "acme/Sync", "acme/syn", "other/sync")


class FamilyLists(StoreCase):
    def _runs(self, store: Store, count: int = 25) -> list[str]:
        """Runs of several flows in turns; the spaces of those of acme/sync in the order in which they came."""
        spaces = [f"{FLOWS[nth % len(FLOWS)]}/{count - nth:03}/x" for nth in range(count)]
        for nth, space in enumerate(spaces):
            land(store, Insert(Address(space, RUN, "self"), "", ("held", "done", "failed")[nth // 5 % 3]))
            land(store, Insert(Address(space, "claim", "self"), "", "held"))
        return spaces[:: len(FLOWS)]

    @pytest.mark.parametrize("limit", [1, 2, 100])
    def test_a_flow_is_listed_by_age_without_the_others(self, store: Store, limit: int) -> None:
        spaces = self._runs(store)
        found = [record.at.space for record in met(store, RUN, limit=limit, newest=True, prefix="acme/sync/")]
        assert sorted(found) == sorted(spaces)
        assert found == spaces[::-1] or not store.newest_first

    def test_a_flow_is_listed_by_age_in_one_state(self, store: Store) -> None:
        spaces = self._runs(store)
        found = met(store, RUN, limit=1, newest=True, prefix="acme/sync/", state="held")
        assert sorted(record.at.space for record in found) == sorted([spaces[0], spaces[3]])
        assert found[0].at.space == spaces[3] or not store.newest_first

    def test_a_flow_is_listed_backwards(self, store: Store) -> None:
        spaces = self._runs(store)
        page = store.scan(RUN, newest=True, prefix="acme/sync/", limit=3).block()
        if store.newest_first:
            back = store.scan(RUN, newest=False, prefix="acme/sync/", after=page.cursors[2]).block()
            assert [record.at.space for record in back.records] == spaces[3:]

    def test_a_run_that_changes_its_state_stays_in_its_flow(self, store: Store) -> None:
        spaces = self._runs(store)
        at = Address(spaces[0], RUN, "self")
        land(store, Replace(at, "", "done", version=record_at(store, at).version))
        found = met(store, RUN, newest=True, prefix="acme/sync/", state="done")
        assert spaces[0] in [record.at.space for record in found]
        assert spaces[0] not in [r.at.space for r in met(store, RUN, newest=True, prefix="acme/sync/", state="held")]

    @pytest.mark.parametrize("prefix", ["acme/sync", "acme/", "acme/sync/0", "acme/sync/0/"])
    def test_what_is_no_family_is_not_listed_by_age(self, store: Store, prefix: str) -> None:
        with pytest.raises(BadWrite, match="order by age"):
            store.scan(RUN, newest=True, prefix=prefix).block()

    def test_a_kind_without_that_index_is_not_listed_by_family(self, store: Store) -> None:
        with pytest.raises(BadWrite, match="order by age"):
            store.scan("claim", newest=True, prefix="acme/sync/").block()
