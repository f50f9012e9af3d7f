"""The horizon: how long a sender tries again, beside how long we remember that it did."""

from __future__ import annotations

import warnings

from ..errors import ForgottenEarlyWarning
from .source import Source

__all__ = ["warn_if_forgotten_early"]


def warn_if_forgotten_early(source: Source, keep: float | None, *, name: str = "", depth: int = 3) -> None:
    """An event that comes again after it was forgotten is a new one. `keep` in seconds; None is for ever.

    `depth` is how far above this call the line stands that is to be changed.
    """
    if keep is not None and keep < source.horizon:
        warnings.warn(
            f"{name or source.name} may come again for {_span(source.horizon)}, and its events are forgotten after "
            f"{_span(keep)}: what comes later is done twice. Say keep={_span(source.horizon)!r} or more.",
            ForgottenEarlyWarning,
            stacklevel=depth,
        )


def _span(seconds: float) -> str:
    """As `keep=` takes it, never shorter."""
    for unit, sign in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= unit:
            return f"{-(-seconds // unit):.0f}{sign}"
    return f"{seconds:g}s"
