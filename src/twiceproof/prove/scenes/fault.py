"""A fault: what happens, and at which point of a process' life. Points are numbered, so they can be enumerated."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

__all__ = ["Fault", "Place", "What"]

What = Literal["kill", "lose", "pause"]
Place = Literal["write", "effect"]


class Fault(Struct, frozen=True):
    """At the so-manieth ledger write or effect of a process: before it, or after it and before anything else.

    `kill` ends the process; `lose` makes the step's answer a time-out though its effect is done; `pause` stops the
    process until its lease is over and another has gone on.
    """

    what: What
    place: Place
    number: int
    after: bool = False

    def __str__(self) -> str:
        when = "after" if self.after else "before"
        return f"{self.what}:{self.place}{self.number}:{when}"
