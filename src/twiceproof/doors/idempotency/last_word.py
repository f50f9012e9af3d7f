"""The last word about a claim: the answer kept, the key given back, a retry allowed, or a person asked."""

from __future__ import annotations

from http import HTTPStatus

from ...claims.claim import Fault
from ...claims.claims import Claims
from ...claims.outcomes import LostHold
from ...claims.results import pack
from ...claims.states import claim_for
from ...claims.verdict import fault_of
from ...drive import Operation
from ...records import Written
from ..reply import Reply
from . import problems
from .answer import Answer, make_answer
from .recording import Recording
from .turn import Turn
from .verdict import Word

__all__ = ["record", "record_error"]

UNKNOWN = "whether its work was done is unknown"


def record(claims: Claims, turn: Turn, word: Word, recording: Recording) -> Operation[Written | LostHold]:
    if word == "keep":
        return (yield from _keep(claims, turn, recording.answer()))
    phrase = f"answered {recording.status} {_phrase(recording.status)}".rstrip()
    fault = Fault(f"HTTP {recording.status}", phrase, retryable=word == "retry")
    return (yield from _end(claims, turn, word, fault))


def record_error(claims: Claims, turn: Turn, word: Word, error: BaseException) -> Operation[Written | LostHold]:
    if word == "keep":
        return (yield from _keep(claims, turn, _as_answer(problems.broken_off())))
    return (yield from _end(claims, turn, word, fault_of(error, retryable=word == "retry")))


def _keep(claims: Claims, turn: Turn, answer: Answer) -> Operation[Written | LostHold]:
    held = turn.hold.held
    claim = claim_for(turn.hold.ask, held.attempt)
    return (yield from claims.complete(held, claim, pack(answer, held), turn.visit.rule.life))


def _end(claims: Claims, turn: Turn, word: Word, fault: Fault) -> Operation[Written | LostHold]:
    held = turn.hold.held
    claim = claim_for(turn.hold.ask, held.attempt)
    if word == "release":
        return (yield from claims.release(held))
    if word == "retry":
        return (yield from claims.fail(held, claim, fault, turn.visit.rule.life))
    return (yield from claims.park(held, claim, fault, f"{fault.message or fault.type}: {UNKNOWN}"))


def _as_answer(reply: Reply) -> Answer:
    return make_answer(reply.status, reply.headers, reply.body)


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""
