"""What a caller can be told about one claim."""

from __future__ import annotations

from msgspec import Struct

__all__ = [
    "Absent",
    "Answer",
    "Busy",
    "Done",
    "Ended",
    "Failed",
    "Held",
    "InReview",
    "Mismatch",
    "NotSettled",
    "Refused",
    "Renewed",
    "Settled",
]


class Held(Struct, frozen=True, tag="held", gc=False):
    fence: int
    attempt: int


class Busy(Struct, frozen=True, tag="busy", gc=False):
    owner: str


class Done(Struct, frozen=True, tag="done", gc=False):
    result: str


class Failed(Struct, frozen=True, tag="failed", gc=False):
    fault: str


class InReview(Struct, frozen=True, tag="in review", gc=False):
    pass


class Mismatch(Struct, frozen=True, tag="mismatch", gc=False):
    found: str


class Absent(Struct, frozen=True, tag="absent", gc=False):
    """A look found nothing."""


class Renewed(Struct, frozen=True, tag="renewed", gc=False):
    pass


class Ended(Struct, frozen=True, tag="ended", gc=False):
    """A holder's last write landed, and drew this fence."""

    fence: int


class Refused(Struct, frozen=True, tag="refused", gc=False):
    """The claim was no longer the holder's: what it was instead, and whose. Both empty if it was gone."""

    state: str
    owner: str


class Settled(Struct, frozen=True, tag="settled", gc=False):
    pass


class NotSettled(Struct, frozen=True, tag="not settled", gc=False):
    """There was nothing to settle: gone, done, or somebody was at work."""


Answer = (
    Held | Busy | Done | Failed | InReview | Mismatch | Absent
    | Renewed | Ended | Refused | Settled | NotSettled
)  # fmt: skip
