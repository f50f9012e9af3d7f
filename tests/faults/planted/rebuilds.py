"""Bugs of a rebuild: adopted work is not recorded as done, or an unknown outcome is settled the wrong way."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from twiceproof.claims.claim import body_of, claim_of
from twiceproof.flows.history.review import ReviewDecision
from twiceproof.reconcile import rebuild
from twiceproof.records import Replace


def adopted_as_queued() -> None:
    """A rebuild records adopted work as queued."""
    rebuild.DONE = "queued"  # type: ignore[misc]


def settled_as_absent() -> None:
    """A rebuild settles what the source has as not done."""

    def absent(verdict: str, by: str, note: str, step: str, receipt: object) -> ReviewDecision:
        return ReviewDecision("did-not-happen", by, note, step)

    rebuild.ReviewDecision = absent  # type: ignore[misc,assignment]


def result_overwritten() -> None:
    """A rebuild writes the source's result over another one that is on record."""

    def overwritten(store: Any, at: Any, line: Any) -> Any:
        record = (yield from store.read(at)).record
        claim = structs.replace(claim_of(record), result=line.result)
        yield from store.write(Replace(at, body_of(claim), record.state, version=record.version))
        return True

    rebuild._testify = overwritten
