"""A received request as raw bytes; and a source: how one kind of sender signs and encodes its deliveries.

To add one, subclass `Source`, implement verification and reading, and build a signed sample. It must pass
`twiceproof.prove.source_contract`. What became of each event is reported here too, for metrics and logs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextvars import ContextVar
from typing import Any, Literal

from msgspec import Struct

from .reply import Reply, json_reply, retry_after

__all__ = [
    "WINDOW",
    "DeliveryOutcome",
    "Envelope",
    "Event",
    "Handshake",
    "InboundOutcome",
    "Poison",
    "Reading",
    "Source",
    "collect",
    "envelope",
    "report",
]


class Envelope(Struct, frozen=True):
    """A received request. Header names are lower case; values of a repeated header are joined by ", "."""

    source: str
    body: bytes
    headers: dict[str, str]
    tenant: str = "default"
    received_at: float = 0.0  # seconds since 1970, by the receiver's clock
    method: str = "POST"
    url: str = ""  # as the sender requested it: some signatures cover it
    query: str = ""

    def header(self, name: str) -> str:
        """Return the header's value, or ""."""
        return self.headers.get(name.lower(), "")

    @property
    def query_string(self) -> str:
        """The query, taken from the URL if necessary, without `urlsplit`, which raises for an invalid Host."""
        return self.query or self.url.partition("#")[0].partition("?")[2]

    def __repr__(self) -> str:
        """Show no contents: headers hold signatures, bodies hold personal data."""
        return f"Envelope({self.source!r}, {self.method}, {len(self.body)} bytes, tenant={self.tenant!r})"


def envelope(source: str, body: bytes, headers: Iterable[tuple[str, str]], **more: object) -> Envelope:
    """Build an envelope from the headers as a server passes them."""
    joined: dict[str, str] = {}
    for name, value in headers:
        known = joined.get(name.lower())
        joined[name.lower()] = value if known is None else f"{known}, {value}"
    return Envelope(source, body, joined, **more)  # type: ignore[arg-type]


class InboundOutcome(Struct, frozen=True):
    """The outcome of one event, claim or start, with its key and run. `entry_point`: the webhook or service."""

    entry_point: str
    outcome: str
    key: str = ""
    run: str = ""


_outcomes: ContextVar[list[InboundOutcome] | None] = ContextVar("twiceproof_outcomes", default=None)


def collect() -> list[InboundOutcome]:
    """Return a list that receives every outcome reported in this task from now on."""
    outcomes: list[InboundOutcome] = []
    _outcomes.set(outcomes)
    return outcomes


def report(entry_point: str, outcome: str, *, key: str = "", run: str = "") -> None:
    """Add an outcome to the collected list, if there is one."""
    outcomes = _outcomes.get()
    if outcomes is not None:
        outcomes.append(InboundOutcome(entry_point, outcome, key, run))


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
