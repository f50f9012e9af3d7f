"""Which of two calls can come after the other: not what stands in the other arm of an `if`, nor behind a `return`."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

__all__ = ["Arms"]

LEAVES = (ast.Return, ast.Raise, ast.Continue, ast.Break)
Arm = tuple[int, int]  # which branching, and which of its ways


class Arms:
    """Of one function's body."""

    def __init__(self, body: Sequence[ast.AST]) -> None:
        self._of: dict[int, tuple[Arm, ...]] = {}
        self._left: set[Arm] = set()
        for node in body:
            self._enter(node, ())

    def can_follow(self, first: ast.AST, second: ast.AST) -> bool:
        before, after = self._of.get(id(first), ()), self._of.get(id(second), ())
        ways = dict(after)
        if any(ways.get(branching, way) != way for branching, way in before):
            return False
        return all(arm in after for arm in before if arm in self._left)

    def _enter(self, node: ast.AST, arms: tuple[Arm, ...]) -> None:
        self._of[id(node)] = arms
        inside = {id(child): way for way, block in enumerate(_ways(node)) for child in block}
        for way, block in enumerate(_ways(node)):
            if block and isinstance(block[-1], LEAVES):
                self._left.add((id(node), way))
        for child in ast.iter_child_nodes(node):
            taken = inside.get(id(child))
            self._enter(child, arms if taken is None else (*arms, (id(node), taken)))


def _ways(node: ast.AST) -> Iterator[Sequence[ast.AST]]:
    if isinstance(node, ast.If):
        yield from (node.body, node.orelse)
    elif isinstance(node, ast.IfExp):
        yield from ([node.body], [node.orelse])
    elif isinstance(node, ast.Match):
        yield from ([case] for case in node.cases)
    elif isinstance(node, ast.match_case):
        yield node.body
