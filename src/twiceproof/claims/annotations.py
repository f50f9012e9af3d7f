"""A function's annotations, each read by itself: one that exists only for type checkers must not hide the others."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

__all__ = ["declared"]


def declared(function: Callable[..., Any], name: str) -> Any:
    """The type of a parameter, or of what it returns (`return`). Any: none is declared, or none that can be read."""
    written = getattr(function, "__annotations__", {})
    if name not in written:
        return Any
    generic = getattr(function, "__type_params__", ())
    only = SimpleNamespace(__annotations__={name: written[name]}, __type_params__=generic)
    try:
        return typing.get_type_hints(only, getattr(inspect.unwrap(function), "__globals__", {}))[name]
    except Exception:  # noqa: BLE001 - a name that exists only for type checkers
        return Any
