"""Addresses: two that differ anywhere are two records, however alike they look to a database."""

from __future__ import annotations

import pytest

from ...records import Address, Insert
from ...stores.base import Store
from .asking import KIND, SPACE, land, met, place, record_at
from .case import StoreCase

__all__ = ["Places"]

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


class Places(StoreCase):
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
