"""A call of a step in a run."""

from __future__ import annotations

from typing import Any

from .step import Step

__all__ = ["Calling"]


class Calling:
    """What was called, under which name, with what."""

    __slots__ = ("args", "arguments", "asked", "kwargs", "name", "step")

    def __init__(
        self,
        step: Step,
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        arguments: dict[str, Any],
        asked: str,
    ) -> None:
        self.step = step
        self.name = name
        self.args = args
        self.kwargs = kwargs
        self.arguments = arguments
        self.asked = asked
