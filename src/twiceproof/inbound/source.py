"""A source: one kind of sender, what it signs, what it sends, and what it wants to hear.

Adding one is one short file: subclass `Source`, say how a delivery is verified and read, and make a signed sample. It
must pass `twiceproof.prove.source_contract`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from msgspec import Struct

from .envelope import Envelope
from .reply import Reply, json_reply, retry_after

__all__ = ["WINDOW", "Event", "Handshake", "Poison", "Reading", "Source", "Word"]


WINDOW = 300.0  # seconds, both ways, for which a signed time is believed

# What became of a delivery: six outcomes of a take, in a door's words, and two that never come to one.
Word = Literal["new", "duplicate", "busy", "failed", "review", "mismatch", "poison", "unavailable"]


class Event(Struct, frozen=True):
    """One thing that happened, as its sender tells it. `id` is claimed; the other ids are kept for people."""

    id: str  # the same on every redelivery
    payload: Any  # plain JSON: what a flow is given
    type: str = ""
    delivery: str = ""
    attempt: str = ""
    contents: Any = None  # what is equal in every delivery of it, where that is not the payload
    asked: str = ""  # its fingerprint, where its payload was kept without what is redacted


class Handshake(Struct, frozen=True):
    """The sender asks who we are. Nothing is claimed."""

    reply: Reply


class Poison(Struct, frozen=True):
    """Signed, but it cannot be read: kept aside for people, and acknowledged, or it would come again for days.

    Among events it stands for one of them: the others are taken in.
    """

    reason: str


Reading = Sequence[Event | Poison] | Handshake | Poison


class Source:
    """The manners that most senders share; each differs in a few lines."""

    name: str = ""
    horizon: float = 3 * 86_400.0  # seconds for which its sender tries again
    deadline: float = 10.0  # seconds within which it wants an answer
    signed: bool = True  # False: anybody who knows the address can send
    by_authorization: bool = False  # True: its proof is in the Authorization header
    greets_by_secret: bool = False  # True: what it asks before any delivery carries the secret, too, and must
    waits: bool = False  # True: to verify may take a while, because somebody else is asked
    largest: int = 1024 * 1024  # bytes
    window: float = 0.0  # seconds for which a signed time in the past is believed; 0: no time is signed
    covered: tuple[str, ...] = ()  # headers that the signature vouches for, and its own
    needs: tuple[str, ...] = ()  # beginnings of the headers that `read` looks at: a letter keeps these
    varying: tuple[str, ...] = ()  # fields of a payload that differ between deliveries of one event

    def verify(self, envelope: Envelope, secrets: Sequence[str], now: float) -> str:
        """Why it is not believed; "" if it is. Looks at raw bytes only."""
        raise NotImplementedError

    def read(self, envelope: Envelope) -> Reading:
        """What it says, once it is believed."""
        raise NotImplementedError

    def greet(self, envelope: Envelope) -> Handshake | None:
        """A question that comes before any signed delivery (an OPTIONS request). None: no such thing."""
        return None

    def example(self, payload: Any = None) -> bytes:
        """A body as the sender would write it. What `payload` lacks of it is added; the same payload, the same id."""
        raise NotImplementedError

    def seal(self, body: bytes, secret: str, now: float) -> Envelope:
        """These bytes as the sender would sign and send them."""
        raise NotImplementedError

    def sample(self, secret: str, now: float, payload: Any = None) -> Envelope:
        """A delivery as the sender would make it: for `twiceproof hooks test` and for the contract."""
        return self.seal(self.example(payload), secret, now)

    def answer(self, word: Word, *, run: str = "", retry_in: float = 1.0) -> Reply:
        """2xx for whatever must not come again, 503 for what must."""
        if word in ("busy", "failed", "unavailable"):
            return json_reply(503, {"received": False, "state": word}, [retry_after(retry_in)])
        shape: dict[str, Any] = {"received": True, "duplicate": word not in ("new", "poison"), "state": word}
        return json_reply(200, {**shape, "run": run} if run else shape)
