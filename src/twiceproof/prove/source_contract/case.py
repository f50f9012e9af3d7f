"""What every contract test stands on: a source, a secret, and the moment at which it is asked."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ...doors.envelope import Envelope
from ...doors.source import Event, Poison, Source
from .spoil import spoilt

__all__ = ["NOW", "SourceCase"]

NOW = 1_790_000_000.0
SECRET = "whsec_dGhlLXNlY3JldC1vZi10aGlzLXRlc3Rz"  # noqa: S105 - a sample, of a form that every sender takes
OTHER = "whsec_c29tZS1vdGhlci1zZWNyZXQtb2YtaXQh"


class SourceCase:
    """The hooks a source's test class fills in. Pytest makes a new object of it for each test."""

    secret = SECRET
    other_secret = OTHER
    exact = True  # False: the sender signs what the body says, not its bytes
    compares = True  # False: the sender signs with a private key

    def make_source(self) -> Source:
        raise NotImplementedError("Return your source from make_source().")

    def poisons(self) -> dict[str, bytes]:
        """Bodies that can be signed and must not be read. Yours to fill in if the sender does not speak JSON."""
        return spoilt(self.make_source().example())

    @pytest.fixture
    def source(self) -> Source:
        return self.make_source()

    # -- short words -----------------------------------------------------------------------------

    def delivery(self, source: Source, payload: object = None, now: float = NOW) -> Envelope:
        return source.sample(self.secret, now, payload)

    def refusal(
        self, source: Source, envelope: Envelope, secrets: Sequence[str] | None = None, now: float = NOW
    ) -> str:  # fmt: skip
        return source.verify(envelope, [self.secret] if secrets is None else secrets, now)

    def events(self, source: Source, envelope: Envelope) -> list[Event]:
        """Believed and read; anything else is a failure."""
        assert self.refusal(source, envelope, now=envelope.received_at) == ""
        reading = source.read(envelope)
        assert isinstance(reading, Sequence)
        events = [one for one in reading if isinstance(one, Event)]
        assert len(events) == len(reading)
        return events

    def is_stopped(self, source: Source, envelope: Envelope) -> bool:
        """Not believed, or believed and kept aside."""
        return bool(self.refusal(source, envelope)) or isinstance(source.read(envelope), Poison)

    def is_harmless(self, source: Source, changed: Envelope, sent: Envelope) -> bool:
        """Not believed; or, where the sender signs what a body says, it says the very same."""
        if self.refusal(source, changed):
            return True
        return not self.exact and source.read(changed) == source.read(sent)
