"""Records the app's responses, restores them for retries, and renders problems as HTML pages."""

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

# Headers of one connection, one moment or one caller: never replayed.
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
OURS = frozenset({"idempotency-key", "idempotent-replayed"})
LONG = 64 * 1024
PLAIN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+\n[^\r\n\0]*")  # a header's name and value, a newline between


class LeftOut(Struct, frozen=True, omit_defaults=True, gc=False):
    """A body larger than the limit."""

    size: int
    digest: str


class RecordedAnswer(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    status: int = msgspec.field(name="http_status")  # this name distinguishes it from a result given by a person
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
        # Databases refuse NUL; text that needs many escapes is shorter as bytes.
        return RecordedAnswer(status, kept, raw=body)
    return RecordedAnswer(status, kept, text)


def kept_headers(headers: Iterable[tuple[str, str]]) -> Headers:
    pairs = [(name.lower(), value) for name, value in headers]
    named = {item.strip().lower() for name, value in pairs if name == "connection" for item in value.split(",")}
    return [pair for pair in pairs if pair[0] not in NOT_KEPT and pair[0] not in OURS and pair[0] not in named]


def restore(text: str | Raw) -> RecordedAnswer:
    """Return the recorded response. Any other JSON is a result given by a person who settled the claim: a 200."""
    try:
        answer = _decode(text)
        if all(PLAIN.fullmatch(f"{name}\n{value}") for name, value in answer.headers):
            return answer
        # Not written by us: with a line break in it, a header could become two, or the body of another response.
        return structs.replace(answer, headers=[pair for pair in answer.headers if PLAIN.fullmatch("\n".join(pair))])
    except msgspec.ValidationError:
        return RecordedAnswer(200, [("content-type", JSON)], text if isinstance(text, str) else bytes(text).decode())


HTML = "text/html; charset=utf-8"
SHAPE = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
    "<h1>{title}</h1><p>{detail}</p><p>{next}</p></html>"
)


def as_page(reply: Reply) -> Reply:
    """Render a problem as an HTML page for browsers."""
    fields = msgspec.json.decode(reply.body)
    shown = {name: escape(str(fields.get(name, ""))) for name in ("title", "detail", "next")}
    kept = [pair for pair in reply.headers if pair[0] != "content-type"]
    return Reply(reply.status, (("content-type", HTML), *kept), SHAPE.format(**shown).encode())


NO_BODY = frozenset({204, 304})  # may have a content-length without a body


class AnswerCutShort(Exception):
    """The app ended before its response was complete."""


class AnswerOvertaken(Exception):
    """Raised when a request loses its claim after its response has begun: the end must not be sent."""

    def __init__(self) -> None:
        super().__init__("the request lost its claim, so another response counts; this one is aborted")


class Recording:
    """Keeps a response up to the limit; of a larger one only size and digest."""

    __slots__ = ("_announced", "_chunks", "_digest", "_most", "headers", "size", "status")

    def __init__(self, most: int) -> None:
        self._most = most
        self._chunks: list[bytes] = []
        self._digest: Any = None  # set once the chunks were dropped
        self._announced = -1
        self.status = 0  # 0: no response yet
        self.headers: list[tuple[str, str]] = []
        self.size = 0

    def start(self, status: int, headers: list[tuple[str, str]]) -> None:
        self.status, self.headers, self._announced = status, headers, -1  # a WSGI app may call start_response again
        for name, value in headers:
            if name.lower() == "content-length" and value.isdecimal():
                self._announced = int(value)

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
    def is_complete(self) -> bool:
        """Whether the announced length was sent: the client will not wait for more."""
        return self.size >= self._announced >= 0

    @property
    def is_cut_short(self) -> bool:
        """Whether there is no response, or less of it than announced."""
        return self.status == 0 or (self.size < self._announced and self.status not in NO_BODY)

    @property
    def is_over_limit(self) -> bool:
        """Whether the response exceeds the limit, so that reading it to its end is useless."""
        return self._digest is not None

    @property
    def body(self) -> bytes:
        return b"".join(self._chunks)

    def answer(self) -> RecordedAnswer:
        if self._digest is None:
            return make_answer(self.status, self.headers, self.body)
        left_out = LeftOut(self.size, self._digest.hexdigest())
        return RecordedAnswer(self.status, kept_headers(self.headers), left_out=left_out)
