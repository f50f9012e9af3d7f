"""The examples: each with its own first sentence, its source, and what it prints."""

from __future__ import annotations

import ast
from pathlib import Path

__all__ = ["examples"]

EXAMPLES = Path(__file__).parents[2] / "examples"
PROMISE = "\n# Prints:\n"


def examples(_: str) -> list[str]:
    return [line for path in sorted(EXAMPLES.glob("*.py")) for line in _section(path)][:-1]


def _section(path: Path) -> list[str]:
    source, _, promised = path.read_text("utf-8").partition(PROMISE)
    tree = ast.parse(source)
    docstring = ast.get_docstring(tree) or ""
    body = source.split("\n", tree.body[0].end_lineno or 0)[-1].strip("\n")
    return [
        f"## {path.stem.replace('_', ' ').capitalize()}",
        "",
        docstring,
        "",
        f"`examples/{path.name}`:",
        "",
        "```py",  # not `python`: the examples are run by themselves, each in its own process
        *body.splitlines(),
        "```",
        "",
        "```text",
        *(line.removeprefix("#").removeprefix(" ") for line in promised.splitlines()),
        "```",
        "",
    ]
