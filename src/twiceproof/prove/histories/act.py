"""What a caller can ask of one claim. Durations are in ticks, as everything in a history is."""

from __future__ import annotations

from msgspec import Struct

__all__ = ["Act", "Complete", "Fail", "Look", "Park", "Release", "Renew", "Settle", "Take"]


class Take(Struct, frozen=True, tag="take", gc=False):
    owner: str
    lease: int
    repeat: str = "never"
    fingerprint: str = ""


class Renew(Struct, frozen=True, tag="renew", gc=False):
    fence: int
    lease: int


class Complete(Struct, frozen=True, tag="complete", gc=False):
    fence: int
    result: str
    keep: int | None = None  # None: for ever


class Fail(Struct, frozen=True, tag="fail", gc=False):
    fence: int
    fault: str
    retryable: bool = False
    keep: int | None = None


class Park(Struct, frozen=True, tag="park", gc=False):
    fence: int


class Release(Struct, frozen=True, tag="release", gc=False):
    fence: int


class Settle(Struct, frozen=True, tag="settle", gc=False):
    """A person's word: it happened, with this result, or it did not."""

    happened: bool
    result: str = ""
    keep: int | None = None


class Look(Struct, frozen=True, tag="look", gc=False):
    pass


Act = Take | Renew | Complete | Fail | Park | Release | Settle | Look
