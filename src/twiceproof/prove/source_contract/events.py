"""Event ids, arrays, malformed bodies, sizes and answers."""

from __future__ import annotations

import json
from typing import Any, get_args

import msgspec
from msgspec import structs

from ...inbound.admit import admit
from ...inbound.dead_letters import HEADERS
from ...inbound.hook import Hook
from ...inbound.reply import Reply
from ...inbound.source import DeliveryOutcome, Envelope, Event, Handshake, Poison, Source
from ...keys import validate_key
from ...operations import block
from .case import NOW, NUMBERS, SourceCase, with_body, with_header, with_number, without_header

__all__ = ["AnswerTests", "Arrays", "EventIdTests", "Poisonous", "Sizes"]


AGAIN: tuple[DeliveryOutcome, ...] = ("busy", "failed", "unavailable")
WORDS: tuple[DeliveryOutcome, ...] = get_args(DeliveryOutcome)


class AnswerTests(SourceCase):
    def test_what_need_not_come_again_is_acknowledged(self, source: Source) -> None:
        """200 to 204: some senders take any other 2xx for a failure, and stop for good after 409."""
        for word in WORDS:
            assert word in AGAIN or 200 <= source.answer(word).status <= 204, word

    def test_what_must_come_again_is_not(self, source: Source) -> None:
        for word in AGAIN:
            reply = source.answer(word, retry_in=7.2)
            assert 500 <= reply.status <= 504, word
            assert reply.header("retry-after") == "8"

    def test_an_answer_says_what_it_is(self, source: Source) -> None:
        for word in WORDS:
            reply = source.answer(word, run="run_1")
            assert bool(reply.body) is bool(reply.header("content-type"))
            assert _is_header_text(reply)

    def test_a_duplicate_is_told_from_a_new_event(self, source: Source) -> None:
        assert source.answer("new").body != source.answer("duplicate").body

    def test_a_source_says_how_long_its_sender_tries_and_waits(self, source: Source) -> None:
        assert 0 < source.deadline <= 120
        assert source.deadline < source.retry_window <= 30 * 86_400

    def test_a_delivery_is_no_question(self, source: Source) -> None:
        assert source.greet(self.delivery(source)) is None

    def test_a_question_is_answered_without_a_claim_or_not_at_all(self, source: Source) -> None:
        asked = structs.replace(
            source.sample(self.secret, NOW), method="OPTIONS", headers={"webhook-request-origin": "sender.example"}
        )
        answer = source.greet(asked)
        assert answer is None or (isinstance(answer, Handshake) and answer.reply.status == 200)
        assert answer is None or _is_header_text(answer.reply)

    def test_a_source_has_a_name(self, source: Source) -> None:
        assert source.name
        assert source.name == source.name.lower()


def _is_header_text(reply: Reply) -> bool:
    return all(text.isascii() and text.isprintable() for header in reply.headers for text in header)


class Arrays(SourceCase):
    def test_a_re_ordered_array_has_the_same_events(self, source: Source) -> None:
        forth, back = self._bodies(source)
        readings = [self.events(source, source.seal(body, self.secret, NOW)) for body in (forth, back)]
        said = [{event.id: event.payload for event in reading} for reading in readings]
        assert said[0] == said[1] or not forth.startswith(b"[")
        assert len(said[0]) == (3 if forth.startswith(b"[") else 1)

    def test_a_signed_array_cannot_be_re_ordered(self, source: Source) -> None:
        forth, back = self._bodies(source)
        sent = source.seal(forth, self.secret, NOW)
        assert bool(self.refusal(source, with_body(sent, back))) is source.signed

    def _bodies(self, source: Source) -> tuple[bytes, bytes]:
        """Three events, and the same three reversed; where there is one event, it holds the array."""
        examples = [source.example({"number": number}) for number in (1, 2, 3)]
        if examples[0].startswith(b"["):
            events = [event for body in examples for event in json.loads(body)]
            return json.dumps(events).encode(), json.dumps(events[::-1]).encode()
        return source.example({"lines": [1, 2, 3]}), source.example({"lines": [3, 2, 1]})


# What senders and proxies change with each attempt.
PER_TRY = {
    "x-slack-retry-num": "2",
    "x-slack-retry-reason": "http_timeout",
    "square-retry-number": "2",
    "square-retry-reason": "http_timeout",
    "aeg-delivery-count": "3",
    "x-request-id": "b1",
    "traceparent": "00-b-1-01",
    "date": "Mon, 21 Sep 2026 12:00:00 GMT",
    "user-agent": "sender/2",
    "x-attempt": "2",
    "x-forwarded-for": "192.0.2.1",
    "x-ms-correlation-request-id": "b2",
    "x-ms-request-id": "b3",
    "x-retry-count": "2",
}
AN_HOUR = 3_600.0


class EventIdTests(SourceCase):
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
        """A dead letter keeps the body, and of the headers only those that the source needs."""
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
