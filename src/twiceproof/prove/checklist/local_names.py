"""What a function's own names were made with: `with httpx.Client() as client`, `session = requests.Session()`."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence

__all__ = ["is_set", "local_paths"]

SET = "builtins.set"
OF_SETS = ("union", "intersection", "difference", "symmetric_difference", "copy")
IN_ORDER = ("list", "tuple", "enumerate", "iter", "reversed", "zip")  # keep the order they are given


def local_paths(body: Sequence[ast.AST], path: Callable[[ast.AST], str]) -> dict[str, str]:
    """By name. One that is made of two different things is known as neither."""
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
    """Whether iterating over it takes its items in an order that is another one in each process."""
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
