"""What a look at the outside can say: it happened, it is not there, or nobody can tell."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

__all__ = ["Absent", "Happened", "Look", "Unknown", "look_of"]


class Happened(Struct, frozen=True):
    """The effect is there. `receipt` is what the step would have returned."""

    receipt: Any = None


class Absent(Struct, frozen=True):
    """The effect is surely not there."""


class Unknown(Struct, frozen=True):
    """The other side cannot tell."""

    why: str = ""


Look = Happened | Absent | Unknown


def look_of(answer: object) -> Look:
    """A probe may return the class or an instance. Anything else tells nothing: None must not pass for Absent."""
    if isinstance(answer, type) and issubclass(answer, Happened | Absent | Unknown):
        answer = answer()
    if isinstance(answer, Happened | Absent | Unknown):
        return answer
    return Unknown(f"the probe returned {type(answer).__name__}, not Happened(…), Absent or Unknown")
