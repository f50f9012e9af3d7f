"""What came in, byte for byte; and the outcome of each event, for whoever counts."""

from __future__ import annotations

from collections.abc import Iterable
from contextvars import ContextVar

from msgspec import Struct

__all__ = ["Envelope", "InboundOutcome", "collect", "envelope", "report"]


class Envelope(Struct, frozen=True):
    """Header names are lower case; a name that came twice keeps its values, joined as HTTP joins them."""

    source: str
    body: bytes
    headers: dict[str, str]
    tenant: str = "default"
    received_at: float = 0.0  # seconds since 1970, by the receiver's clock
    method: str = "POST"
    url: str = ""  # as the sender called it: some signatures cover it
    query: str = ""

    def header(self, name: str) -> str:
        """The header's value, or "" where there is none."""
        return self.headers.get(name.lower(), "")

    @property
    def asked(self) -> str:
        """The query, also where it stands in the URL alone. Cut out by hand: a Host that is none stops `urlsplit`."""
        return self.query or self.url.partition("#")[0].partition("?")[2]

    def __repr__(self) -> str:
        """Without contents: headers hold signatures and bodies hold people."""
        return f"Envelope({self.source!r}, {self.method}, {len(self.body)} bytes, tenant={self.tenant!r})"


def envelope(source: str, body: bytes, headers: Iterable[tuple[str, str]], **more: object) -> Envelope:
    """From what a server hands over."""
    joined: dict[str, str] = {}
    for name, value in headers:
        known = joined.get(name.lower())
        joined[name.lower()] = value if known is None else f"{known}, {value}"
    return Envelope(source, body, joined, **more)  # type: ignore[arg-type]


class InboundOutcome(Struct, frozen=True):
    """One event at one door: its outcome, and by which key and run it can be found."""

    door: str
    outcome: str
    key: str = ""
    run: str = ""


_heard: ContextVar[list[InboundOutcome] | None] = ContextVar("twiceproof_told", default=None)


def collect() -> list[InboundOutcome]:
    """From now on, what is told in this task ends up in this list."""
    heard: list[InboundOutcome] = []
    _heard.set(heard)
    return heard


def report(door: str, outcome: str, *, key: str = "", run: str = "") -> None:
    """Costs nothing where nobody listens."""
    heard = _heard.get()
    if heard is not None:
        heard.append(InboundOutcome(door, outcome, key, run))
