"""Reads, scans and addresses."""

from __future__ import annotations

import pytest

from ...errors import BadWrite
from ...records import Address, Insert, Record, Remove, Replace
from ...stores.base import Store
from .case import (
    KIND,
    SPACE,
    StoreCase,
    StoreRequest,
    all_at_once,
    by_both_drivers,
    claim,
    due_keys,
    in_threads,
    is_absent,
    land,
    land_each,
    met,
    place,
    record_at,
    refuse,
)

__all__ = ["AddressTests", "Reads", "Scans"]


LOOK_ALIKES = {
    "upper and lower case": ("Order", "order"),
    "blank at the end": ("order", "order "),
    "blank in front": ("order", " order"),
    "composed and decomposed": ("caf\u00e9", "cafe\u0301"),
    "with and without accent": ("cafe", "caf\u00e9"),
    "sharp s": ("stra\u00dfe", "strasse"),
    "Kelvin": ("K", "\u212a"),
    "half and full width": ("1", "\uff11"),
    "leading zero": ("7", "07"),
    "wildcard": ("order_1", "orderx1"),
    "per cent": ("order%", "order"),
    "invisible": ("order", "order\u200b"),
    "beyond the first plane": ("\U0001f4b6", "\U0001f4b7"),
    "quoted": ("a'b", "a''b"),
    "backslash": ("a\\b", "a\\\\b"),
}

SAME_WHEN_JOINED = [
    (Address("a:b", "k", "c"), Address("a", "k", "b:c")),
    (Address("a/b", "k", "c"), Address("a", "k", "b/c")),
    (Address("a|b", "k", "c"), Address("a", "k", "b|c")),
    (Address("a b", "k", "c"), Address("a", "k", "b c")),
    (Address("a", "k:k", "c"), Address("a", "k", "k:c")),
    (Address("ab", "k", "c"), Address("a", "k", "bc")),
    (Address("{a}", "k", "c"), Address("a", "k", "c")),
    (Address("a\x1f", "k", "c"), Address("a", "k", "\x1fc")),
    (Address("a\nb", "k", "c"), Address("a", "k", "b\nc")),
]


class AddressTests(StoreCase):
    @pytest.mark.parametrize("pair", LOOK_ALIKES.values(), ids=LOOK_ALIKES)
    def test_addresses_that_look_alike_are_two(self, store: Store, pair: tuple[str, str]) -> None:
        one, other = pair
        self._are_two(store, Address(one, KIND, "in space"), Address(other, KIND, "in space"))
        self._are_two(store, Address(SPACE, one, "in kind"), Address(SPACE, other, "in kind"))
        self._are_two(store, Address(SPACE, KIND, one), Address(SPACE, KIND, other))

    @pytest.mark.parametrize("pair", SAME_WHEN_JOINED, ids=str)
    def test_addresses_that_would_join_to_the_same_text_are_two(
        self, store: Store, pair: tuple[Address, Address]
    ) -> None:
        self._are_two(store, *pair)

    def _are_two(self, store: Store, one: Address, other: Address) -> None:
        land(store, Insert(one, "one"))
        land(store, Insert(other, "other"))
        assert (record_at(store, one).at, record_at(store, one).body) == (one, "one")
        assert (record_at(store, other).at, record_at(store, other).body) == (other, "other")

    def test_the_same_key_in_another_space_or_kind_is_another_record(self, store: Store) -> None:
        others = [place(), place(space="other"), place(kind="step")]
        for at in others:
            land(store, Insert(at, at.space + at.kind))
        assert [record_at(store, at).body for at in others] == [at.space + at.kind for at in others]

    def test_a_scan_tells_look_alike_kinds_and_spaces_apart(self, store: Store) -> None:
        for space, kind in [("a", "k"), ("A", "k"), ("a ", "k"), ("a", "K"), ("a", "k "), ("a%", "k")]:
            land(store, Insert(Address(space, kind, "key"), ""))
        assert [record.at for record in met(store, "k", space="a")] == [Address("a", "k", "key")]


