"""What a decorator of ours can stand on: a function, and the name by which its claims are found again."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from types import FrameType, FunctionType
from typing import Any

from ..errors import Misuse

__all__ = ["name_of", "refuse_bare"]

LAMBDA = "<lambda>"


def name_of(function: Callable[..., Any], given: str | None, decorator: str) -> str:
    """The given one, or its own. A classmethod is called with its class, which only the outermost decorator can see."""
    if isinstance(function, classmethod | staticmethod):
        kind = type(function).__name__
        raise Misuse(f"@app.{decorator} stands above @{kind}; write @{kind} first, and @app.{decorator} below it.")
    own = given or str(getattr(function, "__name__", ""))
    if own in ("", LAMBDA) and callable(function):  # what cannot be called is refused by whoever knows why it came
        kind = "lambda" if own else type(function).__qualname__
        raise Misuse(f"A {kind} has no name of its own; give one: @app.{decorator}(…, name=…).")
    return own


def refuse_bare(given: Any, decorator: str, needs: str = "a key", example: str = 'key="order:{order[id]}"') -> None:
    """`@app.flow` without parentheses takes the function for its key, and would complain only when it is called."""
    frame = sys._getframe(2)  # of whoever wrote the decorator
    if isinstance(given, classmethod | staticmethod) or _stands_below(given, frame):
        raise Misuse(f"@app.{decorator} needs {needs}; write it as @app.{decorator}({example}).")


def _stands_below(given: Any, frame: FrameType) -> bool:
    """Whether it is made where the decorator stands and has no name there yet, as no key function is."""
    function = inspect.unwrap(given) if callable(given) else None
    if not isinstance(function, FunctionType) or function.__name__ == LAMBDA:
        return False
    scope = frame.f_code.co_qualname
    inside = f"{scope}.<locals>." if frame.f_code.co_flags & inspect.CO_OPTIMIZED else f"{scope}."
    name = function.__name__
    made_here = function.__globals__ is frame.f_globals
    made_here = made_here and function.__qualname__ == ("" if scope == "<module>" else inside) + name
    return made_here and frame.f_locals.get(name) is not given
