"""Letters that a person would not see, or would see somewhere else: what is read must be what is there."""

from __future__ import annotations

import re

__all__ = ["UNSEEN", "written_out"]

# C0 and C1 controls, line separators, everything that turns the direction of writing, half surrogates, and everything
# that Unicode has shown as nothing (Default_Ignorable_Code_Point): fillers, joiners, variation selectors, tags. A blank
# of Braille, too.
UNSEEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\ud800-\udfff\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff]"
)


def written_out(text: str, *, but: str = "") -> str:
    """Each of them as `\\x1b`: two keys that differ must also look different. Those in `but` stay."""
    return UNSEEN.sub(lambda found: found[0] if found[0] in but else _written(ord(found[0])), text)


def _written(code: int) -> str:
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
