"""What a take over HTTP does about what it found: as any other take, and three things more."""

from __future__ import annotations

from ...claims.claim import HELD, RUN, body_of, claim_of
from ...claims.outcomes import Held, InReview
from ...claims.states import Answer, Ask, Begin, Move, claim_for, decide, is_lapsed
from ...errors import Misuse
from ...records import Record, Replace

__all__ = ["decide_claim", "decide_request"]


def decide_claim(ask: Ask, record: Record | None, now: float) -> Move:
    """A run is no claim to be taken here; and what waits for a person is taken by who says that it does no harm."""
    if record is not None and record.at.kind == RUN:
        raise Misuse(f"{ask.operation} is a flow, and this key has a run; start it with: POST /v1/runs/{ask.operation}")
    move = decide(ask, record, now)
    if record is None or ask.repeat != "safe" or not isinstance(move, Answer) or not isinstance(move.outcome, InReview):
        return move
    attempt = claim_of(record).attempt + 1
    body = body_of(claim_for(ask, attempt))
    return Begin(Replace(ask.at, body, HELD, version=record.version, draw=True, lease=ask.lease), attempt)


def decide_request(ask: Ask, record: Record | None, now: float) -> Move:
    """The same request once more, because its answer was lost: it holds what it held, under the same fence."""
    if record is not None and record.state == HELD and not is_lapsed(record, now):
        claim = claim_of(record)
        if claim.owner == ask.owner and claim.fingerprint == ask.fingerprint:
            left = (record.lease_until or now) - now
            return Answer(Held(ask.at, record.fence, ask.owner, claim.attempt, claim.run, left, 0.0, "", now))
    return decide_claim(ask, record, now)
