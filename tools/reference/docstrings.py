"""Docstrings as data: the text, and the `Args:`, `Returns:` and `Raises:` blocks where there are any."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

__all__ = ["Docstring", "docstring"]

HEADINGS = ("Args:", "Returns:", "Raises:")
ENTRY = re.compile(r"(\*{0,2}\w+)(?: \([^)]*\))?: *(.*)")  # `name: text`, or `name (type): text`


class Docstring(NamedTuple):
    text: str  # Markdown: paragraphs, lists and code as they are written
    args: dict[str, str]
    returns: str
    raises: dict[str, str]


def docstring(documented: Any) -> Docstring:
    """Read the docstring of an object's own; one that it inherits from a builtin type says nothing about it."""
    written = inspect.cleandoc(documented.__doc__ or "")
    parts = _parts(written.splitlines())
    return Docstring(
        "\n".join(parts[""]).strip(),
        dict(_entries(parts["Args:"])),
        " ".join(" ".join(parts["Returns:"]).split()),
        dict(_entries(parts["Raises:"])),
    )


def _parts(lines: list[str]) -> dict[str, list[str]]:
    """The indented lines below each heading; everything else belongs to the text."""
    parts: dict[str, list[str]] = {"": [], **{heading: [] for heading in HEADINGS}}
    current = ""
    for line in lines:
        if line in HEADINGS:
            current = line
        elif line.strip() and not line.startswith(" "):
            current = ""
            parts[current].append(line)
        else:
            parts[current].append(line)
    return parts


def _entries(lines: list[str]) -> Iterator[tuple[str, str]]:
    """Each `name: text`, whose text may go on in lines that are indented further."""
    name, words = "", ""
    for line in inspect.cleandoc("\n".join(["", *lines])).splitlines():
        found = None if line.startswith(" ") else ENTRY.fullmatch(line)
        if found is None:
            words = f"{words} {line.strip()}"
            continue
        if name:
            yield name, words.strip()
        name, words = found[1].lstrip("*"), found[2]
    if name:
        yield name, words.strip()
