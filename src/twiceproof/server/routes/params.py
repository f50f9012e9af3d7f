"""Bodies and named runs."""

from __future__ import annotations

from typing import TypeVar

from msgspec import Raw

from ...claims.states import is_expired
from ...errors import Misuse
from ...flows.runtime import own_run
from ...inbound.reply import Unreadable, problem, read_body, read_json
from ...operations import Operation
from ...records import Address
from ..request import ApiRequest, RequestRefused

__all__ = ["body_of", "json_of", "place_named", "run_named"]


T = TypeVar("T")


def body_of(call: ApiRequest, kind: type[T]) -> T:
    try:
        return read_body(kind, call.body, call.headers.get("content-type", ""))
    except Unreadable as error:
        raise RequestRefused(error.reply) from None


def json_of(call: ApiRequest) -> Raw:
    try:
        return read_json(call.body, call.headers.get("content-type", ""))
    except Unreadable as error:
        raise RequestRefused(error.reply) from None


def place_named(call: ApiRequest) -> Operation[Address]:
    """By its id. The same answer for what is not there and for what is somebody else's.

    Where a run would be: a claim of this id is in the same space.
    """
    try:
        return (yield from own_run(call.app.store, call.app.settings.tenant, call.params["name"]))
    except Misuse:
        raise _gone() from None


def run_named(call: ApiRequest) -> Operation[Address]:
    """What is there, and is a run."""
    at = yield from place_named(call)
    found = yield from call.app.store.read(at)
    if found.record is None or is_expired(found.record, found.now):
        raise _gone()
    return at


def _gone() -> RequestRefused:
    return RequestRefused(problem(404, "no-such-run", "There is no such run.", next_move="List them: GET /v1/runs"))
