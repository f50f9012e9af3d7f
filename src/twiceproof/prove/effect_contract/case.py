"""The trial of an effect: its destination, and the faults that can be played there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from msgspec import Struct

from ...effects.base import Effect

__all__ = ["KEY", "EffectCase", "EffectTrial"]

KEY = "tp_" + "a1" * 16  # an effect key, as a step has one


class EffectTrial(Struct):
    """One effect, and what a test does to its destination."""

    effect: Effect[Any]
    state: Callable[[], Any]  # what is at the destination; reading it twice gives equal values
    count: Callable[[], int]  # how often it happened there
    lose_answer: Callable[[], Any]  # the next `perform` is carried out, and its answer lost
    refuse: Callable[[], Any]  # the next `perform` is refused
    unreachable: Effect[Any]  # the same effect at a place that does not answer
    concurrent: bool = True  # whether the destination makes one effect of several attempts at once
    carried: Callable[[], str] | None = None  # what is at the destination, as text: the effect key is in it
    blind: Callable[[], Any] | None = None  # the next `look` is answered with an error of the server


class EffectCase:
    """The hooks that an effect's test class fills in. Pytest makes a new object of it for each test."""

    secret = ""  # a text that is used to sign in there, and must not be described

    def make_trial(self) -> EffectTrial:
        """A trial at a fresh destination."""
        raise NotImplementedError("Return an EffectTrial from make_trial().")

    @pytest.fixture
    def trial(self) -> Iterator[EffectTrial]:
        yield self.make_trial()
