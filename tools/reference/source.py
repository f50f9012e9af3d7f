"""What a piece of source says in words: texts as they are written, with … for what is filled in when it runs."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

__all__ = ["SOURCE", "Env", "bound", "calls", "functions", "parsed", "text", "texts"]

SOURCE = Path(__file__).parents[2] / "src/twiceproof"

Env = Mapping[str, ast.expr]  # what a name stands for here


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def functions(tree: ast.AST) -> dict[str, ast.FunctionDef]:
    return {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def calls(tree: ast.AST, name: str = "") -> Iterator[ast.Call]:
    """Calls of this function, or of any."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and (not name or _name(node) == name):
            yield node


def _name(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else ""


def bound(call: ast.Call, parameters: list[str]) -> dict[str, ast.expr]:
    """What each parameter is given."""
    given = dict(zip(parameters, call.args, strict=False))
    return given | {word.arg: word.value for word in call.keywords if word.arg}


def text(node: ast.expr | None, env: Env | None = None) -> str:
    """The longest that may be said here; "" where it is made elsewhere."""
    return max(texts(node, env or {}), key=len, default="")


def texts(node: ast.expr | None, env: Env) -> list[str]:
    """Everything that may be said here, one way or another."""
    said: list[str] = []
    match node:
        case ast.Constant(value=str(word)):
            said = [word]
        case ast.JoinedStr(values=values):
            said = ["".join(text(value, env) or "…" for value in values)]
        case ast.FormattedValue(value=value):
            said = texts(value, env)
        case ast.BoolOp(values=values):
            said = texts(values[-1], env)
        case ast.IfExp(body=body, orelse=orelse):
            said = [*texts(body, env), *texts(orelse, env)]
        case ast.Name(id=name) if name in env:
            said = texts(env[name], {**env, name: ast.Constant("")})  # a name that is made of itself ends here
    return said
