"""Times as a person reads them."""

from __future__ import annotations

from .. import clock

__all__ = ["moment", "span"]

UNITS = ((86_400 * 2, 86_400, "d"), (3_600 * 2, 3_600, "h"), (60 * 2, 60, "min"))


def span(seconds: float | None) -> str:
    """`12 s`, `4 min`, `2 h`, `30 d`; a dash for none."""
    if seconds is None:
        return "-"
    for least, unit, name in UNITS:
        if abs(seconds) >= least:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds:.1f} s" if abs(seconds) < 10 else f"{seconds:.0f} s"


def moment(at: float | None) -> str:
    """`2026-03-01 09:30:00 UTC`; a dash for none."""
    return "-" if at is None else clock.moment(at)
