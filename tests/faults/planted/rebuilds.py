"""Bugs of a rebuild: what it adopts is not recorded as done, or an unknown outcome is settled the wrong way."""

from __future__ import annotations

from twiceproof.flows.history.review import ReviewDecision
from twiceproof.reconcile import rebuild


def adopted_as_queued() -> None:
    """A rebuild records what it adopts as work to be done."""
    rebuild.DONE = "queued"  # type: ignore[misc]


def settled_as_absent() -> None:
    """A rebuild settles what the source has as not done."""

    def absent(verdict: str, by: str, note: str, step: str, receipt: object) -> ReviewDecision:
        return ReviewDecision("did-not-happen", by, note, step)

    rebuild.ReviewDecision = absent  # type: ignore[misc,assignment]
