"""A recording: an answer as it passes by on its way to the client."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

from .answer import Answer, LeftOut, kept_headers, make_answer

__all__ = ["AnswerCutShort", "AnswerOvertaken", "Recording"]

NO_BODY = frozenset({204, 304})  # may promise what they do not send


class AnswerCutShort(Exception):
    """The app ended before its answer was complete."""


class AnswerOvertaken(Exception):
    """The claim was taken from a request whose answer had begun: its end must not be heard."""

    def __init__(self) -> None:
        super().__init__("its claim was taken from it, and what counts is another's answer; this one is broken off")


class Recording:
    """Keeps as much as there is room for. Of what is larger, its size and digest."""

    __slots__ = ("_chunks", "_digest", "_most", "_promised", "headers", "size", "status")

    def __init__(self, most: int) -> None:
        self._most = most
        self._chunks: list[bytes] = []
        self._digest: Any = None  # set when the chunks had to be let go
        self._promised = -1
        self.status = 0  # 0: nothing has been answered yet
        self.headers: list[tuple[str, str]] = []
        self.size = 0

    def start(self, status: int, headers: list[tuple[str, str]]) -> None:
        self.status, self.headers, self._promised = status, headers, -1  # a WSGI app may take its first start back
        for name, value in headers:
            if name.lower() == "content-length" and value.isdecimal():
                self._promised = int(value)

    def add(self, chunk: bytes) -> None:
        self.size += len(chunk)
        if self._digest is not None:
            self._digest.update(chunk)
        elif self.size <= self._most:
            self._chunks.append(chunk)
        else:
            self._digest = sha256(b"".join([*self._chunks, chunk]))
            self._chunks.clear()

    @property
    def whole(self) -> bool:
        """Whether as much has come as was promised: the client will not wait for more."""
        return self.size >= self._promised >= 0

    @property
    def short(self) -> bool:
        """Whether there is no answer at all, or less than was promised."""
        return self.status == 0 or (self.size < self._promised and self.status not in NO_BODY)

    @property
    def full(self) -> bool:
        """Whether there is no room for more: nothing is won by hearing this answer to its end."""
        return self._digest is not None

    @property
    def body(self) -> bytes:
        return b"".join(self._chunks)

    def answer(self) -> Answer:
        if self._digest is None:
            return make_answer(self.status, self.headers, self.body)
        left_out = LeftOut(self.size, self._digest.hexdigest())
        return Answer(self.status, kept_headers(self.headers), left_out=left_out)
