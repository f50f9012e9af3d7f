"""Lanes: the messages of one order key to one target, in the order in which their sends were committed.

A lane's space (`tenant/~lane/target/order key`) holds the lane itself, a numbered ticket for each message that is not
published yet, and the messages. One batch writes all three, and the space's lock is held until the sender's
transaction ends, so that a later number is never committed first. The lane alone is due: a message that is refused
again and again costs one commit per retry, however many wait behind it.

Every send writes the lane, also if nothing in it changes: a relay that has just emptied it removes it only at the
version that it knows, and so cannot leave a new message behind.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct, structs

from ..claims.claim import body_of
from ..operations import Operation
from ..records import SELF, Address, Conflict, Insert, Outcome, Record, Replace, Write, Written, record_kind
from ..stores.base import Store
from .message import MESSAGE_KIND, PENDING, Message, message_of, queue_of_target, refuse_other_payload, tenant_of

__all__ = [
    "HELD_LANE",
    "LANE",
    "LANES",
    "TICKET_KIND",
    "Appended",
    "Known",
    "LaneNote",
    "after_conflict",
    "append",
    "append_writes",
    "lane_address",
    "lane_of",
    "message_in_lane",
    "remaining",
]


LANE, HELD_LANE = "lane", "held"  # states: due; behind a message that waits for review
LANES = "~lane"  # no operation: names have no tilde
TICKET_KIND = record_kind("ticket")


class LaneNote(Struct, frozen=True, omit_defaults=True, gc=False):
    """The body of a lane's record: the number of the next ticket."""

    next: int = 1


class Known(Struct, frozen=True):
    """What a sender knows of a lane: its record's version, its next number and what the record keeps."""

    version: str = ""  # "": there is none
    next: int = 1
    state: str = LANE
    due_in: float | None = 0.0


class Appended(Struct, frozen=True):
    """A message was written to its lane, or had been (`earlier`)."""

    message: Message
    earlier: bool
    known: Known


_decode = msgspec.json.Decoder(LaneNote).decode


def lane_of(record: Record) -> LaneNote:
    return _decode(record.body)


def lane_address(tenant: str, target: str, order: str) -> Address:
    """The lane is of the same kind as messages: one query finds both when they are due."""
    return Address(f"{tenant}/{LANES}/{target}/{order}", MESSAGE_KIND, SELF)


def message_in_lane(lane: Address, key: str) -> Address:
    return Address(lane.space, MESSAGE_KIND, f"={key}")  # never SELF


def ticket_address(lane: Address, number: int) -> Address:
    return Address(lane.space, TICKET_KIND, f"{number:016d}")  # scans go by text


def remaining(due_at: float | None, now: float) -> float | None:
    """A lane that is being published, or waits after a refusal, keeps its time when a message is added."""
    return None if due_at is None else max(0.0, due_at - now)


def append_writes(lane: Address, message: Message, known: Known, delay: float = 0.0) -> list[Write]:
    """Return the batch that adds a message. The message comes first: if it is there, nothing else matters."""
    queue = queue_of_target(tenant_of(lane), message.target)
    body = body_of(LaneNote(known.next + 1))
    at = message_in_lane(lane, message.key)
    return [
        Insert(at, body_of(message), PENDING),
        Insert(ticket_address(lane, known.next), message.key),
        Insert(lane, body, LANE, queue=queue, due_in=delay)
        if not known.version
        else Replace(lane, body, known.state, version=known.version, queue=queue, due_in=known.due_in),
    ]


def after_conflict(lane: Address, conflict: Outcome, known: Known) -> Known | Message:
    """Return what to try again with, or the message that is there already."""
    assert isinstance(conflict, Conflict) or not isinstance(conflict, Written)  # noqa: S101 - asked after a refusal
    found = conflict.found
    if conflict.at == lane:
        if found is None:
            return Known()
        due_in = remaining(found.due_at, conflict.now)
        return Known(found.version, lane_of(found).next, found.state, due_in)
    if found is not None and conflict.at.kind == MESSAGE_KIND:
        return message_of(found)
    return structs.replace(known, next=known.next + 1)


def append(store: Store, lane: Address, message: Message, delay: float = 0.0) -> Operation[Appended]:
    """Add a message to its lane by a commit of its own. The same key again writes nothing."""
    known = Known()
    while True:
        outcome = yield from store.write(*append_writes(lane, message, known, delay))
        if isinstance(outcome, Written):
            return Appended(message, False, Known(outcome.version, known.next + 1, known.state, known.due_in))
        after = after_conflict(lane, outcome, known)
        if isinstance(after, Message):
            refuse_other_payload(after, message)
            return Appended(after, True, known)
        known = after
