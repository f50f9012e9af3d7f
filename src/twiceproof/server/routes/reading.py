"""What routes read from a call, with the refusals of the doors behind them."""

from __future__ import annotations

from typing import TypeVar

from msgspec import Raw

from ...doors.json_body import Unreadable, read_body, read_json
from ..call import Call, Refused

__all__ = ["body_of", "json_of"]

T = TypeVar("T")


def body_of(call: Call, kind: type[T]) -> T:
    try:
        return read_body(kind, call.body, call.headers.get("content-type", ""))
    except Unreadable as error:
        raise Refused(error.reply) from None


def json_of(call: Call) -> Raw:
    try:
        return read_json(call.body, call.headers.get("content-type", ""))
    except Unreadable as error:
        raise Refused(error.reply) from None
