"""Calls of chosen functions, counted where they are made."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from typing import Any

from ...errors import Misuse
from ...flows.step import Step

__all__ = ["Calls"]


class Calls:
    """`module:function`, replaced by itself and a count. In each play's own memory, so nothing needs to be put back."""

    def __init__(self, names: list[str]) -> None:
        self._seen: Counter[str] = Counter()
        for name in names:
            self._count(name)

    def reset(self) -> None: ...

    def look(self) -> dict[str, int]:
        return dict(self._seen)

    def _count(self, name: str) -> None:
        module_name, _, attribute = name.partition(":")
        try:
            owner: Any = import_module(module_name)
            *path, last = attribute.split(".")
            for part in path:
                owner = getattr(owner, part)
            function: Callable[..., Any] = getattr(owner, last)
        except (ImportError, AttributeError, ValueError):
            raise Misuse(f"There is no {name!r} to count the calls of; write it as module:function.") from None

        if isinstance(step := getattr(function, "step", None), Step):  # a replay calls it, and the ledger answers
            owner, last, function = step, "function", step.function

        @functools.wraps(function)
        def counting(*args: Any, **kwargs: Any) -> Any:
            self._seen[f"{name}{_shown(args, kwargs)}"] += 1
            return function(*args, **kwargs)

        setattr(owner, last, counting)


def _shown(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    given = [repr(value) for value in args] + [f"{name}={value!r}" for name, value in kwargs.items()]
    return f"({', '.join(given)})"[:200]
