"""Makes messages from the arguments of `app.send`, and writes them in a commit of their own."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from ..claims.policy import Duration
from ..errors import Misuse
from ..keys import validate_key
from ..keys.duration import seconds
from ..operations import Operation
from ..records import Address, Written
from ..stores.base import Store
from .lanes import append, lane_address, message_in_lane
from .message import (
    MOST_BODY,
    Message,
    checked_headers,
    checked_topic,
    encode_body,
    insert_message,
    message_address,
    message_of,
    refuse_other_payload,
)
from .routing import Routing

__all__ = [
    "MessageOrigin",
    "Sending",
    "SentMessage",
    "SentOrAwaitable",
    "address_of_message",
    "make_messages",
    "write_message",
    "write_messages",
    "write_unordered",
]


class Sending(Struct, frozen=True):
    """The arguments of one send, as the caller gave them."""

    topic: str
    body: Any
    key: str | None = None
    order: str | None = None
    headers: Mapping[str, str] | None = None
    delay: Duration = 0.0
    content_type: str | None = None

    @property
    def due_in(self) -> float:
        return seconds(self.delay, name="delay", positive=False)


class SentMessage(Struct, frozen=True):
    """What `app.send` returns: the delivery key, and whether it had been sent before. The message is not published
    yet.
    """

    key: str
    targets: tuple[str, ...]
    earlier: bool = False


class SentOrAwaitable(SentMessage, frozen=True):
    """For type checkers only: a `SentMessage` in `def` code, an awaitable of it in `async def` code."""

    def __await__(self) -> Generator[Any, Any, SentMessage]:
        raise NotImplementedError


class MessageOrigin(Struct, frozen=True):
    """Where messages come from: the app, as CloudEvents name it; the run; and headers that lead back to it."""

    source: str
    run: str = ""
    headers: Mapping[str, str] = {}


def make_messages(
    routing: Routing, given: Sending, key: str, origin: MessageOrigin, *, in_flow: bool = False
) -> list[Message]:
    """Return one message for each route, all with the same delivery key. Refuses messages that no relay could
    publish. `in_flow`: the caller replaces a large body by a reference, where the routes say so.
    """
    topic = checked_topic(given.topic)
    routes = routing.of(topic)
    payload = encode_body(given.body, given.content_type)
    if payload.size > MOST_BODY and not (in_flow and all(route.large == "reference" for route in routes)):
        raise Misuse(
            f"The body of a message has {payload.size:,} bytes, and brokers take {MOST_BODY:,}; store it elsewhere and "
            'send a reference to it: in a flow\'s body app.route(…, large="reference") does so, in a step what '
            "app.resource(…) returns."
        )
    order = "" if given.order is None else validate_key(given.order)
    if order and given.due_in:
        raise Misuse("An ordered message cannot be delayed: it would hold up those behind it; leave out delay=.")
    headers = {**origin.headers, **checked_headers(given.headers)}
    return [
        Message(
            topic=topic,
            key=validate_key(key),
            target=route.target,
            place=route.place or topic,
            digest=payload.digest,
            body=payload.text,
            content_type=payload.content_type,
            order=order,
            headers=headers,
            source=origin.source,
            run=origin.run,
            on_unknown=route.on_unknown,
            on_parked=route.on_parked,
        )
        for route in routes
    ]


def address_of_message(tenant: str, message: Message) -> Address:
    """Return the address of a message that does not belong to a run."""
    if message.order:
        return message_in_lane(lane_address(tenant, message.target, message.order), message.key)
    return message_address(tenant, message.target, message.key)


def write_message(store: Store, tenant: str, message: Message, delay: float) -> Operation[bool]:
    """Write a message in a commit of its own. True: it existed already, with the same body."""
    if message.order:
        lane = lane_address(tenant, message.target, message.order)
        return (yield from append(store, lane, message)).earlier
    outcome = yield from store.write(insert_message(address_of_message(tenant, message), message, delay))
    if isinstance(outcome, Written):
        return False
    if outcome.found is None:  # an acknowledgement was lost, and the record has since been published and swept
        return True
    refuse_other_payload(message_of(outcome.found), message)
    return True


def write_unordered(store: Store, tenant: str, messages: Sequence[Message]) -> Operation[list[bool]]:
    """Write messages without order keys, independently of each other, in few commits. True: the key existed; the body
    has not been compared yet.
    """
    inserts = [[insert_message(address_of_message(tenant, message), message, 0.0)] for message in messages]
    outcomes = yield from store.write_each(inserts)
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome
    return [not isinstance(outcome, Written) for outcome in outcomes]


def write_messages(store: Store, tenant: str, messages: Sequence[Message], delay: float) -> Operation[SentMessage]:
    earlier = []
    for message in messages:
        earlier.append((yield from write_message(store, tenant, message, delay)))
    return SentMessage(messages[0].key, tuple(message.target for message in messages), all(earlier))
