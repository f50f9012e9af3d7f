"""Messages for people and programs: lists, one message, counts; resending and dropping what is parked."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from typing import Any

import msgspec
from msgspec import Struct, structs

from ..claims.claim import body_of
from ..claims.states import EXPIRE
from ..errors import CannotOpen, Misuse
from ..operations import Operation
from ..records import SELF, Insert, Record, Replace, Write, Written
from ..stores.base import Store
from .lanes import HELD_LANE, LANE, LANES, TICKET_KIND, remaining
from .message import (
    DROPPED,
    MESSAGE_KIND,
    PARKED,
    PENDING,
    PUBLISHING,
    SENT,
    STATES,
    Message,
    message_address,
    message_of,
    queue_of_target,
    tenant_of,
)
from .sending import address_of_message, write_message

__all__ = [
    "MessageAttempt",
    "MessageCounts",
    "MessageShape",
    "count_messages",
    "drop",
    "find_message",
    "find_messages",
    "list_messages",
    "message_shape",
    "resend",
    "show_message",
]


PAGE = 500
KEEP_DROPPED = 7 * 86_400.0
IMPORTANT_FIRST = (PARKED, PUBLISHING, PENDING, SENT, DROPPED)


class MessageAttempt(Struct, frozen=True):
    """An attempt at publishing that ended without a confirmation. `outcome`: refused, unconfirmed, or interrupted."""

    at: float
    outcome: str
    why: str


class MessageShape(Struct, frozen=True, omit_defaults=True):
    """A message as people and programs see it. Times are the store's, in seconds since 1970."""

    key: str
    topic: str
    target: str
    place: str
    state: str
    created_at: float
    updated_at: float
    order: str = ""
    run: str = ""
    starts: int = 0
    why: str = ""
    due_at: float | None = None
    sent_at: float | None = None
    receipt: str = ""
    digest: str = ""
    content_type: str = ""
    headers: dict[str, str] = {}
    body: Any = None
    by: str = ""
    note: str = ""
    attempts: list[MessageAttempt] = []


class MessageCounts(Struct, frozen=True):
    """How many messages of a tenant, or of all, are in each state; how old the oldest pending one is; held lanes."""

    states: dict[str, int]
    oldest_pending: float | None
    held_lanes: int


def list_messages(
    store: Store,
    tenant: str,
    *,
    states: tuple[str, ...] = (),
    target: str = "",
    topic: str = "",
    limit: int = 100,
    most_read: int | None = None,
) -> Operation[list[MessageShape]]:
    """Return messages, those that need attention first. `most_read`: how many are looked through; None: as many as it
    takes."""
    unknown = [state for state in states if state not in STATES]
    if unknown:
        raise Misuse(f"{unknown[0]!r} is no state of a message; say one of {', '.join(STATES)}.")
    found: list[MessageShape] = []
    looked = 0
    for state in states or IMPORTANT_FIRST:
        after: str | None = None
        while len(found) < limit and (most_read is None or looked < most_read):
            page = yield from store.scan(MESSAGE_KIND, state=state, after=after, limit=PAGE)
            looked += len(page.records)
            for record, message in _of_tenant(page.records, tenant):
                if (not target or message.target == target) and (not topic or message.topic == topic):
                    found.append(message_shape(record, message))
            after = page.after
            if after is None:
                break
    return found[:limit]


def _of_tenant(records: Any, tenant: str) -> Iterator[tuple[Record, Message]]:
    for record in records:
        if tenant_of(record.at) == tenant and not _is_lane(record):
            try:
                yield record, message_of(record)
            except CannotOpen:
                continue


def _is_lane(record: Record) -> bool:
    return record.state in (LANE, HELD_LANE)


def message_shape(record: Record, message: Message) -> MessageShape:
    shown = structs.asdict(message)
    own = ("body", "attempts")
    fields = {name: shown[name] for name in MessageShape.__struct_fields__ if name in shown and name not in own}
    return MessageShape(
        **fields,
        attempts=[MessageAttempt(one.at, one.outcome, one.why) for one in message.attempts],
        state=record.state,
        created_at=record.created_at,
        updated_at=record.updated_at,
        due_at=record.due_at if record.state == PENDING else None,
        body=_body(message),
    )


