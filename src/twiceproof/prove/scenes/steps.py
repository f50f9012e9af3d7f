"""Every step of an app tells its process when it acts. The user's functions stay as they are."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ...flows.step import Step
from .process import Process

__all__ = ["Look", "Whose", "watched"]

Look = Callable[[], dict[str, int]]  # what the outside holds now
Whose = Callable[[], Process]


@contextmanager
def watched(steps: list[Step], whose: Whose, look: Look) -> Iterator[None]:
    everyone = {id(step): step for declared in steps for step in (declared, declared.undo) if step is not None}
    before = [(step, step.function) for step in everyone.values()]
    for step, _ in before:
        step.function = (_awaiting if step.is_async else _blocking)(step, whose, look)
    try:
        yield
    finally:
        for step, function in before:
            step.function = function


def _blocking(step: Step, whose: Whose, look: Look) -> Callable[..., Any]:
    function = step.function

    @functools.wraps(function)
    def act(*args: Any, **kwargs: Any) -> Any:
        number, seen = whose().begin_effect(step.name), look()
        try:
            value = function(*args, **kwargs)
        finally:
            _end(step, number, whose, look, seen)
        return value

    return act


def _awaiting(step: Step, whose: Whose, look: Look) -> Callable[..., Any]:
    function = step.function

    @functools.wraps(function)
    async def act(*args: Any, **kwargs: Any) -> Any:
        number, seen = whose().begin_effect(step.name), look()
        try:
            value = await function(*args, **kwargs)
        finally:
            _end(step, number, whose, look, seen)
        return value

    return act


def _end(step: Step, number: int, whose: Whose, look: Look, before: dict[str, int]) -> None:
    now = look()
    gained = {what: count - before.get(what, 0) for what, count in now.items() if count != before.get(what, 0)}
    whose().end_effect(step.name, number, gained)
