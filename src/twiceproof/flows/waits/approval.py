"""The approval: what a person is asked, what was shown, and what was decided."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Generator
from typing import Any

import msgspec
from msgspec import Raw, Struct

from ...claims.claim import NO_RESULT, run_id
from ...errors import NoSuchWait
from ...records import Address, Record

__all__ = ["DECIDED", "KIND", "OPEN", "Approval", "Decided", "Decision", "DecisionOrAwaitable", "Request",
           "approval_id", "approval_of", "request_address", "request_of"]  # fmt: skip

KIND = "approval"
OPEN, DECIDED = "open", "decided"
PREFIX = "apr_"


class Decision(Struct, frozen=True):
    """Somebody's word. `at` is the store's time."""

    approved: bool
    by: str
    at: float
    note: str = ""


class DecisionOrAwaitable(Decision, frozen=True):
    """For type checkers: a decision in a `def` flow, to be awaited in an `async def` flow. Never made."""

    def __await__(self) -> Generator[Any, Any, Decision]:
        raise NotImplementedError


class Decided(Struct, frozen=True):
    """What a decision came to: the first one counts. None: its time was over before anybody decided."""

    first: bool
    decision: Decision | None


class Request(Struct, frozen=True, omit_defaults=True):
    """The body of an approval's record; its key is the approval's name, its state open, decided or timeout."""

    born: str  # which start of its run
    flow: str
    key: str
    digest: str  # of what is shown: a decision is about this and nothing else
    shown: Raw = NO_RESULT
    until: float | None = None
    decision: Decision | None = None
    requester: str = ""  # who asked for it, where that is known


class Approval(Struct, frozen=True):
    """An approval as people and programs see it. Times are the store's, in seconds since 1970."""

    id: str
    name: str
    flow: str
    key: str
    run: str
    state: str
    shown: Any
    digest: str
    asked_at: float
    until: float | None
    decision: Decision | None
    requester: str = ""


_decode = msgspec.json.Decoder(Request).decode


def request_of(record: Record) -> Request:
    return _decode(record.body)


def approval_of(record: Record) -> Approval:
    request = request_of(record)
    return Approval(
        approval_id(record.at), record.at.key, request.flow, request.key, run_id(record.at.space), record.state,
        msgspec.json.decode(request.shown), request.digest, record.created_at, request.until, request.decision,
        request.requester,
    )  # fmt: skip


def approval_id(at: Address) -> str:
    """Leads back to the record, without an index that could disagree."""
    return PREFIX + urlsafe_b64encode(f"{at.space}\n{at.key}".encode()).rstrip(b"=").decode()


def request_address(approval: str) -> Address:
    text = approval.removeprefix(PREFIX)
    try:
        space, _, name = urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode().partition("\n")
    except ValueError:
        space, name = "", ""
    at = Address(space, KIND, name)
    if not space or not name or approval_id(at) != approval:
        raise NoSuchWait(f"{approval[:80]!r} is not the id of an approval; list them with: twiceproof approvals list")
    return at
