"""A function's source as a tree, with what its names stand for. Nothing of it is called."""

from __future__ import annotations

import ast
import builtins
import inspect
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["NOTHING", "Source", "literal"]

NOTHING: Any = object()


class Source:
    """One function. Where its source cannot be had, the tree is empty and nothing is found in it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = inspect.unwrap(function)
        code = getattr(self.function, "__code__", None)
        self.file = code.co_filename if code else "?"
        self.tree, self._first = _parsed(self.function)
        self._names = _names_of(self.function)

    def line(self, node: ast.AST) -> int:
        return self._first + getattr(node, "lineno", 1) - 1 if self._first else 0

    @property
    def first_line(self) -> int:
        return self._first

    def calls(self, *inside: ast.AST) -> Iterator[ast.Call]:
        """In the order in which they are written, calls in nested functions left out."""
        for root in inside or self.tree.body:
            yield from (node for node in _walk(root) if isinstance(node, ast.Call))

    def nodes(self, *kinds: type[ast.AST]) -> Iterator[ast.AST]:
        for root in self.tree.body:
            yield from (node for node in _walk(root) if isinstance(node, kinds))

    def meaning(self, node: ast.AST) -> Any:
        """What a name or a dotted name stands for; NOTHING where only a run would tell."""
        if isinstance(node, ast.Name):
            return self._names.get(node.id, getattr(builtins, node.id, NOTHING))
        if isinstance(node, ast.Attribute):
            owner = self.meaning(node.value)
            return NOTHING if owner is NOTHING else inspect.getattr_static(owner, node.attr, NOTHING)
        return NOTHING

    def path(self, node: ast.AST) -> str:
        """Which function of which module is called: "httpx.post", "datetime.datetime.now"; "" if nobody can tell."""
        found = self.meaning(node)
        if found is NOTHING:
            return self._method_path(node)
        module, name = getattr(found, "__module__", None), getattr(found, "__qualname__", "")
        return f"{module}.{name}" if module and name else self._method_path(node)

    def _method_path(self, node: ast.AST) -> str:
        if not isinstance(node, ast.Attribute):
            return ""
        owner = self.meaning(node.value)
        if owner is NOTHING:
            return ""
        named = getattr(owner, "__name__", "") if inspect.ismodule(owner) or inspect.isclass(owner) else ""
        home = getattr(owner, "__module__", "") if inspect.isclass(owner) else ""
        kind = type(owner)
        return (
            f"{home}.{named}.{node.attr}".lstrip(".") if named else f"{kind.__module__}.{kind.__qualname__}.{node.attr}"
        )


def literal(call: ast.Call, name: str) -> ast.expr | None:
    """What is given for a keyword, if anything."""
    return next((word.value for word in call.keywords if word.arg == name), None)


def _parsed(function: Callable[..., Any]) -> tuple[ast.FunctionDef | ast.AsyncFunctionDef, int]:
    try:
        lines, first = inspect.getsourcelines(function)
        found = ast.parse(textwrap.dedent("".join(lines))).body[0]
    except (OSError, TypeError, SyntaxError, IndexError):
        found, first = ast.parse("def unknown(): ...").body[0], 0
    if isinstance(found, ast.FunctionDef | ast.AsyncFunctionDef):
        return found, first
    return _lambda_body(found), first  # a lambda, or an assignment of one


def _lambda_body(found: ast.stmt) -> ast.FunctionDef:
    made = ast.parse("def unknown(): ...").body[0]
    assert isinstance(made, ast.FunctionDef)
    made.body = [found]
    return made


def _names_of(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        seen = inspect.getclosurevars(function)
    except (TypeError, ValueError):
        return {}
    return {**getattr(function, "__globals__", {}), **seen.nonlocals}


def _walk(root: ast.AST) -> Iterator[ast.AST]:
    """Depth first, as written. What a nested function does, it does when it is called."""
    yield root
    if isinstance(root, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return
    for child in ast.iter_child_nodes(root):
        yield from _walk(child)
