"""Why a run stops before its end, and what that leaves in the store."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from ..records import Write

__all__ = ["Review", "Stop", "Undo", "Wait"]


class Wait(Struct, frozen=True):
    """Parked: nobody is at work until `seconds` have gone by (None: until something arrives).

    `unless` are writes that must hold as it goes to sleep: a callback that came in meanwhile must not be slept through.
    """

    why: str
    seconds: float | None
    unless: Sequence[Write] = ()


class Review(Struct, frozen=True):
    """A person must decide."""

    reason: str


class Undo(Struct, frozen=True):
    """Somebody's word: undo what was done, and stop."""


Stop = Wait | Review | Undo
