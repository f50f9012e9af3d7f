"""What a flow's body calls: steps, and plain functions of the user's own, which are a part of the body."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...flows.step import Step
from .source import Source

__all__ = ["in_body", "parts_of", "step_of", "steps_in"]

INSTALLED = {"site-packages", "dist-packages"}  # an environment often lies in the project's own directory
DEEPEST = 4  # helpers of helpers; whoever goes further is not followed


def step_of(source: Source, node: ast.AST) -> Step | None:
    found = getattr(source.meaning(node), "step", None)
    return found if isinstance(found, Step) else None


def steps_in(source: Source) -> list[tuple[ast.Call, Step]]:
    """In the order in which they are written; `app.each(items, step)` calls one too."""
    return [(call, step) for call in source.calls() for step in _steps_of(source, call)]


def _steps_of(source: Source, call: ast.Call) -> list[Step]:
    named = [call.func, *call.args, *(word.value for word in call.keywords)]
    return [step for node in named if (step := step_of(source, node)) is not None]


def in_body(source: Source) -> Iterator[tuple[Source, str]]:
    """The body itself, then the functions that it calls, each once, with words that say which."""
    for part in parts_of(source):
        here = part is source
        yield part, "in the flow's body" if here else f"in {part.function.__name__}(), which the flow's body calls"


def parts_of(source: Source) -> Iterator[Source]:
    """A function itself, then those of the same project that it calls, and so on, each once."""
    yield source
    seen: set[Any] = {source.function}
    level = [source]
    for _ in range(DEEPEST):
        called = dict.fromkeys(helper for part in level for helper in _helpers(part, source) if helper not in seen)
        seen.update(called)
        level = [Source(helper) for helper in called]
        yield from level


def _helpers(part: Source, flow: Source) -> Iterator[Any]:
    """Plain functions of the same project. What is under a decorator of ours is ledgered, and no part of the body."""
    home = _home(flow)
    for call in part.calls():
        found = part.meaning(call.func)
        if inspect.isfunction(found) and not any(hasattr(found, mark) for mark in ("step", "flow", "once")):
            helper = inspect.unwrap(found)
            if _is_within(Path(helper.__code__.co_filename), home) and not _is_ours(helper):
                yield helper


def _is_ours(helper: Any) -> bool:
    """In a checkout that twiceproof is installed from, it lies in the project's own directory, too."""
    return str(helper.__module__).partition(".")[0] == __name__.partition(".")[0]


def _home(flow: Source) -> Path:
    """The directory that the flow's module, or the package that it is in, is imported from."""
    above = list(Path(flow.file).parents)
    deep = str(getattr(flow.function, "__module__", None) or "").count(".")
    return above[min(deep, len(above) - 1)] if above else Path(flow.file)


def _is_within(file: Path, home: Path) -> bool:
    return file.is_relative_to(home) and INSTALLED.isdisjoint(file.relative_to(home).parts)
