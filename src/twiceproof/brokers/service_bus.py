"""Azure Service Bus, by its official client over AMQP 1.0. Extra: `servicebus`.

A place to publish to is a queue or a topic. A place to receive from is a queue or a subscription, written
`TOPIC/Subscriptions/NAME` as Service Bus itself does. Entities are created by their owner, not here. The key is the
message id, by which a queue with duplicate detection drops repetitions; the order key is the session id. A place that
requires sessions is received from by session, several of them at a time.

Messages that arrive while one is under way are sent as one batch, which Service Bus stores whole or not at all. The
messages of a refused batch are published one by one, so that each has an outcome of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote, urlsplit

from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient, ServiceBusSender
from azure.servicebus.exceptions import MessageSizeExceededError, MessagingEntityNotFoundError, ServiceBusError

from ..clock import Clock, system_clock
from ..errors import BrokerUnavailable
from .asynchronous import CONNECT_SECONDS, AsyncBroker, SharedCalls
from .base import (
    Ack,
    BrokerFinding,
    Confirmed,
    DeliverySettlement,
    Extend,
    OutgoingMessage,
    Publication,
    QueueDelivery,
    Refused,
    Reject,
    Unconfirmed,
)
from .publishing import native_id
from .service_bus_receivers import (
    KEY,
    MessageHold,
    PlaceReceiver,
    SessionsReceiver,
    delivery_of,
    hang_up,
    open_link,
    open_receiver,
    wire_of,
)
from .service_bus_settings import condition_of, count_active, examine_place, explained, is_rejection

__all__ = ["ServiceBusBroker"]

MOST_BYTES = 1024 * 1024  # Premium takes more, Standard 256 KiB: a message above it is refused there
MOST_IN_BATCH = 200
LONGEST_ID = 128  # characters, of a message or of a session
SEND_SECONDS = 60.0  # for one batch; longer than the time limit of any caller
SESSIONS = 8
CHECKED = "This was checked against our simulator, not against the service: try it out first."
PROBE = "twiceproof-doctor"  # an entity that does not exist: a client that is told so has signed in


class _Sender:
    """A link to one place. Messages that arrive while a batch is under way become the next batch."""

    def __init__(self, link: ServiceBusSender, place: str) -> None:
        self._link, self._place = link, place
        self._wire = wire_of(link)
        self._waiting: list[tuple[OutgoingMessage, asyncio.Future[Publication]]] = []
        self._flusher: asyncio.Future[None] | None = None
        self._one_by_one = False  # a batch was refused, but not its single messages, as in partitioned entities

    async def send(self, message: OutgoingMessage) -> Publication:
        outcome: asyncio.Future[Publication] = asyncio.get_running_loop().create_future()
        self._waiting.append((message, outcome))
        if self._flusher is None or self._flusher.done():
            self._flusher = asyncio.ensure_future(self._flush())
        return await outcome

    async def close(self) -> None:
        """Stop handing over messages, then close the link."""
        if self._flusher is not None:
            self._flusher.cancel()
        await self._link.close()

    def abort(self) -> None:
        hang_up(self._wire, wire_of(self._link))

    async def _flush(self) -> None:
        while self._waiting:
            most = 1 if self._one_by_one else MOST_IN_BATCH
            taken, self._waiting = self._waiting[:most], self._waiting[most:]
            taken = [(message, outcome) for message, outcome in taken if not outcome.done()]  # given up meanwhile
            published = await self._published([message for message, _ in taken])
            for (_, outcome), publication in zip(taken, published, strict=True):
                if not outcome.done():
                    outcome.set_result(publication)

    async def _published(self, messages: list[OutgoingMessage]) -> list[Publication]:
        published: list[Publication] = []
        try:
            await self._publish(messages, published)
        except Exception as error:  # noqa: BLE001 - whatever the client raises: what it confirmed before stays so
            text = f"It was handed over, and the client failed ({type(error).__name__})."
            published += [Unconfirmed(text)] * (len(messages) - len(published))
        return published

    async def _publish(self, messages: list[OutgoingMessage], published: list[Publication]) -> None:
        while len(published) < len(messages):
            rest = messages[len(published) :]
            count, outcome = await self._publish_batch(rest)
            if isinstance(outcome, Refused) and count > 1:
                first = len(published)
                for message in rest[:count]:
                    published.append((await self._publish_batch([message]))[1])
                self._one_by_one |= all(isinstance(single, Confirmed) for single in published[first:])
            else:
                published += [outcome] * count

    async def _publish_batch(self, messages: list[OutgoingMessage]) -> tuple[int, Publication]:
        """Publish as many of the first messages as fit into one transfer; return their number, and their common
        outcome.
        """
        try:
            if len(messages) == 1:
                await self._link.send_messages(_as_service_bus(messages[0]), timeout=SEND_SECONDS)
                return 1, Confirmed()
            batch = await self._link.create_message_batch()
        except ServiceBusError as error:
            return 1, self._outcome(error)
        count = _fill(batch, messages)
        if count < 2:
            return await self._publish_batch(messages[:1])
        try:
            await self._link.send_messages(batch, timeout=SEND_SECONDS)
        except ServiceBusError as error:
            return count, self._outcome(error)
        return count, Confirmed()

    def _outcome(self, error: ServiceBusError) -> Publication:
        if isinstance(error, MessageSizeExceededError):
            text = f"{self._place!r} does not take a message of this size; store the body elsewhere, send a reference."
            return Refused(text, final=True)
        if is_rejection(error):
            text = f"{self._place!r} did not take it ({condition_of(error)}); check the entity's settings."
            return Refused(text, retry_after=10.0 if "server-busy" in condition_of(error) else None)
        return Unconfirmed(f"It was handed over, and Service Bus did not confirm it ({type(error).__name__}).")


class _Connection:
    """A client with its links. Each link of this client has a TCP connection of its own."""

    def __init__(self, client: ServiceBusClient, clock: Clock) -> None:
        self.client = client
        self.clock = clock
        self.broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.holds: set[MessageHold] = set()
        self._senders: dict[str, _Sender] = {}
        self._receivers: dict[str, PlaceReceiver | SessionsReceiver] = {}
        self._openings: SharedCalls[_Sender] = SharedCalls()
        self._opening = asyncio.Lock()

    async def sender(self, place: str) -> _Sender:
        """Messages under way at once share one link. To open one that does not exist takes a second."""
        known = self._senders.get(place)
        return known or await self._openings.get(place, lambda: self._open_sender(place))

    async def _open_sender(self, place: str) -> _Sender:
        link = self.client.get_queue_sender(place)  # a topic is addressed in the same way
        await open_link(link, CONNECT_SECONDS)
        self._senders[place] = _Sender(link, place)
        return self._senders[place]

    async def receiver(self, place: str, sessions: int) -> PlaceReceiver | SessionsReceiver:
        async with self._opening:
            if place not in self._receivers:
                self._receivers[place] = await open_receiver(self.client, place, sessions, self.clock)
            return self._receivers[place]

    def end(self) -> None:
        if not self.broken.done():
            self.broken.set_result(None)

    async def close(self) -> None:
        """Give back what is not settled: otherwise Service Bus redelivers it only when its lock has expired."""
        try:
            await self._openings.close()
            held = [hold.give_back() for hold in self.holds if hold.is_held]
            await asyncio.gather(*held, return_exceptions=True)
            await asyncio.gather(*(link.close() for link in self._links()), return_exceptions=True)
            await self.client.close()
        finally:
            for link in self._links():
                link.abort()
            self.end()

    def _links(self) -> list[_Sender | PlaceReceiver | SessionsReceiver]:
        return [*self._senders.values(), *self._receivers.values()]


class ServiceBusBroker(AsyncBroker[_Connection]):
    """`servicebus://POLICY:KEY@NAMESPACE.servicebus.windows.net`; `servicebus+amqp://POLICY:KEY@host:port` without TLS.

    `dedupe` is the window of duplicate detection of the places published to, which the client cannot find out.
    """

    most_bytes = MOST_BYTES

    def __init__(
        self,
        url: str,
        *,
        dedupe: float = 0.0,
        sessions: int = SESSIONS,
        management: int = 0,
        clock: Clock = system_clock,
    ) -> None:
        super().__init__("service-bus", clock)
        self.dedupe = dedupe
        self._url = url
        self._sessions = sessions
        self._management = management

    async def _connect(self, *, consuming: bool) -> _Connection:
        """The client connects with its first link. Its own retries are switched off: they would hide unknown
        outcomes.
        """
        client = ServiceBusClient.from_connection_string(_connection_string(self._url), retry_total=0)
        return _Connection(client, self._clock)

    def _explain(self, error: BaseException) -> str:
        return explained(self._url, error)

    # -- publishing ----------------------------------------------------------------------------

    async def _send(self, connection: _Connection, message: OutgoingMessage) -> Publication:
        try:
            sender = await connection.sender(message.place)
        except MessagingEntityNotFoundError:
            return Refused(f"Service Bus has no queue or topic {message.place!r}; create it, or correct the route.")
        except (ServiceBusError, TimeoutError) as error:
            return Refused(self._explain(error), away=True)
        return await sender.send(message)

    # -- receiving -----------------------------------------------------------------------------

    async def _take(self, connection: _Connection, place: str, limit: int, wait: float) -> list[QueueDelivery]:
        try:
            receiver = await connection.receiver(place, self._sessions)
            holds = await receiver.take(limit, wait)
        except MessagingEntityNotFoundError:
            text = f"Service Bus has no queue or subscription {place!r}; create it, or correct the name."
            raise BrokerUnavailable(text, missing=True) from None
        except (ServiceBusError, TimeoutError) as error:
            connection.end()  # the next call opens another one
            raise BrokerUnavailable(self._explain(error), missing=False) from None
        connection.holds = {hold for hold in connection.holds if hold.is_held}.union(holds)
        return [delivery_of(place, hold) for hold in holds]

    async def _settle_one(self, connection: _Connection, delivery: QueueDelivery, word: DeliverySettlement) -> None:
        hold: MessageHold = delivery.tag
        if not hold.is_held:
            return
        if isinstance(word, Ack):
            await hold.settle(hold.receiver.complete_message)
        elif isinstance(word, Reject):
            await hold.settle(hold.receiver.dead_letter_message, reason="rejected", error_description=word.why[:1_000])
        elif isinstance(word, Extend):
            hold.keep(word.seconds)
        elif word.after <= 0:
            await hold.give_back()
        else:
            hold.give_back_later(word.after)

    async def _count(self, connection: _Connection, place: str) -> int | None:
        """Over HTTPS, which needs the right Manage."""
        return await asyncio.to_thread(count_active, self._url, place, self._management)

    # -- examining -----------------------------------------------------------------------------

    async def _look(self, connection: _Connection, places: Sequence[str]) -> list[BrokerFinding]:
        """Sign in, with a link to an entity that does not exist; then read the settings of each place, if the key
        permits it.
        """
        with contextlib.suppress(MessagingEntityNotFoundError):
            probe = connection.client.get_queue_sender(PROBE)
            await open_link(probe, CONNECT_SECONDS)
            await probe.close()
        host = urlsplit(self._url).hostname
        found = [BrokerFinding("ok", "server", f"Azure Service Bus, namespace {host}. {CHECKED}")]
        for place in places:
            found += await asyncio.to_thread(examine_place, self._url, place, self.dedupe, self._management)
        return found


def _connection_string(url: str) -> str:
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    plain = ";UseDevelopmentEmulator=true" if parts.scheme == "servicebus+amqp" else ""
    policy, key = unquote(parts.username or ""), unquote(parts.password or "")
    return f"Endpoint=sb://{host};SharedAccessKeyName={policy};SharedAccessKey={key}{plain}"


def _as_service_bus(message: OutgoingMessage) -> ServiceBusMessage:
    """Service Bus requires the session id to be the partition key too. Ids have at most 128 characters: a longer one is
    replaced by its digest, and the whole key is sent as a property.
    """
    message_id = _id(native_id(message.key))
    own = {} if message_id == native_id(message.key) else {KEY: native_id(message.key)}
    properties: dict[Any, Any] = {**message.headers, **own}
    return ServiceBusMessage(
        message.body,
        message_id=message_id,
        session_id=_id(message.order) if message.order else None,
        subject=message.topic or None,
        content_type=message.content_type,
        application_properties=properties or None,
    )


def _id(text: str) -> str:
    return text if len(text) <= LONGEST_ID else f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def _fill(batch: Any, messages: Sequence[OutgoingMessage]) -> int:
    for count, message in enumerate(messages):
        try:
            batch.add_message(_as_service_bus(message))
        except ValueError:  # it is full
            return count
    return len(messages)
