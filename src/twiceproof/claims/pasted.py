"""A key in a command that somebody may paste into a shell: there it names the key, and does nothing else."""

from __future__ import annotations

__all__ = ["pasted"]


def pasted(key: str) -> str:
    """Quoted, and no option though it begins with a dash. Put it last."""
    dashes = "-- " if key.startswith("-") else ""
    if key.isprintable():
        return dashes + "'" + key.replace("'", "'\\''") + "'"
    # $'…' is read by bash, zsh and ksh: what cannot be seen, or turns the writing round, is written out.
    return dashes + "$'" + "".join(map(_letter, key)) + "'"


def _letter(letter: str) -> str:
    if letter in "\\'":
        return "\\" + letter
    return letter if letter.isprintable() else f"\\U{ord(letter):08x}"
