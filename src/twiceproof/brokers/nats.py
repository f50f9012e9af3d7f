"""NATS JetStream: publications with message ids, pull consumers, acknowledgements that are answered. Extra: `nats`.

A place to publish to is a subject; the stream that takes it is looked up once and expected from then on. A place to
receive from is `STREAM/CONSUMER`, a durable pull consumer. Streams and consumers are made by their owner, not here.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from functools import cached_property
from typing import Any
from urllib.parse import urlsplit

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import AuthorizationError
from nats.errors import Error as NatsError
from nats.js.api import AckPolicy, ConsumerInfo, Header, StreamInfo
from nats.js.client import JetStreamContext
from nats.js.errors import APIError, NoStreamResponseError, NotFoundError, ServiceUnavailableError

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

__all__ = ["NatsBroker"]

ANSWER_SECONDS = 5.0  # for one question to the server
DEDUPE = 120.0  # a stream's window unless it says otherwise
MOST_BYTES = 64 * 1024 * 1024  # the largest limit of any server; each announces its own when a client connects
LONG = 3600.0  # longer than any time limit here
OLDEST = (2, 11)
MESSAGE_ID, OWN = "Nats-Msg-Id", "nats-"
PREAMBLE, FRAME = "NATS/1.0\r\n\r\n", ": \r\n"  # around all headers, and around each
CONTENT_TYPE = "content-type"


class _Hold:
    """A delivery that we hold, and until when by our clock."""

    def __init__(self, message: Msg, ack_wait: float, until: float) -> None:
        self.message = message
        self.ack_wait = ack_wait
        self.until = until
        self.extension: asyncio.Task[None] | None = None


class _Subscription:
    def __init__(self, pull: JetStreamContext.PullSubscription, ack_wait: float) -> None:
        self.pull = pull
        self.ack_wait = ack_wait


class _Connection:
    def __init__(self) -> None:
        self.client = Client()
        self.broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.streams: dict[str, str] = {}  # by subject
        self.queries: SharedCalls[str] = SharedCalls()
        self.subscriptions: dict[str, _Subscription] = {}
        self.extensions: set[asyncio.Task[None]] = set()
        self.holds: set[_Hold] = set()  # deliveries that are not settled

    @cached_property
    def jetstream(self) -> JetStreamContext:
        return self.client.jetstream(timeout=ANSWER_SECONDS)

    async def open(self, url: str) -> None:
        """Open without reconnects: the client would keep what is published meanwhile, and send it after we gave up."""
        await self.client.connect(
            url,
            allow_reconnect=False,
            max_reconnect_attempts=1,  # at the start: the client itself would retry for minutes
            reconnect_time_wait=0,
            connect_timeout=int(CONNECT_SECONDS),
            error_cb=_ignore,
            closed_cb=self._ended,
            disconnected_cb=self._ended,
        )

    async def stream_of(self, subject: str) -> str:
        if subject not in self.streams:
            self.streams[subject] = await self.jetstream.find_stream_name_by_subject(subject)
        return self.streams[subject]

    async def subscription(self, place: str) -> _Subscription:
        if place not in self.subscriptions:
            stream, _, consumer = place.partition("/")
            info = await self.jetstream.consumer_info(stream, consumer or "-")
            pull = await self.jetstream.pull_subscribe_bind(consumer, stream)
            self.subscriptions[place] = _Subscription(pull, info.config.ack_wait or 30.0)
        return self.subscriptions[place]

    async def close(self) -> None:
        """Give back what is not settled: otherwise the server redelivers it only when its time is over."""
        for task in self.extensions:
            task.cancel()
        try:
            if not self.broken.done():
                await asyncio.gather(*(hold.message.nak() for hold in self.holds), return_exceptions=True)
            await self.client.close()
        finally:
            await self._ended()

    async def _ended(self) -> None:
        if not self.broken.done():
            self.broken.set_result(None)


async def _ignore(_: Exception) -> None:
    """Errors are handled where they matter; the client would log each of them with a traceback."""


class NatsBroker(AsyncBroker[_Connection]):
    """`nats://user:password@host:4222`, `tls://…`. `dedupe` is the shortest window of the streams published to."""

    most_bytes = MOST_BYTES
    dedupe = DEDUPE

    def __init__(self, url: str, *, clock: Clock = system_clock) -> None:
        super().__init__("nats", clock)
        self._url = url

    async def _connect(self, *, consuming: bool) -> _Connection:
        connection = _Connection()
        try:
            await connection.open(self._url)
        except BaseException:
            with contextlib.suppress(Exception):
                await connection.client.close()
            raise
        return connection

    def _explain(self, error: BaseException) -> str:
        parts = urlsplit(self._url)
        where = f"NATS at {parts.hostname}:{parts.port or 4222}"
        if isinstance(error, AuthorizationError) or "authorization violation" in str(error).lower():
            return f"{where} refuses the user {parts.username!r}; check user and password in the URL."
        if isinstance(error, ServiceUnavailableError):
            return f"{where} has no JetStream; start it with -js, or enable it for this account."
        return f"{where} cannot be reached ({type(error).__name__}); check that it runs, and the address in the URL."

    # -- publishing ----------------------------------------------------------------------------

    async def _send(self, connection: _Connection, message: OutgoingMessage) -> Publication:
        subject = message.place
        try:
            stream = await self._known_stream(connection, subject)
        except (NotFoundError, ValueError):
            return Refused(f"No stream of NATS takes the subject {subject!r}; create one, or correct the route.")
        except (NatsError, TimeoutError, OSError) as error:
            return Refused(self._explain(error), away=True)
        headers = {**message.headers, MESSAGE_ID: native_id(message.key), CONTENT_TYPE: message.content_type}
        most = connection.client.max_payload
        if not _fits(headers, stream, most - len(message.body)):  # the server would end the connection
            return Refused(f"NATS takes {most:,} bytes, headers included; store the body elsewhere.", final=True)
        try:
            answer = await connection.jetstream.publish(
                subject, message.body, timeout=LONG, stream=stream, headers=headers
            )
        except (APIError, NoStreamResponseError) as error:
            return self._refusal(connection, subject, error)
        except (NatsError, TimeoutError, OSError) as error:
            return Unconfirmed(f"The connection ended before NATS confirmed it ({type(error).__name__}).")
        return Confirmed(f"{answer.stream}:{answer.seq}", duplicate=bool(answer.duplicate))

    def _refusal(self, connection: _Connection, subject: str, error: Exception) -> Refused:
        connection.streams.pop(subject, None)  # it may have been delivered to another consumer by now
        if isinstance(error, APIError):
            return Refused(f"NATS did not store it: {error.description}; check the limits of the stream.")
        return Refused(f"No stream of NATS takes the subject {subject!r} any more; create it again.")

    async def _known_stream(self, connection: _Connection, subject: str) -> str:
        """Messages under way at once share one query."""
        known = connection.streams.get(subject)
        return known or await connection.queries.get(subject, lambda: self._find_stream(connection, subject))

    async def _find_stream(self, connection: _Connection, subject: str) -> str:
        stream = await connection.stream_of(subject)
        info = await connection.jetstream.stream_info(stream)
        self.dedupe = min(self.dedupe, info.config.duplicate_window or DEDUPE)
        return stream

    # -- receiving -----------------------------------------------------------------------------

    async def _take(self, connection: _Connection, place: str, limit: int, wait: float) -> list[QueueDelivery]:
        try:
            subscription = await connection.subscription(place)
            found = await subscription.pull.fetch(limit, timeout=max(wait, 0.01))
        except TimeoutError:
            return []
        except (NotFoundError, ValueError):  # or not a valid name of a stream
            raise BrokerUnavailable(
                f"NATS has no consumer {place!r}; create it, and write STREAM/CONSUMER.", missing=True
            ) from None
        except (NatsError, OSError) as error:
            connection.subscriptions.pop(place, None)
            raise BrokerUnavailable(self._explain(error), missing=False) from None
        now = self._clock.monotonic()
        holds = [_Hold(message, subscription.ack_wait, now + subscription.ack_wait) for message in found]
        connection.holds = {hold for hold in connection.holds if now < hold.until}.union(holds)
        return [self._delivery(place, hold) for hold in holds]

    def _delivery(self, place: str, hold: _Hold) -> QueueDelivery:
        headers = {name.lower(): value for name, value in (hold.message.headers or {}).items()}
        about = hold.message.metadata
        return QueueDelivery(
            place=place,
            body=hold.message.data,
            headers={name: value for name, value in headers.items() if not name.startswith(OWN)},
            tag=hold,
            key=headers.get(MESSAGE_ID.lower()) or headers.get("ce-id", ""),
            sequence=about.sequence.stream,
            partition=about.stream,
            times=about.num_delivered,
            until=hold.until,
            content_type=headers.get(CONTENT_TYPE, ""),
        )

    async def _settle_one(self, connection: _Connection, delivery: QueueDelivery, word: DeliverySettlement) -> None:
        """Settle it, unless its time is over: the server would take this for the settlement of the next delivery."""
        hold: _Hold = delivery.tag
        if hold not in connection.holds or self._clock.monotonic() >= hold.until:
            return
        if hold.extension is not None:
            hold.extension.cancel()
        if isinstance(word, Extend):
            await self._extend(connection, hold, word.seconds)
            return
        connection.holds.discard(hold)
        if isinstance(word, Ack):
            await hold.message.ack_sync(timeout=ANSWER_SECONDS)
        elif isinstance(word, Reject):
            await hold.message.term()
        else:
            await hold.message.nak(delay=word.after or None)

    async def _extend(self, connection: _Connection, hold: _Hold, seconds: float) -> None:
        """The server extends by its own AckWait, counted from now; a longer extension is requested repeatedly."""
        await hold.message.in_progress()
        now = self._clock.monotonic()
        hold.until = max(now + hold.ack_wait, now + seconds)
        if seconds > hold.ack_wait:
            hold.extension = asyncio.ensure_future(self._extend_again(hold, seconds))
            connection.extensions.add(hold.extension)
            hold.extension.add_done_callback(connection.extensions.discard)

    async def _extend_again(self, hold: _Hold, seconds: float) -> None:
        end = self._clock.monotonic() + seconds
        with contextlib.suppress(NatsError):
            while (left := end - self._clock.monotonic()) > hold.ack_wait:
                await asyncio.sleep(min(hold.ack_wait / 3, left - hold.ack_wait))
                await hold.message.in_progress()

    async def _count(self, connection: _Connection, place: str) -> int | None:
        stream, _, consumer = place.partition("/")
        info: ConsumerInfo = await connection.jetstream.consumer_info(stream, consumer)
        return info.num_pending

    # -- examining -----------------------------------------------------------------------------

    async def _look(self, connection: _Connection, places: Sequence[str]) -> list[BrokerFinding]:
        found = [_examine_server(connection.client)]
        for place in places:
            try:
                found += await _examine_place(connection, place)
            except (NotFoundError, ValueError):
                text = f"There is no stream or consumer for {place!r}; create it, or correct the name."
                found.append(BrokerFinding("error", place, text))
        return found


def _fits(headers: dict[str, str], stream: str, room: int) -> bool:
    """Whether the headers have room on the wire. They are counted exactly only near the limit."""
    sent = {**headers, Header.EXPECTED_STREAM.value: stream}
    letters = sum(map(len, sent)) + sum(map(len, sent.values()))
    if len(PREAMBLE) + 4 * letters + len(FRAME) * len(sent) <= room:
        return True
    return len(PREAMBLE) + sum(len(f"{name}: {value}\r\n".encode()) for name, value in sent.items()) <= room


def _examine_server(client: Client) -> BrokerFinding:
    version = client.connected_server_version
    text = f"NATS {version.major}.{version.minor}.{version.patch}"
    if (version.major, version.minor) < OLDEST:
        return BrokerFinding(
            "warning", "server", f"{text} is older than what this was checked with; use 2.11 or newer."
        )
    return BrokerFinding(
        "warning",
        "sync_interval",
        f"{text} writes to the disk every two minutes unless told otherwise, and clients cannot ask: a power failure "
        "loses what was confirmed since. Set sync_interval: always, or use three replicas.",
    )


async def _examine_place(connection: _Connection, place: str) -> list[BrokerFinding]:
    """Examine a consumer (`STREAM/CONSUMER`) and its stream, or the stream that takes a subject."""
    stream, slash, consumer = place.partition("/")
    if not slash:
        return _examine_stream(await connection.jetstream.stream_info(await connection.stream_of(place)))
    about = await connection.jetstream.consumer_info(stream, consumer)
    return [*_examine_stream(await connection.jetstream.stream_info(stream)), *_examine_consumer(about)]


def _examine_stream(info: StreamInfo) -> list[BrokerFinding]:
    config: Any = info.config
    window = config.duplicate_window or DEDUPE
    found = [BrokerFinding("ok", config.name, f"It drops a message whose key it has seen within {window:g} seconds.")]
    if config.max_age:
        text = f"It keeps messages for {config.max_age:g} seconds, and delivers them again to a new consumer."
        found.append(BrokerFinding("ok", config.name, text, keeps=config.max_age))
    if (config.num_replicas or 1) < 3:
        text = "It is on one server: it is away when that one is. Use three replicas."
        found.append(BrokerFinding("warning", config.name, text))
    if config.storage == "memory":
        found.append(
            BrokerFinding("error", config.name, "It is in memory, and ends with the server. Store it in files.")
        )
    return found


def _examine_consumer(info: ConsumerInfo) -> list[BrokerFinding]:
    config: Any = info.config
    found = []
    if config.ack_policy != AckPolicy.EXPLICIT:
        text = "It does not wait for each acknowledgement; create it with AckPolicy explicit."
        found.append(BrokerFinding("error", info.name, text))
    if (config.max_deliver or -1) > 0:
        text = f"After {config.max_deliver} deliveries a message comes no more, unnoticed. Set max_deliver to -1."
        found.append(BrokerFinding("warning", info.name, text))
    return found