BODIES = {
    "empty": "",
    "json": '{"id": 10492, "total": 12.50, "lines": []}',
    "composed and decomposed": "caf\u00e9 cafe\u0301 \u212b \ufb01",
    "quotes": "it's \"quoted\" `so` ''twice''",
    "backslashes": r"C:\new\table \u0041 \\ \0",
    "blanks": " \t leading, trailing \r\n\n ",
    "beyond the first plane": "\U0001f4b6 \U00020000 \U0010fffd",
    "control characters": "\x01\x07\x1b\x1f\x7f\x85\u2028",
    "byte order mark": "\ufeffbody\ufffe\uffff",
    "placeholders": "%s %(name)s $1 :name ? {0} {{}} ${x}",
    "a number": "0010",
    "null": "null",
    "100 KB": "0123456789abcdef" * 6_400,
    "100 KB not of ASCII": "größe\u4e2d" * 12_000,
}
as_written = pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)


class Reads(StoreCase):
    @by_both_drivers
    def test_a_read_of_nothing_is_none_and_tells_the_stores_time(self, store: Store, ask: StoreRequest) -> None:
        found = ask(store.read(place()))
        assert found.record is None
        assert found.now == pytest.approx(land(store, Insert(place(), "")).now, abs=20)

    @by_both_drivers
    def test_a_read_sees_the_write_acknowledged_before_it(self, store: Store, ask: StoreRequest) -> None:
        landed = ask(store.write(Insert(place(), "body", "held")))
        record = ask(store.read(place())).record
        assert record is not None
        assert (record.at, record.body, record.state) == (place(), "body", "held")
        assert record.version == landed.version  # type: ignore[union-attr]

    def test_a_read_sees_each_further_write(self, store: Store) -> None:
        assert is_absent(store, place())
        first = land(store, Insert(place(), "1"))
        assert record_at(store, place()).body == "1"
        second = land(store, Replace(place(), "2", version=first.version))
        assert record_at(store, place()).body == "2"
        land(store, Remove(place(), version=second.version))
        assert is_absent(store, place())

    def test_every_thread_sees_the_acknowledged_write(self, store: Store) -> None:
        landed = land(store, Insert(place(), "1"))
        in_threads(4, lambda _: record_at(store, place()))
        land(store, Replace(place(), "2", version=landed.version))
        assert in_threads(4, lambda _: record_at(store, place()).body) == ["2"] * 4

    def test_many_reads_at_once_each_get_their_own_answer(self, store: Store) -> None:
        for nth in range(20):
            land(store, Insert(place(nth), f"body {nth}"))
        bodies = in_threads(20, lambda nth: [record_at(store, place(nth)).body for _ in range(5)])
        assert bodies == [[f"body {nth}"] * 5 for nth in range(20)]

    def test_reads_awaited_together_each_get_their_own_answer(self, store: Store) -> None:
        for nth in range(0, 20, 2):
            land(store, Insert(place(nth), f"body {nth}"))
        found = all_at_once(lambda: [store.read(place(nth)) for nth in range(20)])
        bodies = [answer.record and answer.record.body for answer in found]
        assert bodies == [None if nth % 2 else f"body {nth}" for nth in range(20)]

    @as_written
    def test_a_body_comes_back_as_it_was_inserted(self, store: Store, body: str) -> None:
        land(store, Insert(place(), body))
        assert record_at(store, place()).body == body

    @as_written
    def test_a_body_comes_back_as_it_was_replaced(self, store: Store, body: str) -> None:
        landed = land(store, Insert(place(), "before"))
        land(store, Replace(place(), body, version=landed.version))
        assert record_at(store, place()).body == body

    @as_written
    def test_a_body_comes_back_the_same_by_every_way(self, store: Store, body: str) -> None:
        land(store, Insert(place(), body, queue="q", due_in=0))
        found = refuse(store, Insert(place(), "other")).found
        assert found is not None
        assert found.body == body
        assert [record.body for record in met(store)] == [body]
        assert [record.body for record in store.due("claim", queues=["q"]).block().records] == [body]

    def test_state_and_queue_come_back_as_written(self, store: Store) -> None:
        land(store, Insert(place(), "", "hélas ' \\", queue="flow \u2028@ü 'x'", due_in=0))
        record = record_at(store, place())
        assert (record.state, record.queue) == ("hélas ' \\", "flow \u2028@ü 'x'")
        assert due_keys(store, "flow \u2028@ü 'x'") == ["key"]

    @by_both_drivers
    def test_all_that_was_not_given_is_empty(self, store: Store, ask: StoreRequest) -> None:
        ask(store.write(Insert(place(), "body")))
        record = ask(store.read(place())).record
        assert record is not None
        assert (record.state, record.queue, record.fence) == ("", "", 0)
        assert (record.lease_until, record.due_at) == (None, None)


