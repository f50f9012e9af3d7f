"""WSGI middleware."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from http import HTTPStatus
from io import BytesIO
from typing import Any

from ..inbound.reply import Reply
from ..operations import block
from . import problems
from .guard import IdempotencyGuard, RequestLedger
from .responses import AnswerCutShort, AnswerOvertaken, Recording
from .routes import LOOKED_AT, HeldRequest, KeyedRequest, Route, Who, marks
from .status_policy import MARK, flask_said_no

__all__ = ["StartResponse", "WsgiExchange", "WsgiIdempotencyKey", "status_line"]


StartResponse = Callable[..., Any]


def status_line(status: int) -> str:
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return f"{status} Unknown"


def _is_at_hand(app: Iterable[bytes]) -> bool:
    """Whether all of it is there already, and nothing is lost by waiting for it. Django says so of its responses."""
    return isinstance(app, list | tuple) or getattr(app, "streaming", None) is False


class WsgiExchange:
    """What the server iterates over. Carried to its end also when the client has gone: it will come back and ask."""

    def __init__(
        self, door: IdempotencyGuard, turn: HeldRequest, environ: dict[str, Any], start_response: StartResponse
    ) -> None:
        self._door = door
        self._turn = turn
        self._environ = environ
        self._start_on = start_response
        self._recording = Recording(turn.visit.rule.route.largest_answer)
        self._start: tuple[Any, ...] | None = None  # held back until its body comes
        self._started = False
        self._written: deque[bytes] = deque()  # by the old `write` of PEP 3333
        self._app: Iterable[bytes] = ()
        self._chunks: Iterator[bytes] = iter(())
        self._single = False  # the next chunk is the last

    def run(self, inner: Callable[..., Iterable[bytes]]) -> Iterable[bytes]:
        self._environ[MARK] = self._turn
        try:
            self._app = inner(self._environ, self._start_response)
            self._chunks = iter(self._app)
            if _is_at_hand(self._app):
                chunks = list(self._chunks)
                self._chunks, self._single = iter([b"".join([*self._written, *chunks])]), True
                self._written.clear()
        except BaseException as error:
            block(self._door.give_up(self._turn, error))
            self._close_app()
            raise
        return self

    def _start_response(self, status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
        if self._started and exc_info is not None:
            return self._start_on(status, headers, exc_info)  # too late: the server raises it
        self._recording.start(int(status[:3]), headers)
        if flask_said_no(self._recording.status, self._environ):
            self._turn.begun = False
        self._start = (status, [*headers, *marks(self._turn.visit, replayed=False)])
        return self._written.append

    # -- by the server ---------------------------------------------------------------------------

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        while not self._turn.left:
            chunk = self._next_chunk()
            is_end = chunk is None or self._recording.whole or self._single
            instead = self._leave() if is_end else None
            if isinstance(instead, Reply):
                return self._replaced(instead)
            if chunk:
                self._begin()
                return chunk
        self._begin()
        return next(self._chunks)

    def _next_chunk(self) -> bytes | None:
        """None: the answer is complete."""
        try:
            chunk = self._written.popleft() if self._written else next(self._chunks, None)
            if chunk is None and self._written:  # written while the app made its last chunk
                chunk = self._written.popleft()
        except BaseException as error:
            block(self._door.give_up(self._turn, error))
            raise
        if chunk is not None:
            self._recording.add(chunk)
        return chunk

    def _leave(self) -> Reply | None:
        """Whoever has the whole answer may rely on it: so it is on record before its end is passed on."""
        return block(self._door.leave(self._turn, self._recording, self._environ))

    def _begin(self) -> None:
        if self._start is not None:
            start, self._start, self._started = self._start, None, True
            self._start_on(*start)

    def _replaced(self, reply: Reply) -> bytes:
        """Instead of an answer that does not count. One that has begun is broken off: nobody must take it for whole."""
        self._chunks = iter(())
        if self._started:
            raise AnswerOvertaken
        self._start = (status_line(reply.status), list(reply.headers))
        self._begin()
        return reply.body

    def close(self) -> None:
        """Called by the server at the end, and when the client has hung up: then the rest is still recorded."""
        try:
            while not self._turn.left:
                if self._next_chunk() is None or self._recording.whole:
                    self._leave()
                elif self._recording.full:  # a stream without end would be heard for ever
                    block(self._door.give_up(self._turn, AnswerCutShort("the client hung up in a very long answer")))
        finally:
            self._close_app()

    def _close_app(self) -> None:
        close = getattr(self._app, "close", None)
        if close is not None:
            close()


Environ = dict[str, Any]
WsgiApp = Callable[[Environ, Any], Iterable[bytes]]

NAMES = {
    name: "CONTENT_TYPE" if name == "content-type" else "HTTP_" + name.upper().replace("-", "_") for name in LOOKED_AT
}


class WsgiIdempotencyKey:
    """`flask_app.wsgi_app = WsgiIdempotencyKey(flask_app.wsgi_app, app=app)`, or around any WSGI app."""

    def __init__(
        self,
        inner: WsgiApp,
        /,
        *,
        app: RequestLedger,
        routes: Iterable[Route | str] | None = None,
        principal: Callable[[Environ], Who] | None = None,
        anonymous: str | None = None,
        secret: str | bytes = b"",
    ) -> None:
        self._inner = inner
        self._door = IdempotencyGuard(app, routes=routes, anonymous=anonymous, secret=secret)
        self._principal = principal

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        # In capitals: servers pass on what was sent, and Flask and Django take `patch` for PATCH.
        method = environ["REQUEST_METHOD"].upper()
        rule, path = self._door.place(method, _path(environ), _text(environ.get("SCRIPT_NAME", "")))
        if rule is None:
            return self._inner(environ, start_response)
        headers = {name: environ[variable] for name, variable in NAMES.items() if variable in environ}
        query = environ.get("QUERY_STRING", "")
        visit = self._door.read(rule, method, path, query, headers, lambda: self._who(environ, headers))
        if visit is None:
            return self._inner(environ, start_response)
        if isinstance(visit, Reply):
            return _answer(start_response, visit)
        body = _read(environ, rule.route.largest_body)
        if isinstance(body, Reply):
            return _answer(start_response, body)
        return self._visit(visit, body, environ, start_response)

    def _visit(
        self, visit: KeyedRequest, body: bytes, environ: Environ, start_response: StartResponse
    ) -> Iterable[bytes]:
        entered = block(self._door.enter(visit, body))
        if isinstance(entered, Reply):
            return _answer(start_response, entered)
        environ["wsgi.input"] = BytesIO(body)
        environ["CONTENT_LENGTH"] = str(len(body))
        if entered is None:
            return self._inner(environ, start_response)
        return WsgiExchange(self._door, entered, environ, start_response).run(self._inner)

    def _who(self, environ: Environ, headers: dict[str, str]) -> Who:
        return headers.get("authorization") if self._principal is None else self._principal(environ)


def _path(environ: Environ) -> str:
    return _text(environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", "")) or "/"


def _text(path: str) -> str:
    """As it was written: WSGI hands over its bytes as Latin-1."""
    return path.encode("latin-1").decode("utf-8", "surrogateescape")


def _read(environ: Environ, most: int) -> bytes | Reply:
    announced = environ.get("CONTENT_LENGTH") or ""
    if announced.isdecimal():
        length = int(announced)
        if length > most:
            return problems.too_large(most)
        body: bytes = environ["wsgi.input"].read(length)
        return body if len(body) == length else problems.cut_short()
    if not environ.get("wsgi.input_terminated"):  # the server cannot say where the body ends: it has none
        return b""
    body = environ["wsgi.input"].read(most + 1)
    return body if len(body) <= most else problems.too_large(most)


def _answer(start_response: StartResponse, reply: Reply) -> Iterable[bytes]:
    headers = [pair for pair in reply.headers if pair[0] != "connection"]  # the server's own, by PEP 3333
    start_response(status_line(reply.status), headers)
    return [reply.body]
