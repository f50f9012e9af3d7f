"""HTTP/1.1 on uvicorn's httptools protocol, with limits on headers and an absolute deadline for each request.

A client that sends single bytes resets every per-byte timer. Here the time runs from a request's first byte (or from
the connection, if none comes) to its last, and all connections are checked twice a second. For a pipelined request it
runs from the response to the one before: until then it is not read.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from ..inbound.reply import Reply, problem, retry_after
from .limits import ServerLimits
from .monitoring import Metrics
from .request import raw

__all__ = ["GuardedProtocol", "guarded"]


HEAD, BODY, SERVING, IDLE, REFUSED, LINGERING = "head", "body", "serving", "idle", "refused", "lingering"
IGNORING = (REFUSED, LINGERING)  # further input is discarded
FIRST_REQUEST = 1.0  # seconds for a new connection to send its request while the server shuts down
LINGER = 2.0  # seconds for a client that still sends to read the response
MOST_IGNORED = 4 * 1024 * 1024  # bytes that are read and dropped meanwhile


def guarded(limits: ServerLimits, metrics: Metrics) -> type[GuardedProtocol]:
    """Return the protocol class, which uvicorn instantiates per connection."""
    return type("Guarded", (GuardedProtocol,), {"limits": limits, "metrics": metrics})


class GuardedProtocol(HttpToolsProtocol):
    """One connection. `phase` is what is expected next, `since` its start."""

    limits: ServerLimits
    metrics: Metrics

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.phase = HEAD
        self.since = self.loop.time()
        self._unparsed = 0  # bytes received without completing anything: headers, or endless trailers
        self._stalled_since: float | None = None
        self._delayed_refusal: Reply | None = (
            None  # the refusal of a pipelined request, sent after the earlier responses
        )
        self._shutting_down = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.limits.connections:
            self.metrics.count_refusal("connections")
            transport.write(raw(_too_many_connections()))
            transport.close()  # without lingering, because the limit is exceeded already

    # -- reading ---------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self.phase in IGNORING or self.transport.is_closing():
            self._drop(data)
            return
        self._unparsed += len(data)
        super().data_received(data)
        if self._unparsed > self.limits.head and self.phase in (HEAD, BODY):
            self._refuse("head", _head_too_large(self.limits))

    def on_message_begin(self) -> None:
        if self.phase in IGNORING:
            return
        super().on_message_begin()
        self.phase, self.since = HEAD, self.loop.time()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Ignore trailers: they would be added to headers that were checked before the body."""
        if self.phase == HEAD:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self.phase in IGNORING:
            return
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if size > self.limits.head or len(self.headers) > self.limits.headers:
            self._refuse("head", _head_too_large(self.limits))
            return
        if not self._has_plain_framing():
            self._refuse("malformed", _malformed())
            return
        if self.parser.should_upgrade() and self._has_body():
            self._refuse("malformed", _upgrade_not_supported())
            return
        self._unparsed = 0
        super().on_headers_complete()  # an invalid URL raises here: until then `cycle` is that of the previous request
        self.cycle.transport = CycleTransport(self)  # type: ignore[assignment]
        self.phase = BODY

    def _has_plain_framing(self) -> bool:
        """Whether every proxy agrees on where the body ends: chunked and nothing else, in HTTP/1.1."""
        encodings = [value.strip().lower() for name, value in self.headers if name == b"transfer-encoding"]
        return not encodings or (encodings == [b"chunked"] and self.parser.get_http_version() == "1.1")

    def _has_body(self) -> bool:
        """Whether there is a body. With Upgrade, the parser would read it as the next request."""
        lengths = {value.strip() for name, value in self.headers if name in (b"content-length", b"transfer-encoding")}
        return not lengths <= {b"0"}

    def on_body(self, body: bytes) -> None:
        self._unparsed = 0
        if self.phase == BODY:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._unparsed = 0
        if self.phase == BODY:
            self.phase = SERVING
            super().on_message_complete()

    def _drop(self, data: bytes) -> None:
        self._unparsed += len(data)
        if self._unparsed > MOST_IGNORED:
            self.transport.abort()

    # -- answering -------------------------------------------------------------------------------

    def on_response_complete(self) -> None:
        """As in uvicorn, but without a timer per response, and discarding what the client still sends."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        if self.is_answered_early():
            self._linger()
            return
        self.flow.resume_reading()
        self.since = self.loop.time()
        if self.pipeline:
            cycle, app = self.pipeline.pop()
            self._start_asgi_task(cycle, app)
        elif self._delayed_refusal is not None:
            self._send_and_linger(self._delayed_refusal)
        elif self.phase == SERVING:
            self.phase = IDLE

    def is_answered_early(self) -> bool:
        """Whether the response is complete and the request's body is not."""
        return self.phase == BODY and self.cycle.response_complete

    def _linger(self) -> None:
        """Keep reading for a moment: closing with unread bytes makes the kernel discard the response."""
        self.phase, self.since, self._unparsed = LINGERING, self.loop.time(), 0
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()

    def _refuse(self, reason: str, reply: Reply) -> None:
        """Refuse a request, after the responses to earlier ones: sent before them, it would be taken for one."""
        self.metrics.count_refusal(reason)
        if self._is_behind():
            self._delay_refusal(reply)
        elif self.phase == BODY and self.cycle.response_started:
            self.transport.abort()
        else:
            if self.phase == BODY:  # the handler is told that the client disconnected, and cannot respond
                self.cycle.disconnected = True
                self.cycle.message_event.set()
            self._send_and_linger(reply)

    def _is_behind(self) -> bool:
        """Whether an earlier request on this connection has no response yet."""
        if self.phase == BODY:
            return bool(self.pipeline)  # its own cycle is the last in the pipeline
        return self.cycle is not None and not self.cycle.response_complete

    def _delay_refusal(self, reply: Reply) -> None:
        if self.phase == BODY:
            self.pipeline.popleft()  # itself
        self.phase, self._delayed_refusal, self._unparsed = REFUSED, reply, 0
        self.flow.pause_reading()

    def _send_and_linger(self, reply: Reply) -> None:
        self.transport.write(raw(reply))
        self._linger()

    def send_400_response(self, msg: str) -> None:
        """Called by the parser, unless the request was refused before."""
        if self.phase not in IGNORING:
            self._refuse("malformed", _malformed())

    def pause_writing(self) -> None:
        self._stalled_since = self.loop.time()
        super().pause_writing()

    def resume_writing(self) -> None:
        self._stalled_since = None
        super().resume_writing()

    def shutdown(self) -> None:
        """Called once when the server stops accepting. Requests in progress are answered, then the connection closes.

        A new connection is given time for its first request, which closing at once would break.
        """
        self._shutting_down = True
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.keep_alive = False
        self.check_deadline(self.loop.time())

    # -- time ------------------------------------------------------------------------------------

    def check_deadline(self, now: float) -> None:
        """Close the connection if its time is over. Called twice a second."""
        waited = now - self.since
        if self._stalled_since is not None and now - self._stalled_since > self.limits.deadline:
            self.transport.abort()
        elif self.phase in (HEAD, BODY) and waited > self.limits.deadline and not self._is_behind():
            self._refuse("slow", _too_slow(self.limits))
        elif self._is_idle_too_long(waited):
            self.transport.close()
        elif self.phase == LINGERING and waited > LINGER:
            self.transport.abort()

    def _is_idle_too_long(self, waited: float) -> bool:
        """Whether the connection was idle for too long; during shutdown, sooner."""
        if self.phase == IDLE:
            return self._shutting_down or waited > self.limits.idle
        return self._shutting_down and self.phase == HEAD and not self._unparsed and waited > FIRST_REQUEST


