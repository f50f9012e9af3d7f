"""RabbitMQ: publisher confirms with `mandatory`, manual acknowledgements, delivery counts of quorum queues. Extra:
`rabbitmq`.

A place to publish to is an exchange (`NAME` or `/exchanges/NAME`), with the topic as routing key; `/queues/NAME` is a
queue, through the default exchange. A place to receive from is a queue. Exchanges, queues and bindings are made by
their owner, not here.

`Requeue(after)` keeps the delivery, unsettled, on this connection and returns it when its time has come. The usual
alternative, a queue with a time to live that dead-letters back, needs topology for each queue, loses the delivery
count, and may lose the message: dead-lettering from a classic queue is not confirmed. Here the worst case is that the
delivery returns early, after a broken connection. It takes one place of `prefetch` meanwhile, and no longer than
`LONGEST_HOLD`, since RabbitMQ closes the channel of a consumer that holds a delivery for 30 minutes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote, urlsplit

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractExchange, AbstractIncomingMessage
from aio_pika.connection import make_url
from aio_pika.exceptions import AMQPError, ChannelInvalidStateError, ChannelNotFoundEntity, DeliveryError
from aiormq.exceptions import AuthenticationError, ProbableAuthenticationError, PublishError

from ..clock import Clock, system_clock
from ..errors import BrokerUnavailable
from .asynchronous import CONNECT_SECONDS, AsyncBroker, SharedCalls, thread_name
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

__all__ = ["RabbitBroker"]

PREFETCH = 200
LONGEST_HOLD = 600.0  # seconds; a longer `Requeue` is delivered again earlier than requested
MOST_BYTES = 16 * 1024 * 1024  # the default limit of RabbitMQ 4
QUEUES, EXCHANGES = "/queues/", "/exchanges/"
PROBE: dict[str, Any] = {"x-queue-type": "classic", "x-queue-leader-locator": "none"}
OWN_QUORUM_LIMIT = (4, 0)  # from this version on, quorum queues drop a message after 20 deliveries
GONE = (AMQPError, ChannelInvalidStateError, OSError, asyncio.InvalidStateError)
NAME = "rabbitmq"
ABOUT_CONNECTIONS = ("error when creating transport", "Unexpected connection close", "Cancelling cause reader exited")


class _ReportedByUs(logging.Filter):
    """Drops what the client logs about each connection of ours that fails: an outage is one line of our own."""

    def filter(self, record: logging.LogRecord) -> bool:
        ours = record.threadName == thread_name(NAME)
        return not (ours and str(record.msg).startswith(ABOUT_CONNECTIONS))


logging.getLogger("aiormq.connection").addFilter(_ReportedByUs())


class _Hold:
    """A delivery that we hold. It is settled only once: RabbitMQ closes a channel on which a delivery is settled
    twice.
    """

    def __init__(self, message: AbstractIncomingMessage, subscription: _Subscription) -> None:
        self.message = message
        self.subscription = subscription
        self.settled = False


class _Subscription:
    """A consumer of one queue. Deliveries that RabbitMQ pushes wait here until they are received."""

    def __init__(self, channel: AbstractChannel) -> None:
        self.channel = channel
        self.pushed: asyncio.Queue[AbstractIncomingMessage | None] = asyncio.Queue()
        self.consumer = ""
        channel.close_callbacks.add(lambda *_: self.pushed.put_nowait(None))

    async def start(self, queue: str) -> None:
        found = await self.channel.get_queue(queue)
        self.consumer = await found.consume(self._push)

    async def _push(self, message: AbstractIncomingMessage) -> None:
        self.pushed.put_nowait(message)

    async def is_over(self) -> bool:
        """Its channel was closed, or its queue was deleted, which cancels the consumer and nothing else."""
        if self.channel.is_closed:
            return True
        underlay: Any = await self.channel.get_underlay_channel()
        return self.consumer not in underlay.consumers

    async def take(self, limit: int, wait: float) -> list[AbstractIncomingMessage]:
        found: list[AbstractIncomingMessage] = []
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait):
                first = await self.pushed.get()
                while first is not None:
                    found.append(first)
                    first = None if len(found) >= limit or self.pushed.empty() else self.pushed.get_nowait()
        return found


class _Connection:
    """One connection: its confirming channel with the exchanges seen, or its subscriptions."""

    def __init__(self, amqp: AbstractConnection, channel: AbstractChannel) -> None:
        self.amqp = amqp
        self.channel = channel  # for publishing
        self.broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.exchanges: dict[str, AbstractExchange] = {}
        self._queries: SharedCalls[AbstractExchange | None] = SharedCalls()
        self.subscriptions: dict[str, _Subscription] = {}
        self.returns: set[asyncio.Task[None]] = set()
        amqp.close_callbacks.add(lambda *_: self.end())
        channel.close_callbacks.add(lambda *_: self.end())  # everything under way on it has an unknown outcome

    def end(self) -> None:
        if not self.broken.done():
            self.broken.set_result(None)

    async def exchange(self, name: str) -> AbstractExchange | None:
        """Return the exchange, or None if it does not exist. Messages under way at once share one query."""
        if not name:
            return self.channel.default_exchange
        known = self.exchanges.get(name)
        return known or await self._queries.get(name, lambda: self._find_exchange(name))

    async def _find_exchange(self, name: str) -> AbstractExchange | None:
        """Query on a channel of its own, since a negative answer closes the channel."""
        try:
            async with self.amqp.channel(publisher_confirms=False) as probe:
                await probe.get_exchange(name)
        except ChannelNotFoundEntity:
            return None
        self.exchanges[name] = await self.channel.get_exchange(name, ensure=False)
        return self.exchanges[name]

    async def subscription(self, queue: str, prefetch: int) -> _Subscription:
        known = self.subscriptions.get(queue)
        if known is not None and not await known.is_over():
            return known
        channel = await self.amqp.channel(publisher_confirms=False)
        await channel.set_qos(prefetch_count=prefetch)
        subscription = _Subscription(channel)
        await subscription.start(queue)
        self.subscriptions[queue] = subscription
        return subscription

    async def close(self) -> None:
        for task in self.returns:
            task.cancel()
        try:
            await self.amqp.close()
        finally:
            self.end()


class RabbitBroker(AsyncBroker[_Connection]):
    """`amqp://user:password@host:5672/vhost`, `amqps://…`."""

    most_bytes = MOST_BYTES

    def __init__(self, url: str, *, prefetch: int = PREFETCH, clock: Clock = system_clock) -> None:
        super().__init__(NAME, clock)
        self._url = url
        self._prefetch = prefetch

    async def _connect(self, *, consuming: bool) -> _Connection:
        """Open a plain connection: the client's robust one repeats publications after it has reported them as lost."""
        amqp = aio_pika.Connection(make_url(self._url))
        try:
            await amqp.connect(timeout=CONNECT_SECONDS)
            return _Connection(amqp, await amqp.channel(publisher_confirms=True, on_return_raises=True))
        except BaseException:
            await amqp.close()
            raise

    def _explain(self, error: BaseException) -> str:
        parts = urlsplit(self._url)
        where = f"RabbitMQ at {parts.hostname}:{parts.port or (5671 if parts.scheme == 'amqps' else 5672)}"
        if isinstance(error, AuthenticationError | ProbableAuthenticationError):
            return f"{where} refuses the user {parts.username!r}; check user and password in the URL."
        if isinstance(error, AMQPError) and ("NOT_ALLOWED" in str(error) or "Connection.OpenOk" in str(error)):
            return (
                f"{where} has no virtual host {unquote(parts.path[1:]) or '/'!r} for this user; check the URL's path."
            )
        return f"{where} cannot be reached ({type(error).__name__}); check that it runs, and the address in the URL."

    # -- publishing ----------------------------------------------------------------------------

    async def _send(self, connection: _Connection, message: OutgoingMessage) -> Publication:
        queue = message.place.removeprefix(QUEUES) if message.place.startswith(QUEUES) else None
        name = "" if queue is not None else message.place.removeprefix(EXCHANGES)
        routing_key = message.topic if queue is None else queue
        try:
            exchange = await connection.exchange(name)
        except GONE as error:
            return Refused(self._explain(error), away=True)  # not handed over
        if exchange is None:
            return Refused(f"RabbitMQ has no exchange {name!r}; declare it, or correct the route.")
        try:
            await exchange.publish(_as_amqp(message), routing_key, mandatory=True)
        except PublishError:
            to = f"no queue {queue!r}" if queue is not None else f"no queue for {routing_key!r} at exchange {name!r}"
            return Refused(f"RabbitMQ has {to}; declare and bind one, or correct the route.")
        except DeliveryError:
            return Refused("RabbitMQ could not store it (basic.nack); check the queue's length limit and its replicas.")
        except GONE as error:
            return Unconfirmed(f"The connection ended before RabbitMQ confirmed it ({type(error).__name__}).")
        return Confirmed()

    # -- receiving -----------------------------------------------------------------------------

    async def _take(self, connection: _Connection, place: str, limit: int, wait: float) -> list[QueueDelivery]:
        queue = place.removeprefix(QUEUES)
        try:
            subscription = await connection.subscription(queue, self._prefetch)
        except ChannelNotFoundEntity:
            raise BrokerUnavailable(
                f"RabbitMQ has no queue {queue!r}; declare it, or correct the name.", missing=True
            ) from None
        except (*GONE, TimeoutError) as error:
            raise BrokerUnavailable(self._explain(error), missing=False) from None
        found = await subscription.take(limit, wait)
        return [self._delivery(place, _Hold(message, subscription)) for message in found]

    def _delivery(self, place: str, hold: _Hold) -> QueueDelivery:
        message = hold.message
        headers = {name.lower(): _text(value) for name, value in message.headers.items()}
        return QueueDelivery(
            place=place,
            body=message.body,
            headers=headers,
            tag=hold,
            key=message.message_id or headers.get("ce-id", ""),
            times=_times(message),
            content_type=message.content_type or "",
        )

    async def _settle_one(self, connection: _Connection, delivery: QueueDelivery, word: DeliverySettlement) -> None:
        hold: _Hold = delivery.tag
        if hold.settled or hold.subscription.channel.is_closed or isinstance(word, Extend):
            return  # a delivery is held as long as its channel is open: there is nothing to extend
        hold.settled = True
        if isinstance(word, Ack):
            await hold.message.ack()
        elif isinstance(word, Reject):
            await hold.message.reject(requeue=False)
        elif word.after <= 0:
            await hold.message.nack(requeue=True)
        else:
            task = asyncio.ensure_future(self._return_later(hold, word.after))
            connection.returns.add(task)
            task.add_done_callback(connection.returns.discard)

    async def _return_later(self, hold: _Hold, seconds: float) -> None:
        await asyncio.sleep(min(seconds, LONGEST_HOLD))
        with contextlib.suppress(*GONE):  # it has been delivered again already
            await hold.message.nack(requeue=True)

    async def _count(self, connection: _Connection, place: str) -> int | None:
        async with connection.amqp.channel(publisher_confirms=False) as channel:
            return (await channel.get_queue(place.removeprefix(QUEUES))).declaration_result.message_count

    # -- examining -----------------------------------------------------------------------------

    async def _look(self, connection: _Connection, places: Sequence[str]) -> list[BrokerFinding]:
        version = _version(connection.amqp)
        found = [BrokerFinding("ok", "server", f"RabbitMQ {'.'.join(map(str, version)) or 'of unknown version'}.")]
        for place in places:
            if place.startswith(EXCHANGES):
                found.append(await _examine_exchange(connection.amqp, place.removeprefix(EXCHANGES)))
            else:
                found.append(await _examine_queue(connection.amqp, place.removeprefix(QUEUES), version))
        return found

    def examine_routes(self, places: Sequence[str]) -> Sequence[BrokerFinding]:
        """Examine places to publish to: a name alone is an exchange there, and a queue to receive from."""
        return self.examine([place if place.startswith("/") else f"{EXCHANGES}{place}" for place in places])


