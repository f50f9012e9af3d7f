"""Commands that we suggest, written so that they can be pasted: a key in one is a word, never a command of its own."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from .passwords import has_password
from .unseen import UNSEEN, written_out

__all__ = ["quoted", "store_words", "typed"]


def typed(*words: str, about: Sequence[str] = ()) -> str:
    """`twiceproof … words`, then what it is about. A key that begins with a dash is no option."""
    dashes = ["--"] if any(word.startswith("-") for word in about) else []
    return " ".join(["twiceproof", *map(quoted, [*words, *dashes, *about])])


def store_words(url: str) -> tuple[str, ...]:
    """How a command is told of a store. One with a password is left to TWICEPROOF_STORE: an error is read by many."""
    return () if url.startswith("memory:") or has_password(url) else ("--store", url)


def quoted(word: str) -> str:
    if not UNSEEN.search(word):
        return shlex.quote(word)
    # $'…' is read by bash, zsh and ksh: the letter that cannot be seen is still the letter that is meant.
    safe = word.replace("\\", "\\\\").replace("'", "\\'")
    return f"$'{written_out(safe)}'"
