"""A flow's limits: how many runs at once, in all and per key, and how many in a time."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import Signature
from typing import Any

from msgspec import Struct

from ...claims.hold import Hold
from ...drive import Operation
from ...errors import Misuse
from ...keys import KeyMaker
from ..parts import Parts
from .rate import Rate, admit, make_rate
from .slots import give_back, is_held_around, or_give_back, take_slot

__all__ = ["Entered", "Full", "Limits", "make_limits"]

FULL_PAUSE = 0.5


class Entered(Struct, frozen=True):
    """The run may begin. The slots are given back when it has ended."""

    holds: list[Hold]


class Full(Struct, frozen=True):
    """Not now: ask again in so many seconds."""

    seconds: float
    ours: bool = False  # a run that the caller is inside of has one of the slots


class Limits:
    """What a flow declares with limit=, limit_per= and rate=."""

    def __init__(
        self, name: str, lease: float, limit: int | None, per: list[tuple[KeyMaker, int]], rate: Rate | None
    ) -> None:
        self._name = name
        self._lease = lease
        self._limit = limit
        self._per = per
        self._rate = rate
        self._turned_away = 0  # since somebody was let in: the more wait, the less often each of them asks

    def enter(self, parts: Parts, arguments: Mapping[str, Any], *, begins: bool) -> Operation[Entered | Full]:
        """Everything or nothing. A rate counts runs that begin, not those that go on after a wait."""
        holds: list[Hold] = []
        rate = self._rate if begins else None
        return (yield from or_give_back(parts, holds, self._enter(parts, arguments, holds, rate)))

    def _enter(
        self, parts: Parts, arguments: Mapping[str, Any], holds: list[Hold], rate: Rate | None
    ) -> Operation[Entered | Full]:  # fmt: skip
        for group, size in self.groups(arguments):
            hold = yield from take_slot(parts, self._name, group, size, self._lease)
            if hold is None:
                yield from give_back(parts, holds)
                self._turned_away += 1
                return Full(FULL_PAUSE + self._turned_away / 100, is_held_around(parts, self._name, group))
            holds.append(hold)
        wait = (yield from admit(parts.store, parts.tenant, self._name, rate)) if rate else 0.0
        if wait > 0:
            yield from give_back(parts, holds)
            return Full(wait)
        self._turned_away = 0
        return Entered(holds)

    @property
    def by_key(self) -> bool:
        """Whether it takes a run's arguments to tell which slots it needs."""
        return bool(self._per)

    def groups(self, arguments: Mapping[str, Any]) -> list[tuple[str, int]]:
        """The narrow ones first: a slot of the whole flow is not held while waiting for one key."""
        groups = [(f"per {index}:{maker.make(arguments)}", size) for index, (maker, size) in enumerate(self._per)]
        return groups if self._limit is None else [*groups, ("all", self._limit)]


def make_limits(
    name: str, lease: float, signature: Signature, limit: int | None, per: Mapping[str, int] | None, rate: str | None
) -> Limits | None:  # fmt: skip
    if limit is None and not per and rate is None:
        return None
    for what, size in (("limit", limit), *(("limit_per", size) for size in (per or {}).values())):
        if size is not None and (isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= 10_000):
            raise Misuse(f"{what}={size!r} is not a number of runs; give 1 to 10,000.")
    makers = [(KeyMaker(template, signature), size) for template, size in (per or {}).items()]
    return Limits(name, lease, limit, makers, make_rate(rate) if rate is not None else None)
