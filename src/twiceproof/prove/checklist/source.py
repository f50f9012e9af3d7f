"""A function's source as a tree."""

from __future__ import annotations

import ast
import builtins
import inspect
import linecache
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

__all__ = ["NOTHING", "SourceTree", "is_set", "literal", "local_paths"]


SET = "builtins.set"
OF_SETS = ("union", "intersection", "difference", "symmetric_difference", "copy")
IN_ORDER = ("list", "tuple", "enumerate", "iter", "reversed", "zip")  # these keep the order of their items


def local_paths(body: Sequence[ast.AST], path: Callable[[ast.AST], str]) -> dict[str, str]:
    """What local names were made with. A name made of two different things is left out."""
    found: dict[str, str] = {}
    for root in body:
        for node in ast.walk(root):
            for name, made in _made(node, path, found):
                found[name] = made if found.get(name, made) == made else ""
    return found


def _made(node: ast.AST, path: Callable[[ast.AST], str], known: dict[str, str]) -> Iterator[tuple[str, str]]:
    if isinstance(node, ast.Import):
        yield from ((one.asname or one.name.partition(".")[0], one.name) for one in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield from ((one.asname or one.name, f"{node.module}.{one.name}") for one in node.names)
    elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        yield from ((one.id, _of(node.value, path, known)) for one in targets if isinstance(one, ast.Name))
    elif isinstance(node, ast.withitem) and isinstance(node.optional_vars, ast.Name):
        yield node.optional_vars.id, _of(node.context_expr, path, known)


def _of(value: ast.expr, path: Callable[[ast.AST], str], known: dict[str, str]) -> str:
    value = value.value if isinstance(value, ast.Await) else value
    if is_set(value, known):
        return SET
    if not isinstance(value, ast.Call):
        return ""
    called = path(value.func)
    if not called and isinstance(value.func, ast.Attribute) and isinstance(value.func.value, ast.Name):
        owner = known.get(value.func.value.id, "")
        called = f"{owner}.{value.func.attr}" if owner else ""
    return called


def is_set(node: ast.AST, known: dict[str, str]) -> bool:
    """Whether iterating over it takes the items in an order that differs between processes."""
    match node:
        case ast.Set() | ast.SetComp():
            return True
        case ast.Name(id=name):
            return known.get(name) == SET
        case ast.BinOp(left=left, right=right):
            return is_set(left, known) or is_set(right, known)
        case ast.Call(func=ast.Name(id=name), args=args):
            return name in ("set", "frozenset") or (name in IN_ORDER and any(is_set(one, known) for one in args))
        case ast.Call(func=ast.Attribute(value=value, attr=attr)):
            return attr in OF_SETS and is_set(value, known)
        case _:
            return False


NOTHING: Any = object()
Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


class SourceTree:
    """One function. Where its source is not available, the tree is empty and nothing is found in it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = inspect.unwrap(function)
        code = getattr(self.function, "__code__", None)
        self.file = code.co_filename if code else "?"
        self._own = set(code.co_varnames + code.co_cellvars) if code else set()  # local names, which hide the module's
        self.tree = _found(self.file, code.co_firstlineno, self.function) if code else None
        self.first_line = code.co_firstlineno if code and self.tree is not None else 0
        self.body: list[Any] = _body(self.tree)
        self._names = _names_of(self.function)
        self.local: dict[str, str] = {}
        self.local = local_paths(self.body, self.path)

    @property
    def decorators(self) -> list[ast.expr]:
        return [] if self.tree is None or isinstance(self.tree, ast.Lambda) else self.tree.decorator_list

    def line(self, node: ast.AST) -> int:
        return getattr(node, "lineno", self.first_line)

    def calls(self, *inside: ast.AST) -> Iterator[ast.Call]:
        """Calls in source order, without those in nested functions."""
        for root in inside or self.body:
            yield from (node for node in _walk(root) if isinstance(node, ast.Call))

    def nodes(self, *kinds: type[ast.AST]) -> Iterator[ast.AST]:
        for root in self.body:
            yield from (node for node in _walk(root) if isinstance(node, kinds))

    def meaning(self, node: ast.AST) -> Any:
        """What a name or a dotted name refers to; NOTHING where only running the code would show it."""
        if isinstance(node, ast.Name):
            known = NOTHING if node.id in self._own else self._names.get(node.id, NOTHING)
            return known if known is not NOTHING or node.id in self._own else getattr(builtins, node.id, NOTHING)
        if isinstance(node, ast.Attribute):
            owner = self.meaning(node.value)
            return NOTHING if owner is NOTHING else inspect.getattr_static(owner, node.attr, NOTHING)
        return NOTHING

    def path(self, node: ast.AST) -> str:
        """Which function of which module is called, such as "httpx.post" or "datetime.datetime.now"; "" if unknown."""
        found = self.meaning(node)
        if found is NOTHING:
            return self._local_path(node)
        module, name = _home(found), getattr(found, "__qualname__", "")
        return f"{module}.{name}" if module and name else self._method_path(node)

    def _local_path(self, node: ast.AST) -> str:
        """What a local name was made with, or the method of a value just made."""
        if isinstance(node, ast.Name):
            return self.local.get(node.id, "")
        if isinstance(node, ast.Attribute):
            value = node.value.func if isinstance(node.value, ast.Call) else node.value
            owner = self._local_path(value) or (self.path(value) if isinstance(node.value, ast.Call) else "")
            return f"{owner}.{node.attr}" if owner else self._method_path(node)
        return ""

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
    """The literal value of a keyword argument, if any."""
    return next((word.value for word in call.keywords if word.arg == name), None)


def _home(found: Any) -> str:
    """`from random import random` binds an object of that module, which does not name it."""
    own = getattr(found, "__self__", None)
    return getattr(found, "__module__", None) or (type(own).__module__ if own is not None else "")


def _found(file: str, line: int, function: Callable[..., Any]) -> Function | None:
    """By where it begins: a lambda in a decorator has no source of its own that could be parsed."""
    names = list(inspect.signature(function).parameters)
    for node in _functions(file):
        decorators = [] if isinstance(node, ast.Lambda) else node.decorator_list
        first = min([node.lineno, *(one.lineno for one in decorators)])
        given = [one.arg for one in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
        if first == line and set(given) <= set(names) and _name(node) == function.__name__:
            return node
    return None


def _name(node: Function) -> str:
    return "<lambda>" if isinstance(node, ast.Lambda) else node.name


@lru_cache(64)
def _functions(file: str) -> tuple[Function, ...]:
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return ()
    return tuple(
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    )


def _body(tree: Function | None) -> list[Any]:
    if tree is None:
        return []
    return [tree.body] if isinstance(tree, ast.Lambda) else tree.body


def _names_of(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        seen = inspect.getclosurevars(function)
    except (TypeError, ValueError):
        return {}
    return {**getattr(function, "__globals__", {}), **seen.nonlocals}


def _walk(root: ast.AST) -> Iterator[ast.AST]:
    """Depth first, in source order. Nested functions are left out: they run when called."""
    yield root
    if isinstance(root, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return
    for child in ast.iter_child_nodes(root):
        yield from _walk(child)
