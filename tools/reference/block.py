"""A generated block of a page: what stands between `<!-- generated: name -->` and `<!-- end -->`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

__all__ = ["Maker", "names", "renewed"]

BLOCK = re.compile(r"(<!-- generated: ([\w-]+)((?: [^\s>]+)*) -->\n)(.*?)(<!-- end -->)", re.S)

Maker = Callable[[str], list[str]]  # given what follows the name, such as a command's words


def renewed(page: Path, makers: Mapping[str, Maker]) -> str:
    """The page's text as the code has it now. Everything outside of blocks is left as it was written."""

    def fill(found: re.Match[str]) -> str:
        lines = makers[found[2]](found[3].strip())
        return found[1] + "\n".join(["", *lines, ""]) + "\n" + found[5]

    return BLOCK.sub(fill, page.read_text("utf-8"))


def names(page: Path) -> list[tuple[str, str]]:
    """Which blocks a page has, each with what it is about."""
    return [(found[2], found[3].strip()) for found in BLOCK.finditer(page.read_text("utf-8"))]