def _body(message: Message) -> Any:
    if message.content_type != "application/json":
        return message.body
    return msgspec.json.decode(message.body) if message.body else None


def find_messages(
    store: Store, tenant: str, key: str, target: str = "", *, most_read: int | None = None
) -> Operation[list[tuple[Record, Message]]]:
    """Return the messages with a delivery key: one for each target that it went to. With its target, a message that
    has no order key is read by its address, and no other. `most_read`: as for `list_messages`.
    """
    there = (yield from store.read(message_address(tenant, target, key))).record if target else None
    if there is not None:
        return list(_of_tenant([there], tenant))
    found: list[tuple[Record, Message]] = []
    looked = 0
    for state in IMPORTANT_FIRST:
        after: str | None = None
        while most_read is None or looked < most_read:
            page = yield from store.scan(MESSAGE_KIND, state=state, after=after, limit=PAGE)
            looked += len(page.records)
            found += [
                (record, message)
                for record, message in _of_tenant(page.records, tenant)
                if message.key == key and target in ("", message.target)
            ]
            after = page.after
            if after is None:
                break
    return found


def find_message(store: Store, tenant: str, key: str, target: str = "") -> Operation[tuple[Record, Message]]:
    """Return the message with a delivery key. If it went to several targets, one must be named."""
    found = yield from find_messages(store, tenant, key, target)
    if not found:
        raise Misuse(f"There is no message with the key {key!r}; list them with: twiceproof messages list")
    targets = sorted({message.target for _, message in found})
    if len(targets) > 1:
        raise Misuse(f"The message {key!r} went to {', '.join(targets)}; say which one is meant: --to {targets[0]}")
    return found[0]


def show_message(store: Store, tenant: str, key: str, target: str = "") -> Operation[MessageShape]:
    record, message = yield from find_message(store, tenant, key, target)
    return message_shape(record, message)


def count_messages(store: Store, tenant: str | None = None, most: int | None = None) -> Operation[MessageCounts]:
    """Count messages by state, up to `most` of each. Sent ones are not counted: there may be millions."""
    counts = dict.fromkeys((PENDING, PUBLISHING, PARKED, HELD_LANE), 0)
    oldest: float | None = None
    for state in counts:
        after: str | None = None
        while True:
            page = yield from store.scan(MESSAGE_KIND, state=state, after=after, limit=most or 1_000)
            chosen = [record for record in page.records if tenant in (None, tenant_of(record.at))]
            counts[state] += len(chosen)
            if state == PENDING and chosen:
                oldest = max(oldest or 0.0, page.now - min(record.created_at for record in chosen))
            after = page.after
            if after is None or most is not None:
                break
    held = counts.pop(HELD_LANE)
    return MessageCounts(counts, oldest, held)


# -- a person's decision -------------------------------------------------------------------------


def resend(
    store: Store,
    tenant: str,
    key: str,
    *,
    by: str,
    target: str = "",
    note: str = "",
    as_new: bool = False,
    was: str = "",
) -> Operation[MessageShape]:
    """Publish a parked message again, with the same key. `as_new`: with a new one, so that receivers which have seen
    the old key process it again; the old message is dropped. `was`: the state that the decision is about; in another
    one it is refused.
    """
    if as_new:
        return (yield from _resend_as_new(store, tenant, key, target, by, note))
    return (yield from _settle(store, tenant, key, target, PENDING, by, note, was))


