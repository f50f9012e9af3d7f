"""Ids: the same on every redelivery, another for another event."""

from __future__ import annotations

import msgspec
from msgspec import structs

from ...doors.envelope import Envelope
from ...doors.letters import HEADERS
from ...doors.source import Source
from ...keys import validate_key
from .case import NOW, SourceCase
from .changes import with_header

__all__ = ["Ids"]

# What senders and proxies write anew at each try.
PER_TRY = {
    "x-slack-retry-num": "2", "x-slack-retry-reason": "http_timeout", "square-retry-number": "2",
    "square-retry-reason": "http_timeout", "aeg-delivery-count": "3", "x-request-id": "b1", "traceparent": "00-b-1-01",
    "date": "Mon, 21 Sep 2026 12:00:00 GMT", "user-agent": "sender/2", "x-attempt": "2", "x-forwarded-for": "192.0.2.1",
    "x-ms-correlation-request-id": "b2", "x-ms-request-id": "b3", "x-retry-count": "2",
}  # fmt: skip
AN_HOUR = 3_600.0


class Ids(SourceCase):
    def ids(self, source: Source, envelope: Envelope) -> list[str]:
        return [event.id for event in self.events(source, envelope)]

    def test_each_event_has_an_id_that_can_be_claimed(self, source: Source) -> None:
        ids = self.ids(source, self.delivery(source))
        assert ids
        assert [validate_key(name) for name in ids] == ids

    def test_a_redelivery_has_the_same_ids(self, source: Source) -> None:
        first, again = self.delivery(source), self.delivery(source, now=NOW + AN_HOUR)
        for name, value in PER_TRY.items():
            again = with_header(again, name, value)
        assert self.ids(source, first) == self.ids(source, again)

    def test_a_redelivery_says_the_same(self, source: Source) -> None:
        first, again = (self.events(source, self.delivery(source, now=at)) for at in (NOW, NOW + AN_HOUR))
        assert [event.payload for event in first] == [event.payload for event in again]
        assert [event.contents for event in first] == [event.contents for event in again]

    def test_two_events_have_two_ids(self, source: Source) -> None:
        sent = [self.delivery(source, {"number": number}) for number in range(20)]
        ids = [name for envelope in sent for name in self.ids(source, envelope)]
        assert len(set(ids)) == len(ids) == 20

    def test_reading_twice_gives_the_same(self, source: Source) -> None:
        sent = self.delivery(source)
        assert source.read(sent) == source.read(sent) == self.make_source().read(sent)

    def test_a_payload_is_plain_json(self, source: Source) -> None:
        for event in self.events(source, self.delivery(source)):
            assert msgspec.json.decode(msgspec.json.encode(event.payload)) == event.payload

    def test_a_letter_can_be_read_again(self, source: Source) -> None:
        """A letter keeps the body, and of the headers only those that the source needs."""
        sent = self.delivery(source)
        kept = {
            name: value
            for name, value in sent.headers.items()
            if name in HEADERS or name.startswith(tuple(source.needs))
        }
        assert source.read(structs.replace(sent, headers=kept, url="", query="")) == source.read(sent)

    def test_a_letter_does_not_keep_a_proof(self, source: Source) -> None:
        sent = self.delivery(source)
        kept = " ".join(value for name, value in sent.headers.items() if name.startswith(tuple(source.needs)))
        assert self.secret not in kept
        assert not any("sig" in name or "hmac" in name or "auth" in name for name in source.needs)
