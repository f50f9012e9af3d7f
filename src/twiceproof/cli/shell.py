"""Commands that we suggest, about the ledger that this command was about."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from ..shell import quoted, typed
from .target import Target

__all__ = ["command", "program"]


def command(target: Target, *words: str, about: Sequence[str] = ()) -> str:
    return typed(*target.words(), *words, about=about)


def program() -> str:
    """What to type for us here: our name, or the path we were started by where the name would not be found."""
    started_as = Path(sys.argv[0])
    if shutil.which("twiceproof") or started_as.name != "twiceproof":
        return "twiceproof"
    return quoted(str(started_as))
