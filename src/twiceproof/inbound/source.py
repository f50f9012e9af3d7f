"""A source: how one kind of sender signs and encodes its deliveries, and which replies it expects.

To add one, subclass `Source`, implement verification and reading, and build a signed sample. It must pass
`twiceproof.prove.source_contract`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from msgspec import Struct

from .envelope import Envelope
from .reply import Reply, json_reply, retry_after

__all__ = ["WINDOW", "DeliveryOutcome", "Event", "Handshake", "Poison", "Reading", "Source"]


WINDOW = 300.0  # seconds by which a signed time may differ from ours, in both directions

# The outcome of a delivery: six outcomes of taking its claim, and two that end before that.
DeliveryOutcome = Literal["new", "duplicate", "busy", "failed", "review", "mismatch", "poison", "unavailable"]


class Event(Struct, frozen=True):
    """One event of a sender. `id` is claimed; the other ids are stored for people."""

    id: str  # the same on every redelivery
    payload: Any  # plain JSON: the flow's input
    type: str = ""
    delivery: str = ""
    attempt: str = ""
    contents: Any = None  # what is equal in every delivery of it, if that is not the payload
    fingerprint: str = ""  # of the full payload, if the stored payload is redacted

    @property
    def name(self) -> str:
        """The id as text that can be stored. A custom source may use any value as an id, and one dead letter that
        cannot be decoded would make the whole list unreadable.
        """
        return str(self.id).encode("utf-8", "backslashreplace").decode()


class Handshake(Struct, frozen=True):
    """The sender verifies this endpoint. Nothing is claimed."""

    reply: Reply


class Poison(Struct, frozen=True):
    """A verified delivery that cannot be read: stored as a dead letter and acknowledged, so that it is not retried.

    Among several events it stands for one of them; the others are admitted.
    """

    reason: str


Reading = Sequence[Event | Poison] | Handshake | Poison


class Source:
    """The behaviour that most senders share; each subclass overrides a few lines."""

    name: str = ""
    retry_window: float = 3 * 86_400.0  # seconds for which the sender retries
    deadline: float = 10.0  # seconds that the sender waits for a reply
    signed: bool = True  # False: a shared secret is sent instead of a signature
    by_authorization: bool = False  # True: the secret or signature is in the Authorization header
    greets_by_secret: bool = False  # True: the handshake request carries the secret too, and is verified
    waits: bool = False  # True: verification may block, because it fetches something
    largest: int = 1024 * 1024  # bytes
    window: float = 0.0  # seconds for which a signed time in the past is accepted; 0: no time is signed
    covered: tuple[str, ...] = ()  # headers covered by the signature, and the signature's own
    needs: tuple[str, ...] = ()  # prefixes of the headers that `read` uses: a dead letter stores these
    varying: tuple[str, ...] = ()  # fields of a payload that differ between deliveries of one event

    def verify(self, envelope: Envelope, secrets: Sequence[str], now: float) -> str:
        """Return why verification fails, or "" if it succeeds. Uses raw bytes only."""
        raise NotImplementedError

    def read(self, envelope: Envelope) -> Reading:
        """Return the events of a verified delivery."""
        raise NotImplementedError

    def greet(self, envelope: Envelope) -> Handshake | None:
        """Return the reply to a handshake that precedes any signed delivery (an OPTIONS request), or None."""
        return None

    def example(self, payload: Any = None) -> bytes:
        """Return a body as the sender would write it, adding what `payload` lacks. Equal payloads give equal ids."""
        raise NotImplementedError

    def seal(self, body: bytes, secret: str, now: float) -> Envelope:
        """Return these bytes as the sender would sign and send them."""
        raise NotImplementedError

    def sample(self, secret: str, now: float, payload: Any = None) -> Envelope:
        """Return a signed delivery, for `twiceproof hooks test` and for the contract."""
        return self.seal(self.example(payload), secret, now)

    def answer(self, outcome: DeliveryOutcome, *, run: str = "", retry_in: float = 1.0) -> Reply:
        """Return 2xx for what must not be retried, 503 for what must."""
        if outcome in ("busy", "failed", "unavailable"):
            return json_reply(503, {"received": False, "state": outcome}, [retry_after(retry_in)])
        shape: dict[str, Any] = {"received": True, "duplicate": outcome not in ("new", "poison"), "state": outcome}
        return json_reply(200, {**shape, "run": run} if run else shape)
