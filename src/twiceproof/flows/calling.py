"""A call of a step in a run."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from .step import Step

__all__ = ["Calling"]


class Calling(Struct, frozen=True, eq=False):
    """What was called, under which name, with what."""

    step: Step
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    arguments: dict[str, Any]
    asked: str
