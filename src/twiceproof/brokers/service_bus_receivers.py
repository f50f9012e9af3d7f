"""Receiving from Azure Service Bus: deliveries under locks that are renewed, from a place or from its sessions."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusReceivedMessage
from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver, ServiceBusSender
from azure.servicebus.amqp import AmqpMessageBodyType
from azure.servicebus.exceptions import OperationTimeoutError, ServiceBusError

from ..clock import Clock
from .asynchronous import CONNECT_SECONDS
from .base import QueueDelivery
from .service_bus_settings import condition_of

__all__ = ["MessageHold", "PlaceReceiver", "SessionsReceiver", "delivery_of", "hang_up", "open_link", "open_receiver"]

KEY = "message-id"  # the property for a key that is too long for the message's own id
SUBSCRIPTIONS = "/subscriptions/"
SHORTEST_WAIT = 0.05  # seconds; the client does not accept 0
ACCEPT_SECONDS = 1.0  # for Service Bus to find a session that is free
IDLE_SECONDS = 5.0  # after which a session without messages makes room for another
CLOSE_SECONDS = 1.0  # for a link to close in good order
RENEW_SECONDS = 10.0  # between two renewals of a session's lock, which usually lasts at least 30


async def open_link(link: ServiceBusSender | ServiceBusReceiver, seconds: float) -> None:
    """Open a link, or clean up: the client itself forgets a connection that it could not open in time."""
    opening = asyncio.ensure_future(link.__aenter__())
    wire = None
    try:
        await asyncio.wait({opening}, timeout=seconds)
        wire = wire_of(link)
        if not opening.done():
            raise TimeoutError
        await opening
    except BaseException:
        wires = (wire, wire_of(link))
        opening.cancel()
        with contextlib.suppress(Exception):
            async with asyncio.timeout(CLOSE_SECONDS):
                await link.close()
        hang_up(*wires)
        raise


def wire_of(link: ServiceBusSender | ServiceBusReceiver) -> Any:
    """Return its connection, to be dropped: the client closes in good order, and leaves the connection open if there is
    no answer.
    """
    found: Any = link
    for name in ("_handler", "_connection", "_transport", "writer", "transport"):
        found = getattr(found, name, None)
    return found


def hang_up(*wires: Any) -> None:
    for wire in wires:
        if wire is not None:
            wire.abort()


class MessageHold:
    """A delivery under its lock. It is settled once, and not after its lock has expired: another receiver may have it
    then.
    """

    def __init__(self, message: ServiceBusReceivedMessage, receiver: ServiceBusReceiver, clock: Clock) -> None:
        self.message = message
        self.receiver = receiver
        self._clock = clock
        self._settled = False
        self._task: asyncio.Future[None] | None = None
        self.until = self._local_until()

    @property
    def is_held(self) -> bool:
        return not self._settled and (self.until is None or self._clock.monotonic() < self.until)

    async def settle(self, how: Callable[..., Awaitable[None]], **more: Any) -> None:
        self._settled = True
        self._stop()
        await how(self.message, **more)

    async def give_back(self) -> None:
        await self.settle(self.receiver.abandon_message)

    def keep(self, seconds: float) -> None:
        """Keep the lock for so long. Each renewal lasts as long as the entity's lock duration."""
        self._stop()
        self._task = asyncio.ensure_future(self._renew(seconds))

    def give_back_later(self, seconds: float) -> None:
        """Service Bus cannot delay a redelivery: the message is kept here, under its lock, and released when the time
        has come.
        """
        self._stop()
        self._settled = True
        self._task = asyncio.ensure_future(self._return_later(seconds))

    async def _return_later(self, seconds: float) -> None:
        await self._renew(seconds)
        with contextlib.suppress(ServiceBusError, ValueError):  # it has been delivered again already
            await self.receiver.abandon_message(self.message)

    async def _renew(self, seconds: float) -> None:
        """Ends early once the lock cannot be renewed any more: it has expired, or the link was closed."""
        end = self._clock.monotonic() + seconds
        while (now := self._clock.monotonic()) < end:
            if self.until is not None and self.until < end:
                try:
                    await self.receiver.renew_message_lock(self.message)
                except ServiceBusError:
                    if self.until <= now:
                        return
                except ValueError:  # the client's word for a closed link
                    return
                self.until = self._local_until()
            left = end if self.until is None or self.until >= end else now + (self.until - now) / 2
            await self._clock.rest(max(SHORTEST_WAIT, left - now))

    def _stop(self) -> None:
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()

    def _local_until(self) -> float | None:
        """By this machine's clock, as the client itself does. All deliveries of a session share one lock."""
        session: Any = self.receiver.session  # None without sessions, whatever the client's annotation says
        if session is not None or self.message.locked_until_utc is None:
            return None
        return self._clock.monotonic() + self.message.locked_until_utc.timestamp() - self._clock.now()


