"""Fixtures of the source contract: deliveries, altered and malformed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from msgspec import structs

from ...inbound.source import Envelope, Event, Poison, Source

__all__ = [
    "NOW",
    "NUMBERS",
    "SourceCase",
    "bit_flips",
    "proofs",
    "spoilt",
    "with_body",
    "with_header",
    "with_number",
    "with_proof",
    "without_header",
]


NUMBERS = (2**53 + 1, 2**63, -(2**63) - 1, 2**64, 10**30)

PARTS = {
    "NaN": b"NaN",
    "infinity": b"-Infinity",
    "a number without an end": b"1e999",
    "half a surrogate pair": rb'"\ud800"',
    "the other half first": rb'"\udc00\ud800"',
    "a NUL in a text": b'"a\0b"',
    "a newline in a text": b'"a\nb"',
    "invalid UTF-8": b'"\xff\xfe"',
    "a surrogate in UTF-8": b'"\xed\xa0\x80"',
    "an overlong letter": b'"\xc0\xaf"',
    "too deep": b"[" * 500 + b"]" * 500,
    "deeper than the stack": b"[" * 20_000 + b"]" * 20_000,
    "a name twice": b'{"a":1,"a":2}',
    "a name twice, spelled in two ways": rb'{"a":1,"\u0061":2}',
    "a single quote": b"'x'",
    "a comment": b"1/*x*/",
    "a comma too many": b"[1,]",
    "a zero in front": b"01",
}
WHOLE = {
    "nothing": b"",
    "white space": b" \n",
    "a text": b'"text"',
    "a number": b"17",
    "null": b"null",
    "true": b"true",
    "no JSON": b"<xml/>",
    "a byte order mark": b"\xef\xbb\xbf{}",
    "UTF-16": '{"id":"1"}'.encode("utf-16"),
    "a pickle": b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00\x8c\x02os\x94.",
    "NUL bytes": b"\0" * 16,
    "half": b'{"id":',
    "two": b"{}{}",
}


def spoilt(body: bytes) -> dict[str, bytes]:
    """The good body with one malformed part in it, each; and bodies that are malformed as a whole."""
    return {name: _with_part(body, part) for name, part in PARTS.items()} | WHOLE


def with_number(body: bytes, number: int) -> bytes:
    return _with_part(body, str(number).encode())


def _with_part(body: bytes, part: bytes) -> bytes:
    """Into its last, innermost object: `{…{…,"spoilt":PART}}`. What is around it may have its own shape."""
    inner = len(body.rstrip(b"}] \n"))
    at = body.find(b"}", inner)
    comma = b"" if body[:at].endswith(b"{") else b","
    return body[:at] + comma + b'"spoilt":' + part + body[at:]


NOW = 1_790_000_000.0
SECRET = "whsec_dGhlLXNlY3JldC1vZi10aGlzLXRlc3Rz"  # noqa: S105 - a sample, in a form that every sender accepts
OTHER = "whsec_c29tZS1vdGhlci1zZWNyZXQtb2YtaXQh"


class SourceCase:
    """The hooks that a source's test class fills in. Pytest makes a new object of it for each test."""

    secret = SECRET
    other_secret = OTHER
    exact = True  # False: the sender signs the meaning of the body, not its bytes
    compares = True  # False: the sender signs with a private key

    def make_source(self) -> Source:
        raise NotImplementedError("Return your source from make_source().")

    def poisons(self) -> dict[str, bytes]:
        """Bodies that can be signed and must not be accepted. Override if the sender does not speak JSON."""
        return spoilt(self.make_source().example())

    @pytest.fixture
    def source(self) -> Source:
        return self.make_source()

    # -- short words -----------------------------------------------------------------------------

    def delivery(self, source: Source, payload: object = None, now: float = NOW) -> Envelope:
        return source.sample(self.secret, now, payload)

    def refusal(
        self, source: Source, envelope: Envelope, secrets: Sequence[str] | None = None, now: float = NOW
    ) -> str:
        return source.verify(envelope, [self.secret] if secrets is None else secrets, now)

    def events(self, source: Source, envelope: Envelope) -> list[Event]:
        """The events of an authentic delivery; anything else fails the test."""
        assert self.refusal(source, envelope, now=envelope.received_at) == ""
        reading = source.read(envelope)
        assert isinstance(reading, Sequence)
        events = [one for one in reading if isinstance(one, Event)]
        assert len(events) == len(reading)
        return events

    def is_stopped(self, source: Source, envelope: Envelope) -> bool:
        """Not authentic, or stored as a dead letter."""
        return bool(self.refusal(source, envelope)) or isinstance(source.read(envelope), Poison)

    def is_harmless(self, source: Source, changed: Envelope, sent: Envelope) -> bool:
        """Not authentic; or, where the sender signs the meaning, unchanged in meaning."""
        if self.refusal(source, changed):
            return True
        return not self.exact and source.read(changed) == source.read(sent)


QUERY = "?"


def with_body(envelope: Envelope, body: bytes) -> Envelope:
    return structs.replace(envelope, body=body)


def with_header(envelope: Envelope, name: str, value: str) -> Envelope:
    return structs.replace(envelope, headers={**envelope.headers, name: value})


def without_header(envelope: Envelope, name: str) -> Envelope:
    return structs.replace(envelope, headers={known: v for known, v in envelope.headers.items() if known != name})


def proofs(source: Source, envelope: Envelope) -> dict[str, str]:
    """What proves a delivery: the signed headers, or the place of the shared secret."""
    if source.signed:
        return {name: envelope.header(name) for name in source.covered}
    header = getattr(source, "header", "")
    return {header: envelope.header(header)} if header else {QUERY: envelope.query}


def with_proof(envelope: Envelope, name: str, value: str) -> Envelope:
    return structs.replace(envelope, query=value) if name == QUERY else with_header(envelope, name, value)


def bit_flips(source: Source, envelope: Envelope) -> Iterator[Envelope]:
    """Each bit of everything signed, flipped one at a time."""
    for name, value in proofs(source, envelope).items():
        for changed in _flipped(value.encode()):
            yield with_proof(envelope, name, changed.decode("latin-1"))
    if source.signed:  # the body of the others is not signed
        for changed in _flipped(envelope.body):
            yield with_body(envelope, changed)


def _flipped(text: bytes) -> Iterator[bytes]:
    for at in range(len(text)):
        for bit in range(8):
            yield text[:at] + bytes([text[at] ^ (1 << bit)]) + text[at + 1 :]
