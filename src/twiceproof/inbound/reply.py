"""Transport-free reply, problem+json, JSON bodies, Idempotency-Key header."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from math import ceil
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

__all__ = [
    "JSON",
    "LONGEST",
    "PROBLEM",
    "Malformed",
    "Reply",
    "Unreadable",
    "json_reply",
    "malformed_key",
    "name_twice",
    "problem",
    "read_body",
    "read_json",
    "read_key",
    "retry_after",
]


JSON = "application/json"
PROBLEM = "application/problem+json"

Headers = tuple[tuple[str, str], ...]


class Reply(Struct, frozen=True):
    """Status, headers and body. Where there is a body, its type is among the headers."""

    status: int
    headers: Headers = ()
    body: bytes = b""

    def header(self, name: str) -> str:
        return next((value for known, value in self.headers if known.lower() == name.lower()), "")


def json_reply(status: int, value: Any, headers: Iterable[tuple[str, str]] = ()) -> Reply:
    return Reply(status, (("content-type", JSON), *headers), msgspec.json.encode(value))


def problem(
    status: int,
    kind: str,
    detail: str,
    *,
    next_move: str,
    headers: Iterable[tuple[str, str]] = (),
    more: Mapping[str, Any] | None = None,
) -> Reply:
    """An error as RFC 9457 writes it. `kind` is a stable word for programs; `next_move` is for people."""
    shape = {
        "type": f"urn:twiceproof:{kind}",
        "title": kind.replace("-", " "),
        "status": status,
        "detail": detail,
        "next": next_move,
        **(more or {}),
    }
    return Reply(status, (("content-type", PROBLEM), *headers), msgspec.json.encode(shape))


def retry_after(seconds: float) -> tuple[str, str]:
    """Whole seconds, at least one: a client told to come back at once would knock without end."""
    return "retry-after", str(max(1, ceil(seconds)))


T = TypeVar("T")


class Unreadable(Exception):
    """The way out of the middle of a door: the answer is `reply`."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply.status)
        self.reply = reply


def read_body(kind: type[T], body: bytes, content_type: str) -> T:
    """The body as this type; an empty one is `{}`."""
    text = _text(body, content_type)
    try:
        value = msgspec.json.decode(text or "{}", type=kind)
    except msgspec.ValidationError as error:
        raise Unreadable(_refused(400, "wrong-body", f"The body does not fit: {error}.")) from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise Unreadable(_refused(400, "unreadable-body", f"The body is not JSON: {error}.")) from None
    _refuse_twice(text)
    return value


def read_json(body: bytes, content_type: str) -> msgspec.Raw:
    """Any JSON, as it was written; an empty body is null."""
    text = _text(body, content_type)
    try:
        msgspec.json.decode(text or "null")
    except (msgspec.DecodeError, RecursionError) as error:
        raise Unreadable(_refused(400, "unreadable-body", f"The body is not JSON: {error}.")) from None
    _refuse_twice(text)
    return msgspec.Raw(text or "null")


def name_twice(text: str | bytes) -> str | None:
    """A name that an object in this JSON has twice.

    One reader takes the first of them, another the last: what was checked is then not what is acted on.
    """
    try:  # written anew it is the same text, unless something is spelled in another way, or is there twice
        if msgspec.json.encode(msgspec.json.decode(text)) == msgspec.json.format(_bytes(text), indent=-1):
            return None
    except (
        msgspec.DecodeError,
        RecursionError,
    ):  # a number without an end; too deep
        pass
    try:
        json.loads(text, object_pairs_hook=_once, parse_int=str)
    except _Twice as found:
        return str(found)
    except RecursionError:
        return None
    return None


class _Twice(Exception):
    pass


def _once(pairs: list[tuple[str, Any]]) -> None:
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            raise _Twice(name)
        seen.add(name)


def _bytes(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text


def _refuse_twice(text: str) -> None:
    twice = name_twice(text) if text else None
    if twice is not None:
        detail = f"The body has the name {twice[:80]!r} twice in one object: which one counts?"
        raise Unreadable(problem(400, "name-twice", detail, next_move="Send each name once."))


def _text(body: bytes, content_type: str) -> str:
    """Only what says that it is JSON: a form on a foreign page cannot send that type without being asked first."""
    media = content_type.partition(";")[0].strip().lower()
    if body and media != "application/json" and not (media.startswith("application/") and media.endswith("+json")):
        shown = repr(media) if media else "no type"
        reply = problem(
            415,
            "not-json",
            f"The body has {shown}, and only JSON is read.",
            next_move="Send the header Content-Type: application/json.",
        )
        raise Unreadable(reply)
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise Unreadable(_refused(400, "unreadable-body", f"The body is not UTF-8: {error}.")) from None


def _refused(status: int, kind: str, detail: str) -> Reply:
    return problem(status, kind, detail, next_move="Compare it with docs/reference/http.md, or with /openapi.json.")


LONGEST = 255

# Visible ASCII. A bare key has no comma: two headers that a proxy has joined must not pass for one key.
BARE = re.compile(r"[!#-+\--:<-\[\]-~]+")
QUOTED = re.compile(r'"((?:[ !#-\[\]-~]|\\["\\])*)"')
ESCAPE = re.compile(r'\\(["\\])')


class Malformed(Struct, frozen=True):
    reason: str


def read_key(value: str) -> str | Malformed:
    """The key itself, without its quotes."""
    value = value.strip(" \t")
    if value.startswith('"'):
        found = QUOTED.fullmatch(value)
        if found is None:
            return Malformed('a quoted key ends with its quote and has \\ only before " and \\')
        return _checked(ESCAPE.sub(r"\1", found[1]))
    if value and BARE.fullmatch(value) is None:
        return Malformed('a bare key is visible ASCII without spaces and without " , ; \\')
    return _checked(value)


def _checked(key: str) -> str | Malformed:
    if not key.strip():
        return Malformed("it is empty")
    if key != key.strip():
        return Malformed("it begins or ends with a space")
    if len(key) > LONGEST:
        return Malformed(f"it has {len(key)} characters, the most is {LONGEST}")
    return key


def malformed_key(reason: str, *, what: str = "The Idempotency-Key", headers: Iterable[tuple[str, str]] = ()) -> Reply:
    return problem(
        400,
        "idempotency-key-malformed",
        f"{what} cannot be read: {reason}.",
        next_move='Send one key of up to 255 visible characters, bare or in quotes: Idempotency-Key: "8e03978e".',
        headers=headers,
    )
