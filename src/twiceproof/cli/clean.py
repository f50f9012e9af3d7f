"""Text from a ledger, made fit for a terminal: a key must not move the cursor, hide itself or type commands."""

from __future__ import annotations

import re
from typing import Any

from ..unseen import written_out

__all__ = ["clean", "clean_lines", "escaped"]

NOT_PLAIN = re.compile("[^\n -~]")


def clean(value: Any) -> str:
    """One line. What cannot be seen is written out: `\\x1b`."""
    return written_out(str(value))


def clean_lines(text: str) -> str:
    """Several lines, each of them clean."""
    return "\n".join(clean(line) for line in text.split("\n"))


def escaped(document: str) -> str:
    """A JSON document in plain ASCII. Outside strings JSON is ASCII anyway, so each escape is inside one."""
    return NOT_PLAIN.sub(_as_json, document)


def _as_json(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code < 0x10000:
        return f"\\u{code:04x}"
    code -= 0x10000
    return f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"
