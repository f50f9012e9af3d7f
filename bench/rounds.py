"""Contenders take turns, A B C A B C …: whatever else this machine does, it does to all of them."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from msgspec import Struct

from .callers import Callers
from .series import Series

__all__ = ["Contender", "Slots", "compete"]


class Contender(Struct, frozen=True):
    """One thing to be measured. An act handles `rows` claims at once. `each`: acts per slot, if that is known."""

    name: str
    callers: Callers
    rows: int = 1
    each: int | None = None


class Slots(Struct, frozen=True):
    """How many rounds, and how many seconds a contender gets in each."""

    rounds: int
    seconds: float


def compete(contenders: Sequence[Contender], slots: Slots, progress: Callable[[], None]) -> list[Series]:
    """Each contender's seconds per claim, round by round."""
    taken: list[list[float]] = [[] for _ in contenders]
    with ExitStack() as stack:
        for contender in contenders:
            stack.callback(contender.callers.close)
        counts = [contender.each or _acts_in(contender.callers, slots.seconds) for contender in contenders]
        for _ in range(slots.rounds):
            for contender, each, seconds in zip(contenders, counts, taken, strict=True):
                seconds.append(_per_claim(contender, each))
            progress()
    return [
        Series(contender.name, contender.callers.label, tuple(seconds))
        for contender, seconds in zip(contenders, taken, strict=True)
    ]


def _per_claim(contender: Contender, each: int) -> float:
    gc.collect()  # or one contender pays for another's rubbish
    return contender.callers.time(each) / (each * contender.callers.count * contender.rows)


def _acts_in(callers: Callers, seconds: float) -> int:
    """How many acts of each caller fill a slot. Finding out is the warm-up, too."""
    each = 1
    while True:
        took = callers.time(each)
        if took >= seconds / 4:
            return max(1, round(each * seconds / took))
        each *= 2 if took > seconds / 16 else 4
