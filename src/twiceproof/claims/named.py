"""What a decorator of ours can stand on: a function, and the name by which its claims are found again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import Misuse

__all__ = ["name_of"]


def name_of(function: Callable[..., Any], given: str | None, decorator: str) -> str:
    """The given one, or its own. A classmethod is called with its class, which only the outermost decorator can see."""
    if isinstance(function, classmethod | staticmethod):
        kind = type(function).__name__
        raise Misuse(f"@app.{decorator} stands above @{kind}; write @{kind} first, and @app.{decorator} below it.")
    own = given or str(getattr(function, "__name__", ""))
    if not own and callable(function):  # what cannot be called is refused by whoever knows why it came
        raise Misuse(f"A {type(function).__qualname__} has no name of its own; give one: @app.{decorator}(…, name=…).")
    return own
