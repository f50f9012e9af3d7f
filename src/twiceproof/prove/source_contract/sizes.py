"""Sizes: a source says how large a delivery may be; up to there it reads it, and beyond nobody looks at it."""

from __future__ import annotations

from typing import Any

from ...doors.admit import admit
from ...doors.envelope import Envelope
from ...doors.hook import Hook
from ...doors.source import Source
from ...drive import block
from .case import NOW, SourceCase
from .changes import with_body, with_header

__all__ = ["Sizes"]

UNUSED: Any = None


class Sizes(SourceCase):
    def test_a_source_has_a_limit(self, source: Source) -> None:
        assert 64 * 1024 <= source.largest <= 32 * 1024 * 1024

    def test_a_delivery_up_to_the_limit_is_read(self, source: Source) -> None:
        room = source.largest - len(source.example({"filler": ""})) - 64
        (event,) = self.events(source, self.delivery(source, {"filler": "x" * room}))
        assert event.payload

    def test_a_delivery_beyond_the_limit_is_not_looked_at(self, source: Source) -> None:
        sent = with_body(self.delivery(source), b"x" * (source.largest + 1))

        def nobody_asks() -> list[str]:
            raise AssertionError("a delivery that is too large was verified")

        hook = Hook("sizes", source, nobody_asks, UNUSED, UNUSED)
        assert block(admit(UNUSED, hook, sent)).status == 413

    def test_many_proofs_cost_no_more_than_a_few(self, source: Source) -> None:
        sent = self.delivery(source)
        for name in source.covered:
            assert self.refusal(source, with_many(sent, name))
        assert self.refusal(source, sent, now=NOW) == ""


def with_many(envelope: Envelope, name: str) -> Envelope:
    return with_header(envelope, name, " ".join([envelope.header(name)[:-1] + "!"] * 2_000))
