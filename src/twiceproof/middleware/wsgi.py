"""The WSGI middleware: reads a request, runs the app under a claim, and records its response."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from http import HTTPStatus
from io import BytesIO
from typing import Any

from ..inbound.reply import Reply
from ..operations import block
from . import problems
from .guard import IdempotencyGuard, IdempotencyMiddleware
from .responses import STATE_KEY, AnswerCutShort, AnswerOvertaken, Recording, flask_routing_failed
from .routes import USED_HEADERS, HeldRequest, KeyedRequest, marker_headers

__all__ = ["StartResponse", "WsgiExchange", "WsgiIdempotencyKey", "status_line"]


StartResponse = Callable[..., Any]


def status_line(status: int) -> str:
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return f"{status} Unknown"


def _is_complete_already(app: Iterable[bytes]) -> bool:
    """Whether the response is complete already, so that it can be joined. Django marks its own responses."""
    return isinstance(app, list | tuple) or getattr(app, "streaming", None) is False


class WsgiExchange:
    """The response iterable. It runs to its end even if the client disconnects, because the client will retry."""

    def __init__(
        self, guard: IdempotencyGuard, held: HeldRequest, environ: dict[str, Any], start_response: StartResponse
    ) -> None:
        self._guard = guard
        self._held = held
        self._environ = environ
        self._outer_start = start_response
        self._recording = Recording(held.request.rule.route.largest_answer)
        self._start: tuple[Any, ...] | None = None  # delayed until the first part of the body
        self._started = False
        self._written: deque[bytes] = deque()  # by the legacy `write` of PEP 3333
        self._app: Iterable[bytes] = ()
        self._chunks: Iterator[bytes] = iter(())
        self._single = False  # the next chunk is the last

    def run(self, inner: Callable[..., Iterable[bytes]]) -> Iterable[bytes]:
        self._environ[STATE_KEY] = self._held
        try:
            self._app = inner(self._environ, self._start_response)
            self._chunks = iter(self._app)
            if _is_complete_already(self._app):
                chunks = list(self._chunks)
                self._chunks, self._single = iter([b"".join([*self._written, *chunks])]), True
                self._written.clear()
        except BaseException as error:
            block(self._guard.record_failure(self._held, error))
            self._close_app()
            raise
        return self

    def _start_response(self, status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
        if self._started and exc_info is not None:
            return self._outer_start(status, headers, exc_info)  # too late: the server raises it
        self._recording.start(int(status[:3]), headers)
        if flask_routing_failed(self._recording.status, self._environ):
            self._held.begun = False
        self._start = (status, [*headers, *marker_headers(self._held.request, replayed=False)])
        return self._written.append

    # -- called by the server --------------------------------------------------------------------

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        while not self._held.recorded:
            chunk = self._next_chunk()
            is_end = chunk is None or self._recording.is_complete or self._single
            instead = self._record() if is_end else None
            if isinstance(instead, Reply):
                return self._replaced(instead)
            if chunk:
                self._begin()
                return chunk
        self._begin()
        return next(self._chunks)

    def _next_chunk(self) -> bytes | None:
        """Return None once the response is complete."""
        try:
            chunk = self._written.popleft() if self._written else next(self._chunks, None)
            if chunk is None and self._written:  # written while the app produced its last chunk
                chunk = self._written.popleft()
        except BaseException as error:
            block(self._guard.record_failure(self._held, error))
            raise
        if chunk is not None:
            self._recording.add(chunk)
        return chunk

    def _record(self) -> Reply | None:
        """A client that has the complete response may rely on it, so it is recorded before its end is sent."""
        return block(self._guard.record_answer(self._held, self._recording, self._environ))

    def _begin(self) -> None:
        if self._start is not None:
            start, self._start, self._started = self._start, None, True
            self._outer_start(*start)

    def _replaced(self, reply: Reply) -> bytes:
        """Send this reply instead of the app's response. One that has begun is aborted, so that it looks incomplete."""
        self._chunks = iter(())
        if self._started:
            raise AnswerOvertaken
        self._start = (status_line(reply.status), list(reply.headers))
        self._begin()
        return reply.body

    def close(self) -> None:
        """Called by the server at the end, and when the client disconnects: then the rest is still recorded."""
        try:
            while not self._held.recorded:
                if self._next_chunk() is None or self._recording.is_complete:
                    self._record()
                elif self._recording.is_over_limit:  # an endless stream would be read for ever
                    block(
                        self._guard.record_failure(
                            self._held, AnswerCutShort("the client disconnected during a very long response")
                        )
                    )
        finally:
            self._close_app()

    def _close_app(self) -> None:
        close = getattr(self._app, "close", None)
        if close is not None:
            close()


Environ = dict[str, Any]
WsgiApp = Callable[[Environ, Any], Iterable[bytes]]

NAMES = {
    name: "CONTENT_TYPE" if name == "content-type" else "HTTP_" + name.upper().replace("-", "_")
    for name in USED_HEADERS
}


class WsgiIdempotencyKey(IdempotencyMiddleware[WsgiApp, Environ]):
    """`flask_app.wsgi_app = WsgiIdempotencyKey(flask_app.wsgi_app, app=app)`, or around any WSGI app."""

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        # Upper case: servers pass it on as it was sent, and Flask and Django accept `patch` for PATCH.
        method = environ["REQUEST_METHOD"].upper()
        rule, path = self._guard.find_rule(method, _path(environ), _text(environ.get("SCRIPT_NAME", "")))
        if rule is None:
            return self._inner(environ, start_response)
        headers = {name: environ[variable] for name, variable in NAMES.items() if variable in environ}
        query = environ.get("QUERY_STRING", "")
        request = self._guard.reader.read(rule, method, path, query, headers, lambda: self._caller(environ, headers))
        if request is None:
            return self._inner(environ, start_response)
        if isinstance(request, Reply):
            return _answer(start_response, request)
        body = _read(environ, rule.route.largest_body)
        if isinstance(body, Reply):
            return _answer(start_response, body)
        return self._run(request, body, environ, start_response)

    def _run(
        self, request: KeyedRequest, body: bytes, environ: Environ, start_response: StartResponse
    ) -> Iterable[bytes]:
        entered = block(self._guard.enter(request, body))
        if isinstance(entered, Reply):
            return _answer(start_response, entered)
        environ["wsgi.input"] = BytesIO(body)
        environ["CONTENT_LENGTH"] = str(len(body))
        if entered is None:
            return self._inner(environ, start_response)
        return WsgiExchange(self._guard, entered, environ, start_response).run(self._inner)


def _path(environ: Environ) -> str:
    return _text(environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", "")) or "/"


def _text(path: str) -> str:
    """Decode a path: WSGI passes its bytes as Latin-1."""
    return path.encode("latin-1").decode("utf-8", "surrogateescape")


def _read(environ: Environ, most: int) -> bytes | Reply:
    announced = environ.get("CONTENT_LENGTH") or ""
    if announced.isdecimal():
        length = int(announced)
        if length > most:
            return problems.too_large(most)
        body: bytes = environ["wsgi.input"].read(length)
        return body if len(body) == length else problems.cut_short()
    if not environ.get("wsgi.input_terminated"):  # without a length or this flag there is no body
        return b""
    body = environ["wsgi.input"].read(most + 1)
    return body if len(body) <= most else problems.too_large(most)


def _answer(start_response: StartResponse, reply: Reply) -> Iterable[bytes]:
    headers = [pair for pair in reply.headers if pair[0] != "connection"]  # set by the server, by PEP 3333
    start_response(status_line(reply.status), headers)
    return [reply.body]
