"""Changes that somebody on the way could make to a delivery."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import structs

from ...doors.envelope import Envelope
from ...doors.source import Source

__all__ = ["bit_flips", "proofs", "with_body", "with_header", "with_proof", "without_header"]

QUERY = "?"


def with_body(envelope: Envelope, body: bytes) -> Envelope:
    return structs.replace(envelope, body=body)


def with_header(envelope: Envelope, name: str, value: str) -> Envelope:
    return structs.replace(envelope, headers={**envelope.headers, name: value})


def without_header(envelope: Envelope, name: str) -> Envelope:
    return structs.replace(envelope, headers={known: v for known, v in envelope.headers.items() if known != name})


def proofs(source: Source, envelope: Envelope) -> dict[str, str]:
    """What a delivery is believed by: the headers that are signed, or the place of the shared secret."""
    if source.signed:
        return {name: envelope.header(name) for name in source.covered}
    header = getattr(source, "header", "")
    return {header: envelope.header(header)} if header else {QUERY: envelope.query}


def with_proof(envelope: Envelope, name: str, value: str) -> Envelope:
    return structs.replace(envelope, query=value) if name == QUERY else with_header(envelope, name, value)


def bit_flips(source: Source, envelope: Envelope) -> Iterator[Envelope]:
    """Each bit of all that is vouched for, one at a time."""
    for name, value in proofs(source, envelope).items():
        for changed in _flipped(value.encode()):
            yield with_proof(envelope, name, changed.decode("latin-1"))
    if source.signed:  # nobody vouches for the body of the others
        for changed in _flipped(envelope.body):
            yield with_body(envelope, changed)


def _flipped(text: bytes) -> Iterator[bytes]:
    for at in range(len(text)):
        for bit in range(8):
            yield text[:at] + bytes([text[at] ^ (1 << bit)]) + text[at + 1 :]
