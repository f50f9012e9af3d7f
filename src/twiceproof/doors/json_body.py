"""A request's body: JSON of one declared shape, or a refusal that says what to send instead."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from .reply import Reply, problem

__all__ = ["Unreadable", "read_body", "read_json"]

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
        return msgspec.json.decode(text or "{}", type=kind)
    except msgspec.ValidationError as error:
        raise Unreadable(_refused(400, "wrong-body", f"The body does not fit: {error}.")) from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise Unreadable(_refused(400, "unreadable-body", f"The body is not JSON: {error}.")) from None


def read_json(body: bytes, content_type: str) -> msgspec.Raw:
    """Any JSON, as it was written; an empty body is null."""
    text = _text(body, content_type)
    try:
        msgspec.json.decode(text or "null")
    except (msgspec.DecodeError, RecursionError) as error:
        raise Unreadable(_refused(400, "unreadable-body", f"The body is not JSON: {error}.")) from None
    return msgspec.Raw(text or "null")


def _text(body: bytes, content_type: str) -> str:
    """Only what says that it is JSON: a form on a foreign page cannot send that type without being asked first."""
    media = content_type.partition(";")[0].strip().lower()
    if body and media != "application/json" and not (media.startswith("application/") and media.endswith("+json")):
        shown = repr(media) if media else "no type"
        reply = problem(
            415, "not-json", f"The body has {shown}, and only JSON is read.",
            next_move="Send the header Content-Type: application/json.",
        )  # fmt: skip
        raise Unreadable(reply)
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise Unreadable(_refused(400, "unreadable-body", f"The body is not UTF-8: {error}.")) from None


def _refused(status: int, kind: str, detail: str) -> Reply:
    return problem(status, kind, detail, next_move="Compare it with docs/reference/http.md, or with /openapi.json.")
