"""Whether an ordered run still holds its object's slot, and which newer version was admitted while a step ran."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...claims.claim import LostHold
from ...claims.error_classification import CLEAN_VERDICTS
from ...claims.held_claim import HeldClaim
from ...claims.states import is_lapsed
from ...operations import Operation, Raised, Returned

if TYPE_CHECKING:
    from ..engine.session import Session
    from ..step import StepCall

__all__ = ["newer_version_applied", "still_first"]


def still_first(session: Session) -> Operation[bool]:
    """False: a slot lapsed while this process was suspended, and another run had or has it."""
    for slot in session.slots:
        yield from _ask(session, slot)
    return all(slot.lost is None for slot in session.slots)


def _ask(session: Session, slot: HeldClaim) -> Operation[None]:
    """Ask the store each time: the clock of a suspended machine may have stood still. Reading is cheap."""
    if slot.lost is not None:
        return
    found = yield from session.runtime.store.read(slot.held.at)
    if found.record is None or found.record.fence != slot.held.fence:
        slot.lost = LostHold(found.record.state if found.record else "", "")
    elif is_lapsed(found.record, found.now):  # no other run came meanwhile
        yield from _renew(session, slot)


def _renew(session: Session, slot: HeldClaim) -> Operation[None]:
    renewed = yield from session.runtime.claims.renew(slot.held)
    if isinstance(renewed, LostHold):
        slot.lost = renewed
    else:
        slot.held = renewed


def newer_version_applied(session: Session, calling: StepCall, finding: Any) -> Operation[str]:
    """The newer version that was admitted while a step acted, in words; empty if there is none.

    The step's effect may have landed before or after the newer one's. That cannot be known here and could not be
    prevented: the request was on its way.
    """
    if session.newer is None or session.compensating or not _may_have_acted(session, calling, finding):
        return ""
    return "" if (yield from still_first(session)) else (yield from session.newer())


def _may_have_acted(session: Session, calling: StepCall, finding: Any) -> bool:
    if isinstance(finding, Raised):
        verdict = session.runtime.verdicts.judge(finding.error, calling.step.plan.not_done)
        return isinstance(finding.error, Exception) and verdict not in CLEAN_VERDICTS
    return isinstance(finding, Returned)
