"""Commands that we suggest, written so that they can be pasted."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from .clean import UNSEEN, clean
from .target import Target

__all__ = ["command", "quoted"]


def command(target: Target, *words: str, about: Sequence[str] = ()) -> str:
    """`twiceproof … words`, then what it is about. A key that begins with a dash is no option."""
    dashes = ["--"] if any(word.startswith("-") for word in about) else []
    return " ".join(["twiceproof", *map(quoted, [*target.words(), *words, *dashes, *about])])


def quoted(word: str) -> str:
    if not UNSEEN.search(word):
        return shlex.quote(word)
    # $'…' is read by bash, zsh and ksh: the letter that cannot be seen is still the letter that is meant.
    safe = word.replace("\\", "\\\\").replace("'", "\\'")
    return f"$'{clean(safe)}'"
