"""Commands that we suggest, written so that they can be pasted."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from ..doors.unseen import UNSEEN
from .clean import clean
from .target import Target

__all__ = ["command", "program", "quoted"]


def command(target: Target, *words: str, about: Sequence[str] = ()) -> str:
    """`twiceproof … words`, then what it is about. A key that begins with a dash is no option."""
    dashes = ["--"] if any(word.startswith("-") for word in about) else []
    return " ".join(["twiceproof", *map(quoted, [*target.words(), *words, *dashes, *about])])


def program() -> str:
    """What to type for us here: our name, or the path we were started by where the name would not be found."""
    started_as = Path(sys.argv[0])
    if shutil.which("twiceproof") or started_as.name != "twiceproof":
        return "twiceproof"
    return quoted(str(started_as))


def quoted(word: str) -> str:
    if not UNSEEN.search(word):
        return shlex.quote(word)
    # $'…' is read by bash, zsh and ksh: the letter that cannot be seen is still the letter that is meant.
    safe = word.replace("\\", "\\\\").replace("'", "\\'")
    return f"$'{clean(safe)}'"