def _resend_as_new(store: Store, tenant: str, key: str, target: str, by: str, note: str) -> Operation[MessageShape]:
    """The new key follows from the old message: if this process dies before the old one is dropped, the next attempt
    finds what was written.
    """
    while True:
        record, message = yield from find_message(store, tenant, key, target)
        _refuse_unless(record, key, PENDING)
        new = f"tp_{sha256(f'{record.at.space} {record.at.key}'.encode()).hexdigest()[:32]}"
        fresh = structs.replace(message, key=new, by=by, note=note, starts=0, first_at=None, why="", attempts=())
        at = address_of_message(tenant, fresh)
        ticket = (yield from _ticket_of(store, record)) if _in_lane(record) else None
        if ticket is None:
            yield from write_message(store, tenant, fresh, 0.0)
            yield from _settle(store, tenant, key, message.target, DROPPED, by, f"resent as {new}")
        else:  # it takes the old one's place
            dropped = _settled(record, structs.replace(message, by=by, note=f"resent as {new}"), DROPPED, in_lane=True)
            place = Replace(ticket.at, new, version=ticket.version)
            lane = yield from _lane_write(store, record)
            written = yield from store.write(dropped, Insert(at, body_of(fresh), PENDING), place, *lane)
            if not isinstance(written, Written):
                continue
        found = (yield from store.read(at)).record
        if found is not None:
            return message_shape(found, fresh)


def drop(
    store: Store, tenant: str, key: str, *, by: str, target: str = "", note: str = "", was: str = ""
) -> Operation[MessageShape]:
    """Drop a message: it is not published, and the messages blocked by it continue. `was`: as for `resend`."""
    return (yield from _settle(store, tenant, key, target, DROPPED, by, note, was))


def _settle(
    store: Store, tenant: str, key: str, target: str, state: str, by: str, note: str, was: str = ""
) -> Operation[MessageShape]:
    while True:
        record, message = yield from find_message(store, tenant, key, target)
        _refuse_unless(record, key, state)
        if was and record.state != was:
            raise Misuse(f"The message {key!r} is {record.state} by now, and no longer {was}; look at it again.")
        after = structs.replace(message, by=by, note=note, starts=0, first_at=None)
        lane = yield from _lane_write(store, record)
        written = yield from store.write(_settled(record, after, state, in_lane=bool(lane)), *lane)
        if isinstance(written, Written):
            return message_shape(structs.replace(record, state=state), after)


def _refuse_unless(record: Record, key: str, state: str) -> None:
    """Raise Misuse unless a message may get this state by a person's decision."""
    allowed = (PARKED,) if state == PENDING else (PARKED, PENDING)
    if record.state not in allowed:
        raise Misuse(
            f"The message {key!r} is {record.state}; only {' and '.join(allowed)} ones can be "
            f"{'resent' if state == PENDING else 'dropped'}. Look at it: twiceproof messages show {key}"
        )


def _settled(record: Record, message: Message, state: str, *, in_lane: bool) -> Replace:
    if state == DROPPED:
        body = body_of(structs.replace(message, body=""))
        return Replace(record.at, body, DROPPED, version=record.version, queue=EXPIRE, due_in=KEEP_DROPPED)
    queue = "" if in_lane else queue_of_target(tenant_of(record.at), message.target)
    due_in = None if in_lane else 0.0
    return Replace(record.at, body_of(message), PENDING, version=record.version, queue=queue, due_in=due_in)


def _lane_write(store: Store, record: Record) -> Operation[list[Write]]:
    """Return the write that makes the message's lane due again; none if the lane has already continued without it."""
    if not _in_lane(record):
        return []
    at = structs.replace(record.at, key=SELF)
    found = yield from store.read(at)
    lane = found.record
    if lane is None or (yield from _ticket_of(store, record)) is None:
        return []
    queue = queue_of_target(tenant_of(at), message_of(record).target)
    due_in = 0.0 if lane.state == HELD_LANE else remaining(lane, found.now)  # a relay may be publishing it
    return [Replace(at, None, LANE, version=lane.version, queue=queue, due_in=due_in)]


def _in_lane(record: Record) -> bool:
    return f"/{LANES}/" in record.at.space


def _ticket_of(store: Store, record: Record) -> Operation[Record | None]:
    """Return the ticket of a message in its lane; None if the lane has continued without it."""
    key, after = message_of(record).key, None
    while True:
        page = yield from store.scan(TICKET_KIND, space=record.at.space, after=after, limit=PAGE)
        found = next((ticket for ticket in page.records if ticket.body == key), None)
        after = page.after
        if found is not None or after is None:
            return found