class PlaceReceiver:
    """Deliveries of a place without sessions, or of one session."""

    def __init__(self, link: ServiceBusReceiver, clock: Clock) -> None:
        self._link, self._clock = link, clock
        self._wire = wire_of(link)
        self._turn = asyncio.Lock()  # the client's receivers do not support two calls at once
        self._renewal = asyncio.ensure_future(self._renew()) if link.session is not None else None
        self.holds: set[MessageHold] = set()
        self.used = clock.monotonic()

    async def take(self, limit: int, wait: float) -> list[MessageHold]:
        async with self._turn:
            found = await self._link.receive_messages(max_message_count=limit, max_wait_time=max(wait, SHORTEST_WAIT))
        holds = [MessageHold(message, self._link, self._clock) for message in found]
        self.holds = {hold for hold in self.holds if hold.is_held}.union(holds)
        if self.holds:
            self.used = self._clock.monotonic()
        return holds

    async def close(self) -> None:
        if self._renewal is not None:
            self._renewal.cancel()
        await self._link.close()

    def abort(self) -> None:
        hang_up(self._wire, wire_of(self._link))

    async def _renew(self) -> None:
        with contextlib.suppress(ServiceBusError):  # the session is lost: its unsettled deliveries come again
            while True:
                await self._clock.rest(RENEW_SECONDS)
                await self._link.session.renew_lock()


class SessionsReceiver:
    """Deliveries of a place that requires sessions. Several sessions are received from at a time, each of them
    exclusively.
    """

    def __init__(self, accept: Callable[[], ServiceBusReceiver], most: int, clock: Clock) -> None:
        self._accept, self._most, self._clock = accept, most, clock
        self._sessions: list[PlaceReceiver] = []
        self._turn = asyncio.Lock()

    async def take(self, limit: int, wait: float) -> list[MessageHold]:
        end = self._clock.monotonic() + wait
        async with self._turn:
            while True:
                found = await self._take_of_each(limit)
                if not found and await self._accept_one():
                    continue
                left = end - self._clock.monotonic()
                if found or left <= 0:
                    return found
                await self._clock.rest(min(left, SHORTEST_WAIT))

    async def close(self) -> None:
        await asyncio.gather(*(session.close() for session in self._sessions), return_exceptions=True)

    def abort(self) -> None:
        for session in self._sessions:
            session.abort()

    async def _take_of_each(self, limit: int) -> list[MessageHold]:
        asked = self._sessions[:limit]
        shares = [session.take(max(1, limit // len(asked)), 0.0) for session in asked]
        answers = await asyncio.gather(*shares, return_exceptions=True)
        found: list[MessageHold] = []
        for session, answer in zip(asked, answers, strict=True):
            if isinstance(answer, BaseException):
                await self._leave(session)  # its lock is lost, or its connection
            else:
                found += answer
        self._sessions = self._sessions[len(asked) :] + [one for one in asked if one in self._sessions]
        for session in [one for one in self._sessions if self._clock.monotonic() - one.used > IDLE_SECONDS]:
            await self._leave(session)
        return found

    async def _accept_one(self) -> bool:
        """Return whether there was one more session. Service Bus reports that there is none as a time-out."""
        if len(self._sessions) >= self._most:
            return False
        link = self._accept()
        try:
            await open_link(link, CONNECT_SECONDS)
        except OperationTimeoutError:
            return False
        self._sessions.append(PlaceReceiver(link, self._clock))
        return True

    async def _leave(self, session: PlaceReceiver) -> None:
        self._sessions = [one for one in self._sessions if one is not session]
        with contextlib.suppress(ServiceBusError):
            await session.close()
        session.abort()


async def open_receiver(
    client: ServiceBusClient, place: str, sessions: int, clock: Clock
) -> PlaceReceiver | SessionsReceiver:
    """Open the link of a place. Its refusal shows whether it requires sessions."""
    link = _link(client, place)
    try:
        await open_link(link, CONNECT_SECONDS)
    except ServiceBusError as error:
        if condition_of(error) != "amqp:not-allowed" or "session" not in str(error):
            raise
        more = {"session_id": NEXT_AVAILABLE_SESSION, "max_wait_time": ACCEPT_SECONDS}
        return SessionsReceiver(lambda: _link(client, place, **more), sessions, clock)
    return PlaceReceiver(link, clock)


def _link(client: ServiceBusClient, place: str, **more: Any) -> ServiceBusReceiver:
    at = place.lower().find(SUBSCRIPTIONS)
    if at < 0:
        return client.get_queue_receiver(place, **more)
    return client.get_subscription_receiver(place[:at], place[at + len(SUBSCRIPTIONS) :], **more)


# -- deliveries ----------------------------------------------------------------------------------


def delivery_of(place: str, hold: MessageHold) -> QueueDelivery:
    message = hold.message
    properties = message.application_properties or {}
    headers = {_text(name).lower(): _text(value) for name, value in properties.items()}
    key = headers.pop(KEY, "")
    return QueueDelivery(
        place=place,
        body=_body(message),
        headers=headers,
        tag=hold,
        key=key or _text(message.message_id or "") or headers.get("ce-id", ""),
        sequence=message.sequence_number,
        times=None if message.delivery_count is None else message.delivery_count + 1,
        until=hold.until,
        content_type=message.content_type or "",
    )


def _body(message: ServiceBusReceivedMessage) -> bytes:
    """The body as bytes. Other senders may have sent an AMQP value: text is taken as it is, anything else as JSON."""
    body = message.body
    if message.body_type == AmqpMessageBodyType.DATA:
        return b"".join(body)
    if isinstance(body, str | bytes):
        return body.encode() if isinstance(body, str) else body
    return msgspec.json.encode(list(body) if message.body_type == AmqpMessageBodyType.SEQUENCE else body)


def _text(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
