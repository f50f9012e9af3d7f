"""One guarded call of a WSGI app: its answer passes by, is recorded, and only then ends."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from http import HTTPStatus
from typing import Any

from ...drive import block
from ..reply import Reply
from .before import MARK, flask_said_no
from .door import Door
from .recording import AnswerCutShort, AnswerOvertaken, Recording
from .turn import Turn
from .visit import marks

__all__ = ["StartResponse", "WsgiExchange", "status_line"]

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

    def __init__(self, door: Door, turn: Turn, environ: dict[str, Any], start_response: StartResponse) -> None:
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