class CycleTransport:
    """The transport as uvicorn's cycle of a request and its response uses it.

    After `Connection: close` and in HTTP/1.0 the cycle closes by itself, before `on_response_complete`, and a client
    that still sends its body would get a reset in place of the response.
    """

    def __init__(self, protocol: GuardedProtocol) -> None:
        self._protocol = protocol
        self.write = protocol.transport.write
        self.is_closing = protocol.transport.is_closing

    def close(self) -> None:
        if not self._protocol.is_answered_early():
            self._protocol.transport.close()


def _too_slow(limits: ServerLimits) -> Reply:
    return problem(
        408,
        "too-slow",
        f"The request was not received within {limits.deadline:g} s.",
        next_move="Send it again without pauses; it is safe.",
    )


def _head_too_large(limits: ServerLimits) -> Reply:
    return problem(
        431,
        "head-too-large",
        f"A request may have at most {limits.headers} headers and {limits.head:,} bytes before its body.",
        next_move="Send fewer or shorter headers.",
    )


def _malformed() -> Reply:
    return problem(400, "malformed", "This is not valid HTTP/1.1.", next_move="Send HTTP/1.1.")


def _upgrade_not_supported() -> Reply:
    return problem(
        400,
        "upgrade-not-supported",
        "A request with a body asks for another protocol (Upgrade); only HTTP/1.1 is supported.",
        next_move="Send it without the Upgrade header; for Java's HttpClient: version(HTTP_1_1).",
    )


def _too_many_connections() -> Reply:
    return problem(
        503,
        "too-many-connections",
        "This server has reached its limit of connections.",
        next_move="Send the same request again; it is safe.",
        headers=[retry_after(1)],
    )
