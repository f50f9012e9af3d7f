"""Rotated: while secrets change, the old and the new are believed; a withdrawn one is not."""

from __future__ import annotations

from ...doors.source import Source
from .case import NOW, SourceCase

__all__ = ["Rotated"]


class Rotated(SourceCase):
    def test_old_and_new_are_both_believed(self, source: Source) -> None:
        for secret in (self.secret, self.other_secret):
            sent = source.sample(secret, NOW)
            assert self.refusal(source, sent, [self.secret, self.other_secret]) == ""
            assert self.refusal(source, sent, [self.other_secret, self.secret]) == ""

    def test_a_withdrawn_secret_is_not_believed(self, source: Source) -> None:
        assert self.refusal(source, source.sample(self.secret, NOW), [self.other_secret])
        assert self.refusal(source, source.sample(self.other_secret, NOW), [self.secret])

    def test_a_secret_that_cannot_be_one_does_not_spoil_the_others(self, source: Source) -> None:
        for odd in ("whsec_", "é", "\ud800", "whpk_AAAA", "-----BEGIN", " "):
            assert self.refusal(source, self.delivery(source), [odd, self.secret]) == ""
            assert self.refusal(source, self.delivery(source), [odd])
