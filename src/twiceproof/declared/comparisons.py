"""Comparisons and sums in an expression whose two sides can never fit: a number and a text."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["misfits"]


NUMBERS = ("number", "integer")
SIMPLE = (*NUMBERS, "text", "yes_no")
OF_FUNCTION = {
    "len": "integer",
    "round": "number",
    "number": "number",
    "sum": "number",
    "days_between": "integer",
    **dict.fromkeys(("lower", "upper", "trim", "join", "replace", "text", "date", "sha256", "json"), "text"),
    **dict.fromkeys(("starts", "ends"), "yes_no"),
}
WORDS = {"true": "yes_no", "false": "yes_no"}
COMPARED = (ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE)
ORDERED = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
Kind = str | None
KindOf = Callable[[tuple[str, ...]], Kind]


def misfits(source: str, kind_of: KindOf) -> Iterator[tuple[int, str, str]]:
    """Yield the column, what does not fit, and what to write instead. `kind_of` returns the declared type of a path."""
    try:
        tree = ast.parse(source.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return  # reported elsewhere
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            yield from _comparison(node, kind_of)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            yield from _sum(node, kind_of)


def _comparison(node: ast.Compare, kind_of: KindOf) -> Iterator[tuple[int, str, str]]:
    left = node.left
    for sign, right in zip(node.ops, node.comparators, strict=True):
        kinds = _kind(left, kind_of), _kind(right, kind_of)
        if isinstance(sign, COMPARED) and None not in kinds and _family(kinds[0]) != _family(kinds[1]):
            found = f"{_shown(left, kinds[0])} is compared with {_noun(right, kinds[1])}"
            yield left.col_offset, found, "number(x), or text(x), around one of them"
        elif isinstance(sign, ORDERED) and "yes_no" in kinds:
            yield left.col_offset, f"{ast.unparse(left)}: yes_no has no order", "a == true"
        left = right


def _sum(node: ast.BinOp, kind_of: KindOf) -> Iterator[tuple[int, str, str]]:
    kinds = _kind(node.left, kind_of), _kind(node.right, kind_of)
    if None not in kinds and "text" in kinds and kinds[0] != kinds[1]:
        found = f"{_shown(node.left, kinds[0])} is added to {_noun(node.right, kinds[1])}"
        yield node.left.col_offset, found, "text(x) around the number"


def _kind(node: ast.expr, kind_of: KindOf) -> Kind:
    if isinstance(node, ast.Constant):
        return _of_constant(node.value)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return OF_FUNCTION.get(node.func.id)
    if isinstance(node, ast.BinOp) and not isinstance(node.op, ast.Add):
        return "number"
    path = _path(node)
    if len(path) == 1 and path[0] in WORDS:
        return WORDS[path[0]]
    found = kind_of(path) if path else None
    return found if found in SIMPLE else None


def _of_constant(value: Any) -> Kind:
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        return "text"
    return "number" if isinstance(value, int | float) else None


def _path(node: ast.expr) -> tuple[str, ...]:
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.insert(0, node.attr)
        node = node.value
    return (node.id, *names) if isinstance(node, ast.Name) else ()


def _family(kind: Kind) -> Kind:
    return "number" if kind in NUMBERS else kind


def _shown(node: ast.expr, kind: Kind) -> str:
    return f"{ast.unparse(node)} is {kind}" if _path(node) else f"{ast.unparse(node)} ({kind})"


def _noun(node: ast.expr, kind: Kind) -> str:
    return f"{ast.unparse(node)}, a {kind}" if _path(node) else {"yes_no": "true or false"}.get(str(kind), f"a {kind}")
