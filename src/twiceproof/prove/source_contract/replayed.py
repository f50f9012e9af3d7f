"""Replayed: a signed time is believed for a while, in both directions, and then no more."""

from __future__ import annotations

from ...doors.source import WINDOW, Source
from .case import NOW, SourceCase
from .changes import proofs

__all__ = ["Replayed"]

A_YEAR = 365 * 86_400.0


class Replayed(SourceCase):
    def test_a_sender_that_signs_a_time_has_a_window(self, source: Source) -> None:
        early, late = (proofs(source, self.delivery(source, now=at)) for at in (NOW, NOW + 1_000))
        assert (source.window > 0) is (early != late)

    def test_an_old_delivery_is_not_believed(self, source: Source) -> None:
        sent = self.delivery(source)
        assert bool(self.refusal(source, sent, now=NOW + source.window + 1)) is (source.window > 0)
        assert bool(self.refusal(source, sent, now=NOW + A_YEAR)) is (source.window > 0)

    def test_a_delivery_that_is_not_too_old_is_believed(self, source: Source) -> None:
        assert self.refusal(source, self.delivery(source), now=NOW + max(source.window, WINDOW) - 1) == ""
        assert self.refusal(source, self.delivery(source), now=NOW + WINDOW - 1) == ""

    def test_a_delivery_from_the_future_is_not_believed(self, source: Source) -> None:
        sent = self.delivery(source)
        assert bool(self.refusal(source, sent, now=NOW - WINDOW - 1)) is (source.window > 0)
        assert bool(self.refusal(source, sent, now=NOW - A_YEAR)) is (source.window > 0)

    def test_clocks_may_differ_a_little(self, source: Source) -> None:
        assert self.refusal(source, self.delivery(source), now=NOW - WINDOW + 1) == ""
