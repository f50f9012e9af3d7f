"""What an error says of itself, when it is asked: it may be anybody's, and do anything then."""

from __future__ import annotations

from typing import Any

__all__ = ["said_by"]


def said_by(error: object, name: str) -> Any:
    """Never fails. A property that raises, or warns where warnings are errors, must not hide the error itself."""
    try:
        return getattr(error, name, None)
    except Exception:  # noqa: BLE001 - whatever it is, it is not what the user has to hear of
        return None
