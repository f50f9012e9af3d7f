"""Poison: what is signed but cannot be read is said to be so; it never breaks the reader, and is never half read."""

from __future__ import annotations

import msgspec

from ...doors.source import Event, Handshake, Poison, Source
from .case import NOW, SourceCase
from .changes import with_header, without_header
from .spoil import NUMBERS, with_number

__all__ = ["Poisonous"]

KINDS = (
    "text/plain",
    "text/html",
    "application/xml",
    "multipart/form-data; boundary=x",
    "application/octet-stream",
    "é",
)


class Poisonous(SourceCase):
    def test_a_spoilt_body_is_poison(self, source: Source) -> None:
        read = {}
        for name, body in self.poisons().items():
            reading = source.read(source.seal(body, self.secret, NOW))
            if not isinstance(reading, Poison) or not reading.reason:
                read[name] = reading
        assert read == {}

    def test_a_reason_is_short_enough_to_be_shown(self, source: Source) -> None:
        for body in self.poisons().values():
            reading = source.read(source.seal(body, self.secret, NOW))
            assert isinstance(reading, Poison)
            assert 0 < len(reading.reason) < 500

    def test_verifying_a_spoilt_body_breaks_nothing(self, source: Source) -> None:
        for body in self.poisons().values():
            assert self.refusal(source, source.seal(body, self.other_secret, NOW))

    def test_another_content_type_is_stopped(self, source: Source) -> None:
        sent = self.delivery(source)
        assert self.is_stopped(source, without_header(sent, "content-type"))
        for kind in KINDS:
            assert self.is_stopped(source, with_header(sent, "content-type", kind)), kind

    def test_an_event_without_an_id_is_stopped(self, source: Source) -> None:
        for body in (b"{}", b"[{}]", b"x=1"):
            sent = source.seal(body, self.secret, NOW)
            for name in [name for name in sent.headers if name.startswith(tuple(source.needs))]:
                sent = without_header(sent, name)
            assert self.is_stopped(source, sent)

    def test_a_large_number_keeps_its_digits(self, source: Source) -> None:
        for number in NUMBERS:
            reading = source.read(source.seal(with_number(source.example(), number), self.secret, NOW))
            assert not isinstance(reading, Handshake)
            events = [] if isinstance(reading, Poison) else [one for one in reading if isinstance(one, Event)]
            assert all(str(number).encode() in msgspec.json.encode(event.payload) for event in events)
            assert events or not self._speaks_json(source)

    def test_odd_headers_break_nothing(self, source: Source) -> None:
        sent = self.delivery(source)
        for name in sent.headers:
            for odd in ("", "\0", "é", "\ud800", "x" * 70_000, "a\tb", "-1", "%ff%00"):
                reading = source.read(with_header(sent, name, odd))
                assert isinstance(reading, list | Poison)
                assert isinstance(reading, Poison) or all(isinstance(event, Event) for event in reading)

    def _speaks_json(self, source: Source) -> bool:
        return source.example().lstrip()[:1] in (b"{", b"[")
