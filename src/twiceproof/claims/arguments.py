"""A call's arguments by name, defaults filled in, so that `f(1)` and `f(order=1)` are the same request."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from inspect import Parameter
from typing import Any

__all__ = ["Arguments"]

SIMPLE = (Parameter.POSITIONAL_OR_KEYWORD,)


class Arguments:
    """Binds a function's arguments; plain signatures without `inspect`, which costs more than the rest of a claim."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.signature = inspect.signature(function)
        parameters = self.signature.parameters
        self._names = tuple(parameters)
        self._known = frozenset(parameters)
        self._defaults = {p.name: p.default for p in parameters.values() if p.default is not Parameter.empty}
        self._simple = all(p.kind in SIMPLE for p in parameters.values())
        self._only = self._names[0] if self._simple and len(self._names) == 1 else ""

    @property
    def receiver(self) -> str | None:
        """The name under which a method gets its object: never part of what was asked."""
        first = self._names[0] if self._names else ""
        return first if first in ("self", "cls") else None

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        if self._only and len(args) == 1 and not kwargs:  # what most guarded functions take: one event
            return {self._only: args[0]}
        if not self._simple or len(args) > len(self._names):
            return self._bind_slowly(args, kwargs)
        given = dict(zip(self._names, args, strict=False))
        if kwargs and not (self._known.issuperset(kwargs) and given.keys().isdisjoint(kwargs)):
            return self._bind_slowly(args, kwargs)
        bound = {**self._defaults, **given, **kwargs}
        return bound if len(bound) == len(self._names) else self._bind_slowly(args, kwargs)

    def _bind_slowly(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Also the way to Python's own TypeError for a call that does not fit."""
        bound = self.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return bound.arguments
