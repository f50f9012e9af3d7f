"""The possible results of a probe: the effect happened, it is absent, or it is unknown."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

__all__ = ["Absent", "Happened", "Look", "Unknown", "look_of"]


class Happened(Struct, frozen=True):
    """The effect happened. `receipt` is what the step would have returned."""

    receipt: Any = None


class Absent(Struct, frozen=True):
    """The effect certainly did not happen."""


class Unknown(Struct, frozen=True):
    """The other system cannot tell."""

    why: str = ""


Look = Happened | Absent | Unknown


def look_of(answer: object) -> Look:
    """Convert a probe's return value. It may be the class or an instance; anything else is Unknown, so that None is not
    mistaken for Absent.
    """
    if isinstance(answer, type) and issubclass(answer, Happened | Absent | Unknown):
        answer = answer()
    if isinstance(answer, Happened | Absent | Unknown):
        return answer
    return Unknown(f"the probe returned {type(answer).__name__}, not Happened(…), Absent or Unknown")
