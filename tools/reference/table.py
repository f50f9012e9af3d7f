"""Tables in Markdown, and help texts as they stand in one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

__all__ = ["code", "prose", "table"]

# What a person types or a program reads, wherever it stands in a sentence.
WORDS = re.compile(
    r"`[^`]+`"  # is code already
    r"|(?<![\w-])--[a-z][a-z0-9-]*(?: [A-Z]+\b)?"
    r"|\bTWICEPROOF_[A-Z_]+"
    r"|(?<!\w)@FILE\b"
    r"|\b[a-z][a-z0-9+]*://(?:[^\s,;.`)]|[.)](?=\w))*"
    r"|(?:\b(?:GET|POST|PUT) )?(?<![\w/.])/[a-z][\w./{}-]*\w"
    r"|\bapp\.\w+(?:\([A-Z]*\))?"
    r"|\{\"[^}]*\}+"
)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [_row(head), "|" + "---|" * len(head), *(_row(row) for row in rows)]


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def code(text: str) -> str:
    # A bar would end the cell, within code too.
    return f"`{text.replace('|', chr(92) + '|')}`"


def prose(text: str) -> str:
    """A help text: what is typed becomes code, and it begins and ends as a cell does."""
    told = WORDS.sub(lambda found: found[0] if found[0].startswith("`") else f"`{found[0]}`", " ".join(text.split()))
    return told.replace("|", chr(92) + "|").removesuffix(".")
