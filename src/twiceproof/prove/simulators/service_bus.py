"""Azure Service Bus, as far as its documents describe it: queues, topics and sessions over AMQP 1.0.

It is ours. It does at once what the service may take time for, keeps everything in memory, and says at once that no
session is free, where the service waits. Locks are kept when their receiver hangs up, as the service keeps them.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import threading
import time
import uuid
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, quote, unquote_plus, urlsplit

from msgspec import Struct

from .amqp import Described, Symbol, Timestamp, ULong, encoded, sections
from .amqp_connection import AmqpConnection, AmqpLink, AmqpRefusal
from .service_bus_queues import (
    APPLICATION,
    DATA,
    MESSAGE_ID,
    PROPERTIES,
    SESSION_FILTER,
    VALUE,
    SimulatedMessage,
    SimulatedQueue,
    message_of,
    message_refusal,
    payload_of,
    settings_entry,
)

__all__ = ["ServiceBusSimulator"]

POLICY = "RootManageSharedAccessKey"
KEY = "a2V5IG9mIHRoZSBzaW11bGF0b3I="
DEAD = "/$DeadLetterQueue"
MANAGEMENT = "/$management"
BATCH = 0x80013700  # the form of a message that has several in it
ACCEPTED, REJECTED, RELEASED, MODIFIED = 0x24, 0x25, 0x26, 0x27

NEEDS_SESSIONS = "It is not possible for an entity that requires sessions to create a non-sessionful message receiver."


class ServiceBusSimulator:
    """`with ServiceBusSimulator() as simulator:` serves on `simulator.port`, without TLS, to those who have `key`.

    `create_queue` and `create_topic` make entities. `refuse` are conditions that the next messages are rejected with.
    """

    def __init__(self, key: str = KEY) -> None:
        self.key = key
        self.queues: dict[str, SimulatedQueue] = {}
        self.topics: dict[str, list[SimulatedQueue]] = {}
        self.refuse: list[AmqpRefusal] = []
        self.port = 0
        self._replies: dict[tuple[AmqpConnection, str], AmqpLink] = {}
        self._writers: set[asyncio.StreamWriter] = set()

    # -- what its owner does ---------------------------------------------------------------------

    @property
    def url(self) -> str:
        return f"servicebus+amqp://{POLICY}:{quote(self.key, safe='')}@127.0.0.1:{self.port}"

    def create_queue(self, name: str, **settings: Any) -> SimulatedQueue:
        queue = self.queues[name.lower()] = SimulatedQueue(name, **settings)
        queue.dead = self.queues[f"{name}{DEAD}".lower()] = SimulatedQueue(f"{name}{DEAD}")
        return queue

    def create_topic(self, name: str, *subscriptions: str, **settings: Any) -> list[SimulatedQueue]:
        """Duplicates are detected by the topic: here by each of its subscriptions, which is the same."""
        made = [self.create_queue(f"{name}/Subscriptions/{one}", **settings) for one in subscriptions]
        self.topics[name.lower()] = made
        return made

    def start(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._server = self._loop.run_until_complete(asyncio.start_server(self._on_client, "127.0.0.1", self.port))
        self.port = self._server.sockets[0].getsockname()[1]
        self._thread = threading.Thread(target=self._loop.run_forever, name="service-bus", daemon=True)
        self._thread.start()
        return self

    def close(self) -> None:
        """Close all connections. Messages stay, for another start."""
        if self._loop.is_closed():
            return
        asyncio.run_coroutine_threadsafe(self._hang_up(), self._loop).result(5)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def _hang_up(self) -> None:
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*tasks, return_exceptions=True)  # they end with their connections

    async def _on_client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            begun = await reader.readexactly(4)
            if begun == b"GET ":
                await self._tell_settings(reader, writer)
            else:
                await AmqpConnection(self, reader, writer, begun).run()
        self._writers.discard(writer)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    async def _tell_settings(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """The management over HTTP: the settings of one entity, as an Atom entry."""
        request = (await reader.readuntil(b"\r\n\r\n")).decode()
        target = request.split(" ", 1)[0]
        tokens = [line.partition(": ")[2] for line in request.splitlines() if line.lower().startswith("authorization:")]
        name = urlsplit(target).path.strip("/").lower()
        status, body = 401, ""
        if tokens and self._is_signed(tokens[0]):
            status, body = 200, settings_entry(name, self.queues.get(name), self.topics.get(name))
        data = body.encode()
        head = f"HTTP/1.1 {status} X\r\nContent-Type: application/atom+xml\r\nContent-Length: {len(data)}\r\n"
        writer.write(f"{head}Connection: close\r\n\r\n".encode() + data)
        await writer.drain()

    # -- the host of the links -------------------------------------------------------------------

    def attach(self, link: AmqpLink) -> AmqpRefusal | None:
        address = _entity(link.address)
        if address == "$cbs" or address.endswith(MANAGEMENT):
            if link.sends:
                self._replies[link.connection, address] = link
            return None
        if not link.connection.authorized:
            return AmqpRefusal("amqp:unauthorized-access", "Unauthorized access. 'Send' or 'Listen' claim is required.")
        if link.sends:
            return self._attach_receiver(link, self.queues.get(address))
        if address in self.queues or address in self.topics:
            return None
        return _not_found(address)

    def _attach_receiver(self, link: AmqpLink, queue: SimulatedQueue | None) -> AmqpRefusal | None:
        if queue is None:
            return _not_found(link.address)
        if queue.sessions and SESSION_FILTER not in link.filters:
            return AmqpRefusal("amqp:not-allowed", NEEDS_SESSIONS)
        if queue.sessions:
            session = queue.free_session()
            if session is None:
                return AmqpRefusal("com.microsoft:timeout", "The operation did not complete: no session is free.")
            queue.taken_sessions[session] = link
            link.use_filter(SESSION_FILTER, session)
            link.filters[SESSION_FILTER] = session
        queue.receivers.append(link)
        return None

    def detached(self, link: AmqpLink) -> None:
        """Locks of messages last until their time is over; those of a session end with its link."""
        self._replies = {at: one for at, one in self._replies.items() if one is not link}
        queue = self.queues.get(_entity(link.address))
        if queue is None or not link.sends:
            return
        queue.receivers = [one for one in queue.receivers if one is not link]
        queue.taken_sessions = {name: one for name, one in queue.taken_sessions.items() if one is not link}
        if queue.sessions:
            for message in [one for one in queue.locked.values() if one.holder is link]:
                self._unlock(queue, message, counts=False)

    def credited(self, link: AmqpLink) -> None:
        queue = self.queues.get(_entity(link.address))
        if queue is not None:
            self._deliver(queue)

    def receive(self, link: AmqpLink, payload: bytes, form: int) -> AmqpRefusal | None:
        address = _entity(link.address)
        if address == "$cbs":
            self._put_token(link, payload)
        elif address.endswith(MANAGEMENT):
            self._manage(link, address, payload)
        elif self.refuse:
            return self.refuse.pop(0)
        else:
            return self._store(address, payload, form)
        return None

    def _store(self, address: str, payload: bytes, form: int) -> AmqpRefusal | None:
        whole = [value for code, value, _ in sections(payload) if code == DATA] if form == BATCH else [payload]
        queues = self.topics.get(address) or [self.queues[address]]
        for queue in queues:
            refusal = message_refusal(queue, whole, len(payload))
            if refusal is not None:
                return refusal
        for queue in queues:
            for one in whole:
                message = message_of(one)
                if not queue.knows(message.message_id):
                    queue.store(message)
            self._deliver(queue)
        return None

    def settle(self, link: AmqpLink, tag: bytes, state: Described | None) -> AmqpRefusal | None:
        queue = self.queues[_entity(link.address)]
        return self._settle(queue, tag, state)

    def _settle(self, queue: SimulatedQueue, lock: bytes, state: Described | None) -> AmqpRefusal | None:
        message = queue.locked.get(lock)
        if message is None:
            return AmqpRefusal("com.microsoft:message-lock-lost", "The lock supplied is invalid.")
        code = ACCEPTED if state is None else int(state.code)
        if code in (RELEASED, MODIFIED):
            self._unlock(queue, message, counts=code == MODIFIED)
        else:
            self._end(queue, message)
            if code == REJECTED:
                self._bury(queue, message)
        return None

    # -- messages --------------------------------------------------------------------------------

    def _deliver(self, queue: SimulatedQueue) -> None:
        for link in list(queue.receivers):
            while link.credit > 0 and (message := queue.next_for(link)) is not None:
                token = uuid.uuid4()
                message.lock, message.holder = token.bytes_le, link
                queue.locked[message.lock] = message
                self._keep_for(queue, message)
                link.send(message.lock, payload_of(message, time.time() + queue.lock_seconds))

    def _keep_for(self, queue: SimulatedQueue, message: SimulatedMessage) -> None:
        if message.expiry is not None:
            message.expiry.cancel()
        message.expiry = self._loop.call_later(queue.lock_seconds, self._lapse, queue, message, message.lock)

    def _lapse(self, queue: SimulatedQueue, message: SimulatedMessage, lock: bytes) -> None:
        if lock in queue.locked and not queue.sessions:
            self._unlock(queue, message, counts=True)

    def _end(self, queue: SimulatedQueue, message: SimulatedMessage) -> None:
        queue.locked.pop(message.lock, None)
        if message.expiry is not None:
            message.expiry.cancel()
        message.holder = message.expiry = None

    def _unlock(self, queue: SimulatedQueue, message: SimulatedMessage, *, counts: bool) -> None:
        self._end(queue, message)
        message.deliveries += counts
        if message.deliveries >= queue.max_deliveries:
            self._bury(queue, message)
        else:
            queue.store(message)
            self._deliver(queue)

    def _bury(self, queue: SimulatedQueue, message: SimulatedMessage) -> None:
        if queue.dead is not None:
            queue.dead.store(message)
            self._deliver(queue.dead)

    # -- requests --------------------------------------------------------------------------------

    def _put_token(self, link: AmqpLink, payload: bytes) -> None:
        request = _request_of(payload)
        good = self._is_signed(str(request.value))
        if good:
            link.connection.authorized.add(str(request.properties.get("name")))
        text = "Accepted" if good else "InvalidSignature: The token has an invalid signature."
        self._reply(link, "$cbs", request, {"status-code": 202 if good else 401, "status-description": text})

    def _manage(self, link: AmqpLink, address: str, payload: bytes) -> None:
        queue = self.queues[address.removesuffix(MANAGEMENT)]
        request = _request_of(payload)
        operation = str(request.properties.get("operation"))
        held = [queue.locked.get(token.bytes_le) for token in request.value.get("lock-tokens", ())]
        until = Timestamp((time.time() + queue.lock_seconds) * 1000)
        if operation == "com.microsoft:renew-session-lock":
            self._reply(link, address, request, {"statusCode": 200}, {"expiration": until})
        elif operation != "com.microsoft:renew-lock" or not all(held):
            gone = {"statusCode": 410, "errorCondition": Symbol("com.microsoft:message-lock-lost")}
            self._reply(link, address, request, {**gone, "statusDescription": "The lock supplied is invalid."})
        else:
            for message in held:
                self._keep_for(queue, message)  # type: ignore[arg-type]
            self._reply(link, address, request, {"statusCode": 200}, {"expirations": [until for _ in held]})

    def _reply(
        self, link: AmqpLink, address: str, request: _Request, status: dict[str, Any], value: Any = None
    ) -> None:
        properties: list[Any] = [None] * 5 + [request.message_id]
        parts = ((PROPERTIES, properties), (APPLICATION, status), (VALUE, value))
        payload = b"".join(encoded(Described(ULong(code), part)) for code, part in parts)
        answering = self._replies.get((link.connection, address))
        if answering is not None:
            answering.send(uuid.uuid4().bytes, payload)

    def _is_signed(self, token: str) -> bool:
        """A shared access signature: of the resource and the time until which it is valid, by the key."""
        fields = {name: values[0] for name, values in parse_qs(token.partition(" ")[2]).items()}
        raw = dict(part.split("=", 1) for part in token.partition(" ")[2].split("&") if "=" in part)
        text = f"{raw.get('sr', '')}\n{raw.get('se', '')}".encode()
        made = base64.b64encode(hmac.new(self.key.encode(), text, hashlib.sha256).digest()).decode()
        given = unquote_plus(raw.get("sig", "")) or fields.get("sig", "")
        return hmac.compare_digest(made, given.replace(" ", "+"))


class _Request(Struct):
    message_id: Any
    properties: dict[str, Any]
    value: Any


def _request_of(payload: bytes) -> _Request:
    found = {code: value for code, value, _ in sections(payload)}
    return _Request(found[PROPERTIES][MESSAGE_ID], found.get(APPLICATION, {}), found.get(VALUE))


def _entity(address: str) -> str:
    """The entity's path in an address, which may be a whole URL. Names are not case-sensitive."""
    path = address.split("://", 1)[-1].partition("/")[2] if "://" in address else address
    return path.strip("/").lower()


def _not_found(address: str) -> AmqpRefusal:
    return AmqpRefusal("amqp:not-found", f"The messaging entity '{_entity(address)}' could not be found.")
