"""Every step of an app tells its process when it acts. The user's functions stay as they are."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ...claims.once import Once
from ...flows.step import Step
from .process import Process

__all__ = ["Look", "Whose", "watched"]

Look = Callable[[], dict[str, int]]  # what the outside holds now
Whose = Callable[[], Process]
Acting = Step | Once


@contextmanager
def watched(acting: Sequence[Acting], whose: Whose, look: Look) -> Iterator[None]:
    undos = [one.undo for one in acting if isinstance(one, Step) and one.undo is not None]
    everyone = {id(one): one for one in (*acting, *undos)}
    before = [(one, one.function) for one in everyone.values()]
    for one, function in before:
        wrapped = _awaiting if inspect.iscoroutinefunction(function) else _blocking
        one.function = wrapped(_name(one), function, whose, look)
    try:
        yield
    finally:
        for one, function in before:
            one.function = function


def _name(one: Acting) -> str:
    return one.name if isinstance(one, Step) else one.policy.operation


def _blocking(name: str, function: Callable[..., Any], whose: Whose, look: Look) -> Callable[..., Any]:
    @functools.wraps(function)
    def act(*args: Any, **kwargs: Any) -> Any:
        number, seen = whose().begin_effect(name), look()
        try:
            value = function(*args, **kwargs)
        finally:
            whose().end_effect(name, number, seen, look())
        return value

    return act


def _awaiting(name: str, function: Callable[..., Any], whose: Whose, look: Look) -> Callable[..., Any]:
    @functools.wraps(function)
    async def act(*args: Any, **kwargs: Any) -> Any:
        number, seen = whose().begin_effect(name), look()
        try:
            value = await function(*args, **kwargs)
        finally:
            whose().end_effect(name, number, seen, look())
        return value

    return act
