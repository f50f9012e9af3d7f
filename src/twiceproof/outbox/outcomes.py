"""What follows from a broker's answer about one message: pure decisions, and the writes that record them."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct, structs

from ..brokers.base import Confirmed, Publication, Refused
from ..claims.claim import body_of
from ..claims.states import EXPIRE
from ..effects.repeat import Retry
from ..records import Record, Replace
from .message import PARKED, PENDING, PUBLISHING, SENT, Message, PublishAttempt

__all__ = [
    "LONGEST_WHY",
    "Decision",
    "LeaveDue",
    "Park",
    "Postpone",
    "Sent",
    "decide",
    "intent_write",
    "is_interrupted",
    "message_write",
    "parked_without_answer",
    "withdrawal",
]


LONGEST_WHY = 500  # characters of a broker's answer that are kept
MOST_IN_LOG, LONGEST_IN_LOG = 10, 200  # attempts of a message that are kept, and characters of each one's reason
RETURN = 1.0  # seconds until a message that was not handed over is due again
NO_ANSWER = "a relay stopped before it learnt whether the message was published"


class Sent(Struct, frozen=True):
    """It was confirmed."""

    message: Message


class Postpone(Struct, frozen=True):
    """It is tried again, after so many seconds."""

    message: Message
    seconds: float


class Park(Struct, frozen=True):
    """It waits for review."""

    message: Message


class LeaveDue(Struct, frozen=True):
    """The broker could not be reached: no attempt is counted, and the message is due again after a moment."""

    why: str


Decision = Sent | Postpone | Park | LeaveDue


def decide(message: Message, publication: Publication, retry: Retry, now: float, roll: Callable[[], float]) -> Decision:
    """Decide what becomes of a message. `now` is the store's time."""
    if isinstance(publication, Confirmed):
        return Sent(
            structs.replace(
                message,
                body="",
                sent_at=now,
                receipt=publication.receipt[:LONGEST_WHY],
                duplicate=publication.duplicate,
                why="",
            )
        )
    why = " ".join(publication.why.split())[:LONGEST_WHY]
    if isinstance(publication, Refused) and publication.away:
        return LeaveDue(why)
    first = message.first_at if message.first_at is not None else now
    refused = isinstance(publication, Refused)
    tried = _tried(message, "refused" if refused else "unconfirmed", why, now)
    tried = structs.replace(tried, first_at=first)
    if isinstance(publication, Refused) and publication.final:
        return Park(tried)
    if not refused and message.on_unknown == "review":
        return Park(structs.replace(tried, why=f"no confirmation: {why}"))
    asked = publication.retry_after if isinstance(publication, Refused) else None
    pause = retry.delay(tried.starts, now - first, asked, roll)
    return Park(tried) if pause is None else Postpone(tried, pause)


def _tried(message: Message, outcome: str, why: str, now: float) -> Message:
    """Count an attempt, and keep it in the message's log."""
    attempt = PublishAttempt(now, outcome, why[:LONGEST_IN_LOG])
    attempts = (*message.attempts, attempt)[-MOST_IN_LOG:]
    return structs.replace(message, starts=message.starts + 1, why=why, attempts=attempts)


def is_interrupted(record: Record) -> bool:
    """Whether an earlier relay began to publish a message that must not be published twice, and did not record the
    outcome.
    """
    return record.state == PUBLISHING


def parked_without_answer(message: Message, now: float) -> Park:
    return Park(_tried(message, "interrupted", NO_ANSWER, now))


def intent_write(record: Record, hide: float) -> Replace:
    """Record that a message is about to be published. For messages that must not be published twice unless a person
    decides so.
    """
    due_in = hide if record.queue else None  # in a lane, only the lane is due
    return Replace(record.at, None, PUBLISHING, version=record.version, queue=record.queue, due_in=due_in)


def withdrawal(record: Record) -> Replace:
    """Take an intent back: the message was not handed over."""
    due_in = RETURN if record.queue else None
    return Replace(record.at, None, PENDING, version=record.version, queue=record.queue, due_in=due_in)


def message_write(record: Record, decision: Decision, keep_sent: float) -> Replace | None:
    """Return the write that records a decision, conditional on the version that was handed out; None: nothing to
    record.
    """
    if isinstance(decision, Sent):
        body = body_of(decision.message)
        return Replace(record.at, body, SENT, version=record.version, queue=EXPIRE, due_in=keep_sent)
    if isinstance(decision, Postpone):
        due_in = decision.seconds if record.queue else None
        body = body_of(decision.message)
        return Replace(record.at, body, PENDING, version=record.version, queue=record.queue, due_in=due_in)
    if isinstance(decision, Park):
        return Replace(record.at, body_of(decision.message), PARKED, version=record.version)
    if record.queue and record.state == PENDING:  # otherwise it would stay hidden until its hand-out expires
        return withdrawal(record)
    return None
