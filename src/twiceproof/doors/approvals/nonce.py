"""The nonce of a view: a decision must come from somebody who was shown what it is about, a short while ago."""

from __future__ import annotations

import re
import secrets

from ...drive import Operation
from ...stores.base import Store
from ..signing import signer

__all__ = ["VALID", "View", "draw_nonce", "is_nonce"]

VALID = 3_600.0  # seconds for which a page may lie open
NONCE = re.compile(r"([0-9a-f]{1,16})\.([0-9a-f]{16})\.([0-9a-f]{32})", re.ASCII)

View = tuple[str, str, str]  # which approval, the digest of what was shown, and how its viewer came in


def draw_nonce(store: Store, view: View, decision: str, now: float) -> Operation[str]:
    """Nothing is written: a page that is opened a thousand times leaves no trace."""
    stem = f"{int(now):x}.{secrets.token_hex(8)}"
    return f"{stem}.{(yield from signer(store)).sign('view', *view, decision, stem)}"


def is_nonce(store: Store, text: str, view: View, decision: str, now: float) -> Operation[bool]:
    """Of this view, for this decision, and not too old."""
    found = NONCE.fullmatch(text)
    if found is None:
        return False
    at, _, mark = found.groups()
    genuine = (yield from signer(store)).signed(mark, "view", *view, decision, text.rpartition(".")[0])
    return genuine and -VALID <= now - int(at, 16) <= VALID
