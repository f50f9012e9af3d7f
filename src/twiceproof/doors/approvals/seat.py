"""The seat: one person before one approval, and how they came there: by its id, or by a link that was sent to them."""

from __future__ import annotations

from hashlib import sha256

from msgspec import Struct, structs

from ...drive import Operation
from ...errors import NoSuchWait
from ...flows.tenancy import own_approval
from ...flows.waits.approval import KIND, Approval, approval_id, request_address, request_of
from ...flows.waits.approvals import look_up
from ...flows.waits.links import Link, find_link
from ...records import Address
from ...stores.base import Store
from ..reply import Reply, problem

__all__ = ["Seat", "by_id", "by_link"]


class Seat(Struct, frozen=True):
    approval: Approval
    by: str  # whose word it will be; "": they have to say
    way: str  # what a nonce is bound to, beside the approval: a view of one is no view of another, nor of a later start
    born: str = ""  # which start of the run asks
    sent: bool = False  # they came by a link

    @property
    def told(self) -> Approval:
        """Once it is decided. A link outlives its use in somebody's mailbox: it tells no more what was shown."""
        return structs.replace(self.approval, shown=None) if self.sent else self.approval


def by_id(store: Store, tenant: str, approval: str, by: str) -> Operation[Seat | Reply]:
    try:
        at = own_approval(tenant, request_address(approval))
        found = yield from look_up(store, approval)
    except NoSuchWait:
        return _nothing()
    record = (yield from store.read(at)).record
    # Started anew under its key, a run asks the same thing again: a form that is sent twice must not answer both.
    if record is None:
        return _nothing()
    born = request_of(record).born
    return Seat(found, by, f"id:{born}:{by}", born)


def by_link(store: Store, token: str) -> Operation[Seat | Reply]:
    """The link must be for this very question: asked by the same start of the run, about the same thing."""
    link = yield from find_link(store, token)
    if link is None:
        return _nothing()
    at = Address(link.space, KIND, link.name)
    record = (yield from store.read(at)).record
    if record is None:
        return _not_yet()
    request = request_of(record)
    if (request.born, request.digest) != (link.born, link.digest):
        return _other(link)
    try:
        found = yield from look_up(store, approval_id(at))
    except NoSuchWait:
        return _nothing()
    return Seat(found, link.to, f"link:{sha256(token.encode(errors='replace')).hexdigest()}", link.born, sent=True)


def _nothing() -> Reply:
    return problem(
        404, "no-such-approval", "There is no such approval, or its time is over.",
        next_move="Ask whoever sent you here for a new link, or list what waits: twiceproof approvals list",
    )  # fmt: skip


def _not_yet() -> Reply:
    return problem(
        404,
        "not-asked-yet",
        "This has not been asked yet, or no longer is.",
        next_move="Open the link again in a minute.",
    )


def _other(link: Link) -> Reply:
    return problem(
        422, "asked-anew", "What is asked now is not what this link was made for.",
        next_move="Ask for a new link, and look at it again.",
    )  # fmt: skip
