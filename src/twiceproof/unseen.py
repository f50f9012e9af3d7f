"""Letters that a person would not see, or would see somewhere else: what is read must be what is there."""

from __future__ import annotations

import re

__all__ = ["UNSEEN", "written_out"]

# C0 and C1 controls, line separators, everything that turns the direction of writing, everything without
# width, half surrogates, and tags.
UNSEEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)


def written_out(text: str, *, but: str = "") -> str:
    """Each of them as `\\x1b`: two keys that differ must also look different. Those in `but` stay."""
    return UNSEEN.sub(lambda found: found[0] if found[0] in but else _written(ord(found[0])), text)


def _written(code: int) -> str:
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