async def _examine_exchange(amqp: AbstractConnection, name: str) -> BrokerFinding:
    try:
        async with amqp.channel(publisher_confirms=False) as channel:
            await channel.get_exchange(name)
    except ChannelNotFoundEntity:
        return BrokerFinding("error", name, f"There is no exchange {name!r}; declare it, or correct the route.")
    return BrokerFinding("ok", name, f"The exchange {name!r} exists; messages that no queue takes are refused.")


async def _examine_queue(amqp: AbstractConnection, queue: str, version: tuple[int, ...]) -> BrokerFinding:
    """AMQP does not return a queue's arguments, but refuses a declaration that differs from them and says where. The
    declaration used here neither changes nor creates a queue: no server has such a leader locator.
    """
    try:
        async with amqp.channel(publisher_confirms=False) as channel:
            await channel.get_queue(queue)
        async with amqp.channel(publisher_confirms=False) as channel:
            await channel.declare_queue(queue, durable=True, arguments=PROBE)
    except ChannelNotFoundEntity:
        return BrokerFinding("error", queue, f"There is no queue {queue!r}; declare it, or correct the name.")
    except AMQPError as error:
        return _judged(queue, str(error), version)
    text = "is on one node and does not count deliveries; declare it as a quorum queue."
    return BrokerFinding("warning", queue, f"The classic queue {queue!r} {text}")


