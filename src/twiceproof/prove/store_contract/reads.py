"""Reading: what was acknowledged is there, as it was written, to the last character."""

from __future__ import annotations

import pytest

from ...records import Insert, Remove, Replace
from ...stores.base import Store
from .asking import (
    Ask,
    all_at_once,
    by_both_drivers,
    due_keys,
    in_threads,
    is_absent,
    land,
    met,
    place,
    record_at,
    refuse,
)
from .case import StoreCase

__all__ = ["Reads"]

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
    def test_a_read_of_nothing_is_none_and_tells_the_stores_time(self, store: Store, ask: Ask) -> None:
        found = ask(store.read(place()))
        assert found.record is None
        assert found.now == pytest.approx(land(store, Insert(place(), "")).now, abs=20)

    @by_both_drivers
    def test_a_read_sees_the_write_acknowledged_before_it(self, store: Store, ask: Ask) -> None:
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
    def test_all_that_was_not_given_is_empty(self, store: Store, ask: Ask) -> None:
        ask(store.write(Insert(place(), "body")))
        record = ask(store.read(place())).record
        assert record is not None
        assert (record.state, record.queue, record.fence) == ("", "", 0)
        assert (record.lease_until, record.due_at) == (None, None)
