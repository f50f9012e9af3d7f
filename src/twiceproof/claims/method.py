"""A guarded method: `shop.pay.retry(17)` is about that shop, as `shop.pay(17)` is."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any

__all__ = ["GuardedMethod", "is_method"]


class GuardedMethod:
    """What stands in the class. An object's own is a real bound method, whose extras know their object too."""

    def __init__(self, function: FunctionType, extras: tuple[str, ...]) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._extras = extras
        if inspect.iscoroutinefunction(function) and hasattr(inspect, "markcoroutinefunction"):
            inspect.markcoroutinefunction(self)  # for decorators above this one (Python 3.12)

    def __get__(self, receiver: Any, owner: type | None = None) -> Any:
        if receiver is None:
            return self._function
        bound = _copied(self._function)
        for name in self._extras:
            setattr(bound, name, functools.partial(getattr(self._function, name), receiver))
        return MethodType(bound, receiver)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)


def is_method(function: Callable[..., Any], receiver: str | None) -> bool:
    """Whether it was written in the body of a class: only there, `self` is anybody's object."""
    scope = getattr(function, "__qualname__", "").rpartition(".")[0]
    return receiver is not None and bool(scope) and not scope.endswith("<locals>")


def _copied(function: FunctionType) -> FunctionType:
    """A method's attributes are those of its function: each object's method has one of its own."""
    copy = FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return functools.update_wrapper(copy, function, updated=("__dict__",))  # type: ignore[return-value]