def _judged(queue: str, refusal: str, version: tuple[int, ...]) -> BrokerFinding:
    if "'durable'" in refusal or "'auto_delete'" in refusal or "'exclusive'" in refusal:
        return BrokerFinding("error", queue, f"The queue {queue!r} does not outlive a restart; declare it durable.")
    if "'quorum'" in refusal and version >= OWN_QUORUM_LIMIT:
        text = "drops a message after 20 deliveries by default; give it a dead-letter exchange."
        return BrokerFinding("warning", queue, f"The quorum queue {queue!r} {text}")
    if "'quorum'" in refusal:
        return BrokerFinding("ok", queue, f"The queue {queue!r} is a quorum queue, and counts deliveries.")
    return BrokerFinding("warning", queue, f"The kind of {queue!r} cannot be read; let this user declare queues.")


def _version(amqp: AbstractConnection) -> tuple[int, ...]:
    transport: Any = amqp.transport
    text = str((transport.connection.server_properties or {}).get("version", "")) if transport else ""
    return tuple(int(part) for part in text.split(".")[:3] if part.isdigit())


def _as_amqp(message: OutgoingMessage) -> aio_pika.Message:
    return aio_pika.Message(
        message.body,
        headers=dict(message.headers),
        content_type=message.content_type,
        message_id=native_id(message.key),
        delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
    )


def _times(message: AbstractIncomingMessage) -> int | None:
    """Quorum queues count earlier deliveries. A classic queue only says whether there were any."""
    earlier = message.headers.get("x-delivery-count")
    if isinstance(earlier, int):
        return earlier + 1
    return None if message.redelivered else 1


def _text(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
