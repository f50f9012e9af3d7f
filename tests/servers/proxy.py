"""A TCP proxy for faults: lose a reply, delay, refuse, hold, cut, poison — on command, and the same every time."""

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Coroutine
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from tests.servers.address import free_port, via
from tests.servers.toxics import Toxic, Way

AFTERLIFE = 5.0  # how long a server may go on answering after its client was reset
CHUNK = 65536


@dataclass
class Counters:
    """What the proxy has done so far."""

    connections: int = 0
    replies_dropped: int = 0
    connections_cut: int = 0


@dataclass(eq=False)
class _Link:
    """One client and its connection to the server."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    doomed: bool = False

    def reset_client(self) -> None:
        """RST rather than FIN, so that no client can take it for an orderly end."""
        with contextlib.suppress(OSError):
            linger = struct.pack("ii", 1, 0)
            self.client.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.client.transport.abort()

    def reset(self) -> None:
        self.reset_client()
        self.server.transport.abort()


@dataclass
class _Order:
    """Lose the reply to the request that carries `match` (None: to whatever is sent next)."""

    match: bytes | None
    skip: int
    tails: dict[_Link, bytes] = field(default_factory=dict)  # a match may span two reads

    def met_by(self, link: _Link, data: bytes) -> bool:
        if self.match is None:
            found = 1
        else:
            sent = self.tails.get(link, b"") + data
            found = sent.count(self.match)
            self.tails[link] = sent[max(0, len(sent) - len(self.match) + 1) :]
        self.skip -= found
        return self.skip < 0


class FaultProxy:
    """Forwards `host:port` to a server, from a thread of its own."""

    host = "127.0.0.1"

    def __init__(self, target_host: str, target_port: int) -> None:
        self.target = (target_host, target_port)
        self.port = 0
        self.counters = Counters()
        self.delay = 0.0  # seconds to hold back each piece of a reply
        self._order: _Order | None = None
        self._toxic: Toxic | None = None
        self._links: set[_Link] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener: asyncio.Server | None = None
        self._requests_flow, self._replies_flow = asyncio.Event(), asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-proxy", daemon=True)

    def start(self) -> Self:
        self._thread.start()
        self.resume()
        self.accept()
        return self

    def url(self, original: str) -> str:
        """The same URL or DSN, by way of the proxy."""
        return via(original, self.host, self.port)

    def drop_next_reply(self, match: bytes | None = None, *, skip: int = 0) -> None:
        """Lose one reply: the request reaches the server, its answer is swallowed, the client is reset.

        Meant is the first request, on any connection, that carries `match`, after `skip` of them have
        passed. For a client that waits for each reply, the work is done by the time it sees the reset.
        """
        self._order = _Order(match, skip)

    def refuse(self) -> None:
        """New connections get ECONNREFUSED; those open stay. `accept()` ends it."""
        self._call(self._stop_listening())

    def accept(self) -> None:
        self._call(self._listen())

    def hold(self, *, requests: bool = True, replies: bool = True) -> None:
        """Half-open: connections stay, and nothing moves. With `requests=False` only the answers hang."""
        self._call(self._set_flow(not requests, not replies))

    def resume(self) -> None:
        self._call(self._set_flow(True, True))

    def cut(self) -> None:
        """Reset every open connection now."""
        self._call(self._cut())

    def arm(self, toxic: Toxic) -> None:
        """From now on, until `disarm()`, this happens to the bytes of the connections that it harms."""
        self._call(self._arm(toxic))

    def disarm(self) -> None:
        """Whatever was ordered and has not happened is called off as well."""
        self._order = None
        self._call(self._arm(None))

    def lead_to(self, host: str, port: int) -> None:
        """Another server has taken over this address: new connections reach it, those open are reset."""
        self.target = (host, port)
        self.cut()

    def close(self) -> None:
        if self._thread.is_alive():
            self._call(self._shut())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(10)
        self._loop.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _call(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    async def _set_flow(self, requests: bool, replies: bool) -> None:
        for event, flows in ((self._requests_flow, requests), (self._replies_flow, replies)):
            (event.set if flows else event.clear)()

    async def _listen(self) -> None:
        if self._listener is None:
            self.port = self.port or free_port()
            self._listener = await asyncio.start_server(self._serve, self.host, self.port)

    async def _stop_listening(self) -> None:
        if self._listener is not None:
            # What was just accepted is let in first: asyncio forgets to close a connection whose server is closed.
            for sock in self._listener.sockets:
                self._loop.remove_reader(sock.fileno())
            await asyncio.sleep(0.001)
            self._listener.close()  # not wait_closed(): from 3.12 on that waits for the open connections
            self._listener = None

    async def _cut(self) -> None:
        for link in self._links:
            self.counters.connections_cut += 1
            link.reset()

    async def _arm(self, toxic: Toxic | None) -> None:
        if self._toxic is not None:
            self._toxic.disarm()
        self._toxic = toxic
        if toxic is not None:
            for link in self._links:
                toxic.meet(link)

    async def _shut(self) -> None:
        await self._stop_listening()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks)
        await asyncio.sleep(0.01)  # transports close their sockets in the next turns of the loop

    async def _serve(self, from_client: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        # A broken connection is our trade, and asyncio would log a cancelled handler as an error.
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await self._forward(from_client, client)
        client.transport.abort()
        self._tasks.discard(task)

    async def _forward(self, from_client: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        from_server, server = await asyncio.open_connection(*self.target)
        link = _Link(client, server)
        self._links.add(link)
        if self._toxic is not None:
            self._toxic.greet(link)
        self.counters.connections += 1
        requests = asyncio.ensure_future(self._pass_requests(from_client, link))
        try:
            await self._pass_replies(from_server, link)
            client.close()
            await client.wait_closed()
        finally:
            requests.cancel()
            self._links.discard(link)
            server.transport.abort()  # before anything is awaited: this task may be cancelled while it waits
            await asyncio.gather(requests, return_exceptions=True)

    async def _pass_requests(self, source: asyncio.StreamReader, link: _Link) -> None:
        try:
            while data := await source.read(CHUNK):
                await self._requests_flow.wait()
                if self._order and self._order.met_by(link, data):
                    link.doomed, self._order = True, None  # before it is sent, or the reply could be first
                await self._carry(link, "request", data)
            link.server.write_eof()
        except OSError:
            if not link.doomed:
                link.server.transport.abort()  # pass the client's reset on, or its session would live on

    async def _pass_replies(self, source: asyncio.StreamReader, link: _Link) -> None:
        while data := await source.read(CHUNK):
            if link.doomed:
                await self._lose_reply(source, link)
                return
            await asyncio.sleep(self.delay)
            await self._replies_flow.wait()
            await self._carry(link, "reply", data)

    async def _carry(self, link: _Link, way: Way, data: bytes) -> None:
        writer = link.server if way == "request" else link.client

        async def send(piece: bytes) -> None:
            writer.write(piece)
            await writer.drain()

        if self._toxic is not None and self._toxic.harms(link):
            await self._toxic.carry(link, way, data, send)
        else:
            await send(data)

    async def _lose_reply(self, source: asyncio.StreamReader, link: _Link) -> None:
        """The server's side ends by FIN: an RST could throw away a request that it has not read yet."""
        self.counters.replies_dropped += 1
        link.reset_client()
        link.server.write_eof()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(AFTERLIFE):
                while await source.read(CHUNK):
                    pass
