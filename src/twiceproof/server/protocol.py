"""HTTP/1.1 on uvicorn's httptools protocol, with what that lacks: limits on heads, and an absolute time to be read by.

A sender that drips bytes keeps every per-byte timer happy. Here the time runs from a request's first byte (or from the
connection, if none comes) to its last, and one look at all connections, twice a second, cuts off whoever is late. For a
request that was sent behind another one, it runs from the answer to that: until then it is not read, and not refused.
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
DEAF = (REFUSED, LINGERING)  # whatever else comes is not listened to
FIRST_WORD = 1.0  # seconds after connecting in which a caller's request comes, where the server is about to leave
LINGER = 2.0  # seconds in which a caller that still sends can read our answer
MOST_IGNORED = 4 * 1024 * 1024  # bytes that are read and dropped meanwhile


def guarded(limits: ServerLimits, metrics: Metrics) -> type[GuardedProtocol]:
    """The class that uvicorn makes one of per connection."""
    return type("Guarded", (GuardedProtocol,), {"limits": limits, "metrics": metrics})


class GuardedProtocol(HttpToolsProtocol):
    """`phase` is what is expected next, `since` since when."""

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
        self._unheard = 0  # bytes that came without completing anything: a head, or a trailer without end
        self._stalled_since: float | None = None
        self._withheld: Reply | None = None  # the refusal of a request whose turn to be answered has not come
        self._leaving = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.limits.connections:
            self.metrics.refused("connections")
            transport.write(raw(_full()))
            transport.close()  # without lingering: it is one too many already

    # -- reading ---------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self.phase in DEAF or self.transport.is_closing():
            self._drop(data)
            return
        self._unheard += len(data)
        super().data_received(data)
        if self._unheard > self.limits.head and self.phase in (HEAD, BODY):
            self._refuse("head", _head_too_large(self.limits))

    def on_message_begin(self) -> None:
        if self.phase in DEAF:
            return
        super().on_message_begin()
        self.phase, self.since = HEAD, self.loop.time()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Trailers are left out: what comes behind a body would stand among what was looked at before it."""
        if self.phase == HEAD:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self.phase in DEAF:
            return
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if size > self.limits.head or len(self.headers) > self.limits.headers:
            self._refuse("head", _head_too_large(self.limits))
            return
        if not self._ends_plainly():
            self._refuse("malformed", _malformed())
            return
        if self.parser.should_upgrade() and self._has_body():
            self._refuse("malformed", _upgrading())
            return
        self._unheard = 0
        super().on_headers_complete()  # an address that is none breaks it: until then `cycle` is the request's before
        self.phase = BODY

    def _ends_plainly(self) -> bool:
        """Where a body ends must be the same for us and for every proxy: chunked and nothing else, in HTTP/1.1."""
        said = [value.strip().lower() for name, value in self.headers if name == b"transfer-encoding"]
        return not said or (said == [b"chunked"] and self.parser.get_http_version() == "1.1")

    def _has_body(self) -> bool:
        """With Upgrade the parser leaves a body out, and takes its bytes for the next request."""
        lengths = {value.strip() for name, value in self.headers if name in (b"content-length", b"transfer-encoding")}
        return not lengths <= {b"0"}

    def on_body(self, body: bytes) -> None:
        self._unheard = 0
        if self.phase == BODY:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._unheard = 0
        if self.phase == BODY:
            self.phase = SERVING
            super().on_message_complete()

    def _drop(self, data: bytes) -> None:
        self._unheard += len(data)
        if self._unheard > MOST_IGNORED:
            self.transport.abort()

    # -- answering -------------------------------------------------------------------------------

    def on_response_complete(self) -> None:
        """As uvicorn has it, without a timer per answer; and a caller that still sends is not listened to."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        if self.phase == BODY and self.cycle.response_complete:
            self._linger()
            return
        self.flow.resume_reading()
        self.since = self.loop.time()
        if self.pipeline:
            cycle, app = self.pipeline.pop()
            self._start_asgi_task(cycle, app)
        elif self._withheld is not None:
            self._say(self._withheld)
        elif self.phase == SERVING:
            self.phase = IDLE

    def _linger(self) -> None:
        """Closed at once, with bytes unread, the kernel would take our answer back."""
        self.phase, self.since, self._unheard = LINGERING, self.loop.time(), 0
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()

    def _refuse(self, reason: str, reply: Reply) -> None:
        """In its turn: before the answers to earlier requests, it would be taken for one of them."""
        self.metrics.refused(reason)
        if self._is_behind():
            self._withhold(reply)
        elif self.phase == BODY and self.cycle.response_started:
            self.transport.abort()
        else:
            if self.phase == BODY:  # who works on it hears that nobody is there, and has no second word
                self.cycle.disconnected = True
                self.cycle.message_event.set()
            self._say(reply)

    def _is_behind(self) -> bool:
        """Whether what is being read was sent behind a request that has no answer yet."""
        if self.phase == BODY:
            return bool(self.pipeline)  # its own cycle is the last one there
        return self.cycle is not None and not self.cycle.response_complete

    def _withhold(self, reply: Reply) -> None:
        if self.phase == BODY:
            self.pipeline.popleft()  # itself
        self.phase, self._withheld, self._unheard = REFUSED, reply, 0
        self.flow.pause_reading()

    def _say(self, reply: Reply) -> None:
        self.transport.write(raw(reply))
        self._linger()

    def send_400_response(self, msg: str) -> None:
        """By the parser, of what we may have refused before it did: then there is nothing left to say."""
        if self.phase not in DEAF:
            self._refuse("malformed", _malformed())

    def pause_writing(self) -> None:
        self._stalled_since = self.loop.time()
        super().pause_writing()

    def resume_writing(self) -> None:
        self._stalled_since = None
        super().resume_writing()

    def shutdown(self) -> None:
        """Told once, when nobody new is let in any more. What has begun is answered, and the connection ends with that.

        A caller that has just connected has its request on the way: closed at once, it would be broken.
        """
        self._leaving = True
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.keep_alive = False
        self.look(self.loop.time())

    # -- time ------------------------------------------------------------------------------------

    def look(self, now: float) -> None:
        """Whether this connection's time is over. Called for each of them, twice a second."""
        waited = now - self.since
        if self._stalled_since is not None and now - self._stalled_since > self.limits.deadline:
            self.transport.abort()
        elif self.phase in (HEAD, BODY) and waited > self.limits.deadline and not self._is_behind():
            self._refuse("slow", _too_slow(self.limits))
        elif self._is_done(waited):
            self.transport.close()
        elif self.phase == LINGERING and waited > LINGER:
            self.transport.abort()

    def _is_done(self, waited: float) -> bool:
        """Nobody has said anything for so long that nothing more is expected: earlier, where the server leaves."""
        if self.phase == IDLE:
            return self._leaving or waited > self.limits.idle
        return self._leaving and self.phase == HEAD and not self._unheard and waited > FIRST_WORD


def _too_slow(limits: ServerLimits) -> Reply:
    return problem(
        408,
        "too-slow",
        f"The request was not here within {limits.deadline:g} s.",
        next_move="Send it again, in one go; it is safe.",
    )


def _head_too_large(limits: ServerLimits) -> Reply:
    return problem(
        431,
        "head-too-large",
        f"A request may have {limits.headers} headers and {limits.head:,} bytes in all before its body.",
        next_move="Send fewer or shorter headers.",
    )


def _malformed() -> Reply:
    return problem(400, "malformed", "This is not HTTP as it is spoken here.", next_move="Send HTTP/1.1.")


def _upgrading() -> Reply:
    return problem(
        400,
        "upgrading",
        "A request with a body asks for another protocol (Upgrade), and here is only HTTP/1.1.",
        next_move="Send it without the Upgrade header; for Java's HttpClient: version(HTTP_1_1).",
    )


def _full() -> Reply:
    return problem(
        503,
        "full",
        "This server has as many connections as it takes.",
        next_move="Send the same request again; it is safe.",
        headers=[retry_after(1)],
    )
