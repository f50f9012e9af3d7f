"""A scene: the script of one play, and what it is called."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from .fault import Fault

__all__ = ["CLEAN", "Arriving", "Delivery", "Scene"]

Delivery = Literal["once", "twice", "at-once", "later", "changed"]
Arriving = Literal["once", "twice", "early", "late", "never", "raced"]


class Scene(Struct, frozen=True):
    """`scripts` holds the faults of the first process, the second, and so on; whoever comes after them lives."""

    name: str
    says: str
    scripts: tuple[tuple[Fault, ...], ...] = ()
    delivery: Delivery = "once"
    refuses: str = ""  # the step that the outside refuses, for good
    arrives: str = ""  # the callback or approval that comes otherwise than once, in time
    arrival: Arriving = "once"
    order: tuple[int, ...] = ()  # in which the events come, where there are several
    loses: int = 0  # which of the outside's answers is lost on its way
    beside: str = "clean"  # which scene's world it is compared with


CLEAN = Scene("clean", "one delivery, nothing goes wrong")
