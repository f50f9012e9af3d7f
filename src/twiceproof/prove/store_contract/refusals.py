"""What no store accepts, refused before anything is written; and its twin, which every store accepts."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

from ...errors import BadWrite
from ...records import Address, Check, Insert, Remove, Replace, Write
from ...stores.base import Store
from ...stores.validate import MOST_KEY, MOST_KIND, MOST_SPACE
from .case import StoreCase, claim, is_absent, land, met, place, record_at

__all__ = ["Refusals"]


MOST = {"space": MOST_SPACE, "kind": MOST_KIND, "key": MOST_KEY}
NOT_TEXT = {
    "empty": "",
    "NUL": "\0",
    "NUL inside": "a\0b",
    "lone surrogate": "a\ud800",
    "other lone surrogate": "\udcff",
    "bytes": b"key",
    "number": 7,
    "nothing": None,
}
parts = pytest.mark.parametrize("part", ["space", "kind", "key"])


def _with(part: str, text: Any) -> Address:
    return Address(**{"space": "shop", "kind": "claim", "key": "key", part: text})


def _writes(at: Address) -> list[Write]:
    return [
        Insert(at, ""),
        Replace(at, "", version="1"),
        Remove(at, version="1"),
        Check(at, absent=True),
    ]


@functools.cache
def _text(length: int) -> str:
    return "x" * length


class Refusals(StoreCase):
    @pytest.mark.parametrize("text", NOT_TEXT.values(), ids=NOT_TEXT)
    def test_an_address_that_is_no_text_is_refused(self, store: Store, text: Any) -> None:
        for part in MOST:
            for write in _writes(_with(part, text)):
                with pytest.raises(BadWrite):
                    store.write(write).block()
        assert met(store) == []

    @parts
    def test_an_address_one_byte_too_long_is_refused(self, store: Store, part: str) -> None:
        for text in ("x" * (MOST[part] + 1), "é" * (MOST[part] // 2) + "x"):
            for write in _writes(_with(part, text)):
                with pytest.raises(BadWrite):
                    store.write(write).block()
        assert met(store) == []

    @parts
    def test_an_address_as_long_as_allowed_is_taken(self, store: Store, part: str) -> None:
        for fill in ("x", "é", "\U0001f4b6"):
            at = _with(part, fill * (MOST[part] // len(fill.encode())))
            land(store, Insert(at, "body"))
            assert record_at(store, at).at == at

    def test_the_longest_address_of_all_is_taken(self, store: Store) -> None:
        at = Address("s" * MOST_SPACE, "k" * MOST_KIND, "é" * (MOST_KEY // 2))
        land(store, Insert(at, "body", queue="q", due_in=0))
        assert record_at(store, at).body == "body"
        assert [record.at for record in met(store, at.kind)] == [at]

    @pytest.mark.parametrize("field", ["body", "state", "queue"])
    @pytest.mark.parametrize("text", ["\0", "a\0b", "\ud800", b"bytes", 7], ids=repr)
    def test_a_field_that_is_no_text_is_refused(self, store: Store, field: str, text: Any) -> None:
        landed = claim(store, place("held"))
        before = record_at(store, place("held"))
        with pytest.raises(BadWrite):
            store.write(Insert(place(), **{"body": "", field: text})).block()
        with pytest.raises(BadWrite):
            store.write(Replace(place("held"), fence=landed.fence, **{field: text})).block()
        assert is_absent(store, place())
        assert record_at(store, place("held")) == before

    @pytest.mark.parametrize(("field", "most"), [("state", 32), ("queue", 256)])
    def test_a_field_too_long_is_refused_and_its_twin_taken(self, store: Store, field: str, most: int) -> None:
        long, fitting = ({"body": "", field: "x" * size} for size in (most + 1, most))
        with pytest.raises(BadWrite):
            store.write(Insert(place(), **long)).block()  # type: ignore[arg-type]
        assert is_absent(store, place())
        land(store, Insert(place(), **fitting))  # type: ignore[arg-type]
        assert getattr(record_at(store, place()), field) == "x" * most

    def test_a_body_too_large_is_refused_and_its_twin_taken(self, store: Store) -> None:
        with pytest.raises(BadWrite):
            store.write(Insert(place(), _text(store.body_limit + 1))).block()
        assert is_absent(store, place())
        land(store, Insert(place(), _text(store.body_limit)))
        assert len(record_at(store, place()).body) == store.body_limit

    def test_one_bad_write_keeps_its_whole_batch_out(self, store: Store) -> None:
        bad = [_with("key", ""), _with("key", "\0"), _with("key", "x" * (MOST_KEY + 1))]
        for at in bad:
            with pytest.raises(BadWrite):
                store.write(Insert(place("good"), ""), Insert(at, "")).block()
        assert is_absent(store, place("good"))

    @pytest.mark.parametrize("make", [Replace, Remove, Check])
    def test_a_write_without_a_condition_is_refused(self, store: Store, make: Callable[..., Write]) -> None:
        claim(store, place())
        before = record_at(store, place())
        with pytest.raises(BadWrite):
            store.write(make(place())).block()
        assert record_at(store, place()) == before

    @pytest.mark.parametrize("make", [Replace, Remove, Check])
    def test_a_write_with_two_conditions_is_refused(self, store: Store, make: Callable[..., Write]) -> None:
        landed = claim(store, place())
        before = record_at(store, place())
        with pytest.raises(BadWrite):
            store.write(make(place(), fence=landed.fence, version=landed.version)).block()
        assert record_at(store, place()) == before

    def test_a_check_for_absence_and_more_is_refused(self, store: Store) -> None:
        with pytest.raises(BadWrite):
            store.write(Check(place(), fence=1, absent=True)).block()

    @pytest.mark.parametrize("fence", [0, -1, 2**63, 2**200])
    def test_a_fence_that_was_never_drawn_is_refused(self, store: Store, fence: int) -> None:
        """Zero is the fence of all records that have none: it must not match any of them."""
        land(store, Insert(place(), "no fence"))
        before = record_at(store, place())
        for write in (Replace(place(), "", fence=fence), Remove(place(), fence=fence), Check(place(), fence=fence)):
            with pytest.raises(BadWrite):
                store.write(write).block()
        assert record_at(store, place()) == before
