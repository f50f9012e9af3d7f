"""Reads Markdown: the Python in it, what it says it prints, and where it points."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)#\s]+)(?:#[^)]*)?\)")


@dataclass(frozen=True)
class Block:
    language: str
    text: str
    line: int


def documents() -> list[Path]:
    return sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def blocks(document: Path) -> list[Block]:
    text = document.read_text("utf-8")
    return [Block(m[1], m[2], text.count("\n", 0, m.start()) + 2) for m in FENCE.finditer(text)]


def links(document: Path) -> list[str]:
    return [link for link in LINK.findall(document.read_text("utf-8")) if "://" not in link]


def commands(block: Block) -> Iterator[tuple[str, str]]:
    """What is typed after each prompt, and what the page says comes of it."""
    for part in re.split(r"^\$ ", block.text, flags=re.M)[1:]:
        command, _, said = part.partition("\n")
        yield command, said


def says(said: str, heard: str) -> bool:
    """Whether a page says what was heard; `…` is anything, and columns are as wide as they must be."""
    told, got = (re.sub(r"(?<=\S) +", " ", text.strip()) for text in (said, heard))
    return bool(re.fullmatch(re.escape(told).replace("…", ".*"), got, re.S))