def spread(store: Store, count: int, **fields: str) -> list[Address]:
    """Records in as many spaces: a partitioned engine has them in all its partitions."""
    addresses = [place(f"key {nth:03}", space=f"space {nth % 20}") for nth in range(count)]
    for at in addresses:
        land(store, Insert(at, f"body of {at.key}", **fields))  # type: ignore[arg-type]
    return addresses


def places_of(records: list[Record]) -> list[tuple[str, str]]:
    return sorted((record.at.space, record.at.key) for record in records)


class Scans(StoreCase):
    @by_both_drivers
    def test_a_scan_of_nothing_is_one_empty_page(self, store: Store, ask: StoreRequest) -> None:
        page = ask(store.scan("claim"))
        assert (list(page.records), page.after) == ([], None)

    @by_both_drivers
    def test_a_scan_meets_what_is_there(self, store: Store, ask: StoreRequest) -> None:
        claim(store, place(), "body")
        assert list(ask(store.scan("claim")).records) == [record_at(store, place())]

    @by_both_drivers
    def test_what_lies_in_several_spaces_is_met_at_once_by_its_kinds(self, store: Store, ask: StoreRequest) -> None:
        for space in ("one", "two", "on", "three"):
            for kind in ("claim", "step", "steps", "arrival"):
                land(store, Insert(place("a", space=space, kind=kind), f"{kind} of {space}"))
        found = ask(store.beside(["one", "two", "none"], ("step", "arrival")))
        bodies = sorted(record.body for record in found)
        assert bodies == ["arrival of one", "arrival of two", "step of one", "step of two"]
        assert all(record == record_at(store, record.at) for record in found)

    def test_of_each_space_no_more_is_told_than_asked(self, store: Store) -> None:
        for space in ("one", "two"):
            land_each(store, *(Insert(place(nth, space=space, kind="step"), "") for nth in range(5)))
        found = store.beside(["one", "two"], ("step",), limit=3).block()
        assert len(found) >= 3 and {record.at.space for record in found} <= {"one", "two"}
        assert all(sum(record.at.space == space for record in found) <= 5 for space in ("one", "two"))
        assert len(store.beside(["one", "two"], ("step",), limit=5).block()) == 10

    def test_what_was_removed_takes_no_place_among_what_lies_in_a_space(self, store: Store) -> None:
        """A store that keeps tombstones must skip them: an empty answer means that the space is empty."""
        at = [place(nth, space="one", kind="step") for nth in range(9)]
        land_each(store, *(Insert(each, "") for each in at))
        land_each(store, *(Remove(each, version=record_at(store, each).version) for each in at[:7]))
        found = store.beside(["one"], ("step",), limit=3).block()
        assert sorted(record.at.key for record in found) == ["7", "8"]

    @pytest.mark.parametrize("limit", [1, 7, 20, 45, 46, 1_000])
    def test_a_scan_meets_each_record_exactly_once(self, store: Store, limit: int) -> None:
        addresses = spread(store, 45)
        assert places_of(met(store, limit=limit)) == sorted((at.space, at.key) for at in addresses)

    @pytest.mark.parametrize("limit", [1, 7, 20])
    def test_no_page_is_longer_than_asked(self, store: Store, limit: int) -> None:
        spread(store, 25)
        assert 1 <= len(store.scan("claim", limit=limit).block().records) <= limit

    def test_only_the_kind_asked_for_is_met(self, store: Store) -> None:
        land_each(store, Insert(place(kind="claim"), ""), Insert(place(kind="step"), ""))
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
        land_each(store, Insert(place(1), "", ""), Insert(place(2), "", "held"))
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
