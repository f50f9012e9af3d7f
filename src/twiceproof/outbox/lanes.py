"""Lanes: the messages of one order key to one target, in the order in which their sends were committed.

A lane's space (`tenant/~lane/target/order key`) holds the lane itself, a numbered ticket for each message that is not
published yet, and the messages. One batch writes all three, and the space's lock is held until the sender's
transaction ends, so that a later number is never committed first. The lane alone is due: a message that is refused
again and again costs one commit per retry, however many wait behind it.

Every send writes the lane, even if nothing in it changes: a relay that has emptied the lane removes it only at the
version that it has read, and so cannot strand a message that was sent meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence

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
    "LaneNote",
    "LaneState",
    "after_conflict",
    "append",
    "append_writes",
    "lane_address",
    "lane_of",
    "message_in_lane",
    "remaining",
]


LANE, HELD_LANE = "lane", "held"  # states: due; blocked by a message in review
LANES = "~lane"  # no operation: names have no tilde
TICKET_KIND = record_kind("ticket")


class LaneNote(Struct, frozen=True, omit_defaults=True, gc=False):
    """The body of a lane's record: the number of the next ticket."""

    next: int = 1


class LaneState(Struct, frozen=True):
    """What a sender knows of a lane: its record's version, its next number and what the record keeps."""

    version: str = ""  # "": there is none
    next: int = 1
    state: str = LANE
    due_in: float | None = 0.0


class Appended(Struct, frozen=True):
    """A message was written to its lane, or had been (`earlier`)."""

    message: Message
    earlier: bool
    known: LaneState


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


def remaining(lane: Record, now: float) -> float | None:
    """A lane that is being published, or waits after a refusal, keeps its due time when a message is added.

    If the store's clock has been set back since the lane was written, the time left is counted from that write.
    """
    return None if lane.due_at is None else max(0.0, lane.due_at - max(now, lane.updated_at))


def append_writes(lane: Address, messages: Sequence[Message], known: LaneState, delay: float = 0.0) -> list[Write]:
    """Return the batch that adds messages, in their order. A sender learns the first conflict only.

    The messages come first: if one exists already, nothing else is written. The lane comes before the tickets, because
    its record has the next number; from tickets it would be found one by one, with a commit for each that waits.
    """
    queue = queue_of_target(tenant_of(lane), messages[0].target)
    body = body_of(LaneNote(known.next + len(messages)))
    return [
        *(Insert(message_in_lane(lane, message.key), body_of(message), PENDING) for message in messages),
        Insert(lane, body, LANE, queue=queue, due_in=delay)
        if not known.version
        else Replace(lane, body, known.state, version=known.version, queue=queue, due_in=known.due_in),
        *(Insert(ticket_address(lane, number), message.key) for number, message in enumerate(messages, known.next)),
    ]


def after_conflict(lane: Address, conflict: Outcome, known: LaneState) -> LaneState | Message:
    """Return the batch to try next, or the message that exists already."""
    assert isinstance(conflict, Conflict) or not isinstance(conflict, Written)  # noqa: S101 - asked after a refusal
    found = conflict.found
    if conflict.at == lane:
        if found is None:
            return LaneState()
        due_in = remaining(found, conflict.now)
        return LaneState(found.version, lane_of(found).next, found.state, due_in)
    if found is not None and conflict.at.kind == MESSAGE_KIND:
        return message_of(found)
    return structs.replace(known, next=known.next + 1)


def append(store: Store, lane: Address, message: Message, delay: float = 0.0) -> Operation[Appended]:
    """Add a message to its lane in a commit of its own. A repeated key writes nothing."""
    known = LaneState()
    while True:
        outcome = yield from store.write(*append_writes(lane, [message], known, delay))
        if isinstance(outcome, Written):
            return Appended(message, False, LaneState(outcome.version, known.next + 1, known.state, known.due_in))
        after = after_conflict(lane, outcome, known)
        if isinstance(after, Message):
            refuse_other_payload(after, message)
            return Appended(after, True, known)
        known = after
