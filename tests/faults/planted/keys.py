"""Bugs of keys and values: different ones treated as equal, equal ones as different, invalid ones accepted."""

from __future__ import annotations

from typing import Any

from twiceproof.claims import claim
from twiceproof.claims import request as asking
from twiceproof.keys import key as keys


def forms_not_folded() -> None:
    """The same letters in another normal form of Unicode are another key."""
    keys.normalize = lambda form, text: text  # type: ignore[attr-defined]


def blank_accepted() -> None:
    """An empty key is a key: everything that has none is one event."""
    checked = keys._checked
    keys._checked = lambda key: key or checked("blank")


def case_folded() -> None:
    """Keys that differ only in case are equal."""
    address_of = claim.address_of

    def folded(tenant: str, operation: str, key: str, kind: str = claim.CLAIM) -> Any:
        return address_of(tenant, operation, key.lower(), kind)

    asking.address_of = folded  # type: ignore[attr-defined]
