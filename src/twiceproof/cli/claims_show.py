"""`twiceproof claims show`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click
import msgspec

from ..claims.claim import DONE, FAILED, HELD, QUEUED, REVIEW, WAITING
from ..drive import block
from .claim_look import Look, look_at, named_address
from .claim_shape import EvidenceShape, LongClaimShape
from .ledger import opened
from .output import show_json, show_pairs, show_text
from .shell import command
from .span import moment, span
from .target import Target, target_options

__all__ = ["show"]

LONGEST_RESULT = 2_000  # letters, for people; --json gives all of it

EPILOG = """\b
Examples:
  twiceproof claims show ship order:17
  twiceproof claims show ship order:17 --json
A key that begins with a dash follows two: twiceproof claims show ship -- -17
"""


@click.command(epilog=EPILOG)
@click.argument("operation")
@click.argument("key")
@target_options
@click.pass_obj
def show(target: Target, operation: str, key: str) -> None:
    """Show everything about one claim, and the next move."""
    at = named_address(target.tenant, operation, key)
    with opened(target) as store:
        look = block(look_at(target, store, at))
    moves = list(_moves(target, look))
    if target.json:
        show_json({"claim": look.claim, "evidence": look.evidence, "next": [move for _, move in moves]})
    else:
        _show(look, moves)


def _moves(target: Target, look: Look) -> Iterator[tuple[str, str]]:
    if look.claim is not None:
        yield from _run_moves(target, look.claim) if look.is_run else _next_moves(target, look.claim)


def _show(look: Look, moves: list[tuple[str, str]]) -> None:
    if look.claim is None:
        show_text("There is no claim any more: it was released, or its time is over. The next delivery does the work.")
    else:
        show_pairs(list(_pairs(look.claim)))
    for piece in look.evidence:
        show_text("\nEvidence from a holder that had lost the claim:")
        show_pairs(list(_evidence_pairs(piece)))
    for why, move in moves:
        show_text(f"\n{why}\n  {move}")


def _pairs(claim: LongClaimShape) -> Iterator[tuple[str, Any]]:
    yield "operation", claim.operation
    yield "key", claim.key
    yield "tenant", claim.tenant
    yield "state", claim.word
    if claim.reason and claim.state in (REVIEW, QUEUED, WAITING):
        yield "reason", claim.reason
    yield "attempt", claim.attempt
    yield "owner", claim.owner
    yield "run", claim.run or "-"
    yield "link", claim.link or "-"
    yield "fingerprint", claim.fingerprint or "-"
    yield "fence", claim.fence
    yield "created", f"{moment(claim.created_at)} ({span(claim.age)} ago)"
    yield "changed", moment(claim.updated_at)
    if claim.lease_left is not None:
        yield "lease", f"until {moment(claim.lease_until)} ({span(claim.lease_left)} left)"
    if claim.result_until is not None:
        yield "result until", moment(claim.result_until)
    if claim.kept_until is not None:
        yield "kept until", moment(claim.kept_until)
    yield from _findings(claim)
    if claim.settled:
        word = claim.settled
        yield "settled", f"{word['verdict']}, by {word['by']}, {moment(word['at'])}"
        if word["note"]:
            yield "note", word["note"]


def _evidence_pairs(piece: EvidenceShape) -> Iterator[tuple[str, Any]]:
    yield "owner", piece.owner
    yield "fence", piece.fence
    yield "seen", moment(piece.seen_at)
    yield from _findings(piece)


def _findings(found: LongClaimShape | EvidenceShape) -> Iterator[tuple[str, Any]]:
    """A result and a fault, of the claim itself or of a late holder."""
    if found.result is not None:
        yield "result", _shortened(msgspec.json.format(bytes(found.result), indent=2).decode())
    elif found.spill:
        yield (
            "result",
            f"not kept: {found.spill['reason'] or 'its time is over'} (sha256 {found.spill['digest'] or '-'})",
        )
    elif getattr(found, "state", "") == DONE:
        yield "result", "none was recorded, or its time is over"
    if found.fault:
        retry = "may be tried again" if found.fault["retryable"] else "is not tried again by itself"
        yield "fault", f"{found.fault['type']}: {found.fault['message']} ({retry})"


def _shortened(text: str) -> str:
    if len(text) <= LONGEST_RESULT:
        return text
    return f"{text[:LONGEST_RESULT]}\n… {len(text) - LONGEST_RESULT:,} letters more: --json gives all of it"


def _run_moves(target: Target, claim: LongClaimShape) -> Iterator[tuple[str, str]]:
    """A run has steps, and each its own outcome."""
    yield "This is a run. Its steps, and what to do next:", command(target, "runs", "show", about=(claim.run,))


def _next_moves(target: Target, claim: LongClaimShape) -> Iterator[tuple[str, str]]:
    """Why, and what to type."""
    about = (claim.operation, claim.key)

    def settle(*words: str) -> str:
        return command(target, "claims", "settle", *words, about=about)

    if claim.state == REVIEW or claim.lapsed:
        yield "If it happened (with what it returned):", settle("--happened", "--result", "JSON")
        yield "If it did not, and may be tried again:", settle("--did-not-happen")
        yield "If it shall never be tried again:", settle("--abandon")
    elif claim.state == FAILED and not (claim.fault and claim.fault["retryable"]):
        yield "To let the next delivery try again:", settle("--did-not-happen")
    elif claim.state == HELD:
        yield (
            "Somebody is at work. If you know that it is gone:",
            command(target, "claims", "release", "--force", about=about),
        )
