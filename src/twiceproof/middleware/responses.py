"""Responses recorded and restored; refusal pages."""

from __future__ import annotations

import re
from collections.abc import Iterable
from hashlib import sha256
from html import escape
from typing import Any

import msgspec
from msgspec import Raw, Struct, structs

from ..inbound.reply import JSON, Reply

__all__ = [
    "AnswerCutShort",
    "AnswerOvertaken",
    "LeftOut",
    "RecordedAnswer",
    "Recording",
    "as_page",
    "kept_headers",
    "make_answer",
    "restore",
]


Headers = list[tuple[str, str]]

# Of one connection, of one moment, or of one caller alone: never replayed.
HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "trailers",
        "transfer-encoding",
        "upgrade",
    }
)
NOT_KEPT = HOP_BY_HOP | {"set-cookie", "set-cookie2", "date", "server", "age", "content-length"}
OURS = frozenset({"idempotency-key", "idempotent-replayed", "repeatability-result"})
LONG = 64 * 1024
PLAIN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+\n[^\r\n\0]*")  # a header's name and value, a newline between


class LeftOut(Struct, frozen=True, omit_defaults=True, gc=False):
    """A body that was larger than there is room for."""

    size: int
    digest: str


class RecordedAnswer(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    status: int = msgspec.field(name="http_status")  # by this name it is told from what a person gave as a result
    headers: Headers = []
    text: str = ""
    raw: bytes = b""  # where the body is not text
    left_out: LeftOut | None = None

    @property
    def body(self) -> bytes:
        return self.raw or self.text.encode()


_decode = msgspec.json.Decoder(RecordedAnswer).decode
_encode = msgspec.json.Encoder().encode


def make_answer(status: int, headers: Iterable[tuple[str, str]], body: bytes) -> RecordedAnswer:
    kept = kept_headers(headers)
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return RecordedAnswer(status, kept, raw=body)
    if "\0" in text or (len(body) > LONG and len(_encode(text)) > len(body) * 4 / 3):
        return RecordedAnswer(
            status, kept, raw=body
        )  # databases refuse NUL; what needs many escapes is shorter as bytes
    return RecordedAnswer(status, kept, text)


def kept_headers(headers: Iterable[tuple[str, str]]) -> Headers:
    pairs = [(name.lower(), value) for name, value in headers]
    named = {word.strip().lower() for name, value in pairs if name == "connection" for word in value.split(",")}
    return [pair for pair in pairs if pair[0] not in NOT_KEPT and pair[0] not in OURS and pair[0] not in named]


def restore(text: str | Raw) -> RecordedAnswer:
    """What was recorded. A person who settled a claim may have given any JSON: it is the body of a 200."""
    try:
        answer = _decode(text)
        if all(PLAIN.fullmatch(f"{name}\n{value}") for name, value in answer.headers):
            return answer
        # Not written by us: with a line's end in it, a header becomes two, or the body of another answer.
        return structs.replace(answer, headers=[pair for pair in answer.headers if PLAIN.fullmatch("\n".join(pair))])
    except msgspec.ValidationError:
        return RecordedAnswer(200, [("content-type", JSON)], text if isinstance(text, str) else bytes(text).decode())


HTML = "text/html; charset=utf-8"
SHAPE = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
    "<h1>{title}</h1><p>{detail}</p><p>{next}</p></html>"
)


def as_page(reply: Reply) -> Reply:
    """A browser shows JSON as it is, and its user needs a sentence."""
    words = msgspec.json.decode(reply.body)
    shown = {name: escape(str(words.get(name, ""))) for name in ("title", "detail", "next")}
    kept = [pair for pair in reply.headers if pair[0] != "content-type"]
    return Reply(reply.status, (("content-type", HTML), *kept), SHAPE.format(**shown).encode())


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

    def answer(self) -> RecordedAnswer:
        if self._digest is None:
            return make_answer(self.status, self.headers, self.body)
        left_out = LeftOut(self.size, self._digest.hexdigest())
        return RecordedAnswer(self.status, kept_headers(self.headers), left_out=left_out)
