"""What follows from a broker's answer about one message: pure decisions, and the writes that record them."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct, structs

from ..brokers.base import Confirmed, Publication, Refused
from ..claims.claim import body_of
from ..claims.states import EXPIRE
from ..effects.repeat import Retry
from ..records import Record, Replace
from .message import PARKED, PENDING, PUBLISHING, SENT, Message

__all__ = [
    "LONGEST_WHY",
    "Decision",
    "Left",
    "Park",
    "PutOff",
    "Sent",
    "decide",
    "intent_write",
    "is_interrupted",
    "message_write",
    "parked_without_answer",
    "withdrawal",
]


LONGEST_WHY = 500  # characters of a broker's answer that are kept
RETURN = 1.0  # seconds after which a message is due again that was not handed over
NO_ANSWER = "a relay stopped before it learnt whether the message was published"


class Sent(Struct, frozen=True):
    """It was confirmed."""

    message: Message


class PutOff(Struct, frozen=True):
    """It is tried again, after so many seconds."""

    message: Message
    seconds: float


class Park(Struct, frozen=True):
    """It waits for review."""

    message: Message


class Left(Struct, frozen=True):
    """The broker could not be reached: nothing is recorded, and the message falls due again by itself."""

    why: str


Decision = Sent | PutOff | Park | Left


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
        return Left(why)
    first = message.first_at if message.first_at is not None else now
    tried = structs.replace(message, starts=message.starts + 1, first_at=first, why=why)
    refused = isinstance(publication, Refused)
    if isinstance(publication, Refused) and publication.final:
        return Park(tried)
    if not refused and message.on_unknown == "review":
        return Park(structs.replace(tried, why=f"no confirmation: {why}"))
    asked = publication.retry_after if isinstance(publication, Refused) else None
    pause = retry.delay(tried.starts, now - first, asked, roll)
    return Park(tried) if pause is None else PutOff(tried, pause)


def is_interrupted(record: Record) -> bool:
    """Whether an earlier relay was to publish it only once, and did not record how that ended."""
    return record.state == PUBLISHING


def parked_without_answer(message: Message) -> Park:
    return Park(structs.replace(message, starts=message.starts + 1, why=NO_ANSWER))


def intent_write(record: Record, hide: float) -> Replace:
    """Record that a message is about to be published which must not be published twice without a person's word."""
    due_in = hide if record.queue else None  # in a lane, only the lane is due
    return Replace(record.at, None, PUBLISHING, version=record.version, queue=record.queue, due_in=due_in)


def withdrawal(record: Record) -> Replace:
    """Take an intent back: the message was not handed over."""
    due_in = RETURN if record.queue else None
    return Replace(record.at, None, PENDING, version=record.version, queue=record.queue, due_in=due_in)


def message_write(record: Record, decision: Decision, keep_sent: float) -> Replace | None:
    """Return the write that records a decision, conditional on the version that was handed out; None: nothing is."""
    if isinstance(decision, Sent):
        body = body_of(decision.message)
        return Replace(record.at, body, SENT, version=record.version, queue=EXPIRE, due_in=keep_sent)
    if isinstance(decision, PutOff):
        due_in = decision.seconds if record.queue else None
        body = body_of(decision.message)
        return Replace(record.at, body, PENDING, version=record.version, queue=record.queue, due_in=due_in)
    if isinstance(decision, Park):
        return Replace(record.at, body_of(decision.message), PARKED, version=record.version)
    return None
