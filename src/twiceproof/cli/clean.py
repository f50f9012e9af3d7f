"""Text from a ledger, made fit for a terminal: a key must not move the cursor, hide itself or type commands."""

from __future__ import annotations

import re
from typing import Any

__all__ = ["clean", "clean_lines", "escaped"]

# C0 and C1 controls, line separators, everything that turns the direction of writing, everything without
# width, half surrogates, and tags: what a person would not see, or would see somewhere else.
UNSEEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
NOT_PLAIN = re.compile("[^\n -~]")


def clean(value: Any) -> str:
    """One line. What cannot be seen is written out (`\\x1b`): two keys that differ must also look different."""
    return UNSEEN.sub(_written_out, str(value))


def clean_lines(text: str) -> str:
    """Several lines, each of them clean."""
    return "\n".join(clean(line) for line in text.split("\n"))


def escaped(document: str) -> str:
    """A JSON document in plain ASCII. Outside strings JSON is ASCII anyway, so each escape is inside one."""
    return NOT_PLAIN.sub(_as_json, document)


def _written_out(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _as_json(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code < 0x10000:
        return f"\\u{code:04x}"
    code -= 0x10000
    return f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"
