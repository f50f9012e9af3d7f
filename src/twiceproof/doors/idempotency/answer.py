"""An answer on its way into the ledger and back: status, headers and body, byte for byte."""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec
from msgspec import Raw, Struct, structs

from ..reply import JSON

__all__ = ["Answer", "LeftOut", "kept_headers", "make_answer", "restore"]

Headers = list[tuple[str, str]]

# Of one connection, of one moment, or of one caller alone: never replayed.
HOP_BY_HOP = frozenset(
    {
        "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer",
        "trailers", "transfer-encoding", "upgrade",
    }
)  # fmt: skip
NOT_KEPT = HOP_BY_HOP | {"set-cookie", "set-cookie2", "date", "server", "age", "content-length"}
OURS = frozenset({"idempotency-key", "idempotent-replayed", "repeatability-result"})
LONG = 64 * 1024
PLAIN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+\n[^\r\n\0]*")  # a header's name and value, a newline between


class LeftOut(Struct, frozen=True, omit_defaults=True, gc=False):
    """A body that was larger than there is room for."""

    size: int
    digest: str


class Answer(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    status: int = msgspec.field(name="http_status")  # by this name it is told from what a person gave as a result
    headers: Headers = []
    text: str = ""
    raw: bytes = b""  # where the body is not text
    left_out: LeftOut | None = None

    @property
    def body(self) -> bytes:
        return self.raw or self.text.encode()


_decode = msgspec.json.Decoder(Answer).decode
_encode = msgspec.json.Encoder().encode


def make_answer(status: int, headers: Iterable[tuple[str, str]], body: bytes) -> Answer:
    kept = kept_headers(headers)
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return Answer(status, kept, raw=body)
    if "\0" in text or (len(body) > LONG and len(_encode(text)) > len(body) * 4 / 3):
        return Answer(status, kept, raw=body)  # databases refuse NUL; what needs many escapes is shorter as bytes
    return Answer(status, kept, text)


def kept_headers(headers: Iterable[tuple[str, str]]) -> Headers:
    pairs = [(name.lower(), value) for name, value in headers]
    named = {word.strip().lower() for name, value in pairs if name == "connection" for word in value.split(",")}
    return [pair for pair in pairs if pair[0] not in NOT_KEPT and pair[0] not in OURS and pair[0] not in named]


def restore(text: str | Raw) -> Answer:
    """What was recorded. A person who settled a claim may have given any JSON: it is the body of a 200."""
    try:
        answer = _decode(text)
        if all(PLAIN.fullmatch(f"{name}\n{value}") for name, value in answer.headers):
            return answer
        # Not written by us: with a line's end in it, a header becomes two, or the body of another answer.
        return structs.replace(answer, headers=[pair for pair in answer.headers if PLAIN.fullmatch("\n".join(pair))])
    except msgspec.ValidationError:
        return Answer(200, [("content-type", JSON)], text if isinstance(text, str) else bytes(text).decode())
