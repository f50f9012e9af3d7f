"""A received request as raw bytes, and the reported outcome of each event for metrics and logs."""

from __future__ import annotations

from collections.abc import Iterable
from contextvars import ContextVar

from msgspec import Struct

__all__ = ["Envelope", "InboundOutcome", "collect", "envelope", "report"]


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
    """The outcome of one event, claim or start, with the key and run to find it by. `door` names the entry point."""

    door: str
    outcome: str
    key: str = ""
    run: str = ""


_outcomes: ContextVar[list[InboundOutcome] | None] = ContextVar("twiceproof_outcomes", default=None)


def collect() -> list[InboundOutcome]:
    """Return a list that receives every outcome reported in this task from now on."""
    outcomes: list[InboundOutcome] = []
    _outcomes.set(outcomes)
    return outcomes


def report(door: str, outcome: str, *, key: str = "", run: str = "") -> None:
    """Add an outcome to the collected list, if there is one."""
    outcomes = _outcomes.get()
    if outcomes is not None:
        outcomes.append(InboundOutcome(door, outcome, key, run))
