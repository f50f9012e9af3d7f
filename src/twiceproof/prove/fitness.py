"""Whether one clean run is fit to be compared with: it came to the end it should, and something was seen of it."""

from __future__ import annotations

from collections import Counter

from ..errors import Misuse
from .scenes.outcome import Outcome

__all__ = ["gained", "refuse_unfit"]

WAITS = "say what it waits for, with --callback name=FILE or --approve name (callbacks=, approve= in a test)"


def refuse_unfit(clean: Outcome, before: dict[str, int], ends: str) -> None:
    """A run that fails at once is the same every time, and so is one of which nothing is seen: neither proves anything."""
    if clean.error or clean.state not in ("done", "review", "failed"):
        raise Misuse(f"One clean run must come to an end first, and this one is {clean.state}: {clean.error or WAITS}")
    if clean.state != ends:
        raise Misuse(
            f"One clean run must end {ends} first, and this one ended {clean.state}: {clean.why}. Correct the flow or "
            f"what it is given; if it waits, {WAITS}; if it is to end so, --ends {clean.state} (ends= in a test)."
        )
    if not gained(before, clean.seen):
        raise Misuse(
            "One clean run changed nothing that is looked at, so nothing would be proved; say where its effects are: "
            "--files DIR, --calls module:function, --http HOST, --smtp HOST or --table URL#name (world= in a test)."
        )


def gained(before: dict[str, int], now: dict[str, int]) -> dict[str, int]:
    """What there is more of, and what is gone."""
    more, gone = Counter(now) - Counter(before), Counter(before) - Counter(now)
    return {**more, **{f"gone: {what}": count for what, count in gone.items()}}
