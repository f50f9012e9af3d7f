"""Calls in a flow's body that must be awaited and are not, or that are passed to asyncio instead of `app.gather`."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from typing import Any

from .source import SourceTree

__all__ = ["begins_tasks", "forgotten", "is_awaited_call", "never_awaitable"]


OF_APP = {"sleep", "wait_for", "approve", "remote", "callback_url", "gather", "each"}
OURS = re.compile(r"twiceproof\.app\.\w+\.\w+\.(\w+)")
TASKS = re.compile(
    r"asyncio\.(tasks\.)?(gather|wait|as_completed|create_task|ensure_future)|asyncio\.(taskgroups\.)?TaskGroup\.create_task"
)
RUNS = re.compile(r"asyncio\.(runners\.)?(run|Runner\.run)|(.*\.)?run_until_complete")
HANDS_ON = (ast.Call, ast.List, ast.Tuple, ast.Set, ast.Dict, ast.Starred, ast.keyword, ast.Yield)


def is_awaited_call(source: SourceTree, call: ast.Call, *, awaits: bool) -> str:
    """The called name, if the call must be awaited: an `async def` step, flow or guarded function.

    `awaits`: in an `async def` flow, where `app.sleep` and the like are awaited too.
    """
    found = source.meaning(call.func)
    if _is_async(found):
        return ast.unparse(call.func)
    if isinstance(call.func, ast.Attribute) and call.func.attr in ("start", "start_many", "retry"):
        return ast.unparse(call.func) if _is_async(source.meaning(call.func.value)) else ""
    ours = OURS.fullmatch(source.path(call.func)) if awaits else None
    return ast.unparse(call.func) if ours is not None and ours[1] in OF_APP else ""


def _is_async(found: Any) -> bool:
    """Whether it is one of ours. Python itself warns about other coroutines."""
    declared = next((getattr(found, mark) for mark in ("step", "flow", "once") if hasattr(found, mark)), None)
    return inspect.iscoroutinefunction(getattr(declared, "function", None))


def forgotten(source: SourceTree, *, awaits: bool) -> Iterator[tuple[ast.Call, str]]:
    """Calls whose coroutine is dropped: a statement of its own, or a name that is neither awaited nor passed on."""
    handed_on = set(_handed_on(source))
    for node in source.nodes(ast.Expr, ast.Assign, ast.AnnAssign, ast.Return):
        call = getattr(node, "value", None)
        if not isinstance(call, ast.Call) or not (what := is_awaited_call(source, call, awaits=awaits)):
            continue
        if isinstance(node, ast.Return):
            lost = isinstance(source.tree, ast.AsyncFunctionDef)  # a helper that is a `def` passes it on
        else:
            lost = not any(name in handed_on for name in _targets(node))
        if lost:
            yield call, what


def _targets(node: ast.AST) -> Iterator[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    for target in targets:
        yield target.id if isinstance(target, ast.Name) else ANYTHING if target is not None else ""


ANYTHING = "*"  # stored in an object or unpacked: what becomes of it is unknown


def _handed_on(source: SourceTree) -> Iterator[str]:
    """Names that are awaited, or passed to a call that may await them."""
    yield ANYTHING
    for node in source.nodes(ast.Await, ast.Return, *HANDS_ON):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Name):
                yield child.id


def begins_tasks(source: SourceTree, call: ast.Call) -> str:
    """The asyncio function that is given our calls, such as "asyncio.gather"."""
    path = source.path(call.func)
    if not TASKS.fullmatch(path):
        return ""
    given = [*call.args, *(word.value for word in call.keywords)]
    inside = (one for root in given for one in source.calls(root))
    return ast.unparse(call.func) if any(is_awaited_call(source, one, awaits=True) for one in inside) else ""


def never_awaitable(source: SourceTree) -> Iterator[tuple[ast.Call, str]]:
    """In a `def` flow: calls of `async def` steps, apart from those given to `asyncio.run`."""
    run = {
        id(inner)
        for call in source.calls()
        if RUNS.fullmatch(source.path(call.func))
        for root in call.args
        for inner in source.calls(root)
    }
    for call in source.calls():
        what = is_awaited_call(source, call, awaits=False)
        if what and id(call) not in run:
            yield call, what
