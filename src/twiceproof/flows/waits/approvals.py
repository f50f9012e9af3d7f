"""App.approve, deciding, links."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from hashlib import sha256

import msgspec
from msgspec import Raw, Struct, structs

from ...claims.claim import DONE, FAILED, SELF, body_of, claim_of
from ...claims.run_ids import shown_run
from ...claims.states import EXPIRE
from ...errors import Misuse, NoSuchWait, OwnRequest, PayloadMismatch, Rejected
from ...keys import validate_key
from ...operations import Operation
from ...records import Address, Insert, Record, Replace, Write, Written
from ...stores.base import Store
from ..engine.run_states import work_of
from ..engine.session import Session
from .records import (
    APPROVAL_KIND,
    ARRIVED,
    DECIDED,
    OPEN,
    TIMEOUT,
    Approval,
    ApprovalRequest,
    Arrival,
    Decided,
    Decision,
    approval_of,
    arrival_of,
    is_of,
    landing,
    request_address,
    request_of,
    standing_run,
)
from .records import ARRIVAL_KIND as ARRIVAL
from .waiting import Pending, awaited, timed_out

__all__ = [
    "LINK_KIND",
    "PATH",
    "ApprovalLink",
    "approve",
    "decide",
    "draw_link",
    "find_link",
    "link_url",
    "look_up",
    "open_approvals",
]


PAGE = 200


# -- in a flow -----------------------------------------------------------------------------------


class _Asked(Pending):
    """Waits for a decision; the request stands beside it for people to find."""

    def __init__(
        self, name: str, seconds: float | None, shown: Raw, digest: str, default: bool | None, requester: str
    ) -> None:
        super().__init__(_wait_name(name), f"waits for somebody to approve {name}", seconds, asked=f"show={digest}")
        self._word = validate_key(name)
        self._shown = shown
        self._digest = digest
        self._default = default
        self._requester = requester

    def open(self, session: Session) -> Operation[None]:
        """In one write with the wait itself. What an earlier run of the same key asked is written over."""
        claim, entry = session.claim, session.ledger.entries[self.name]
        request = ApprovalRequest(
            session.work.born,
            claim.operation,
            claim.key,
            self._digest,
            self._shown,
            entry.note.not_before,
            requester=self._requester or session.work.starter,
        )
        at, body = Address(session.space, APPROVAL_KIND, self._word), body_of(request)
        refused = yield from session.ledger.flush(Insert(at, body, OPEN))
        if refused is not None and refused.found is not None:
            yield from session.ledger.flush(Replace(at, body, OPEN, version=refused.found.version))

    def close(self, session: Session) -> Operation[Sequence[Write]]:
        decision = None
        if self._default is not None:
            decision = Decision(self._default, "", session.ledger.now(), "nobody decided in time")
            self.otherwise = Raw(msgspec.json.encode(decision))
        record = (yield from session.parts.store.read(Address(session.space, APPROVAL_KIND, self._word))).record
        if record is None:
            return ()
        body = body_of(structs.replace(request_of(record), decision=decision))
        return (Replace(record.at, body, TIMEOUT, version=record.version),)


def _wait_name(name: str) -> str:
    """Not that of a callback: whoever can deliver a payload must not be able to pass it for a decision."""
    return f"approve:{validate_key(name)}"


def approve(
    session: Session,
    name: str,
    shown: Raw,
    digest: str,
    seconds: float | None,
    default: bool | None,
    requester: str = "",
) -> Operation[Decision]:
    """The decision, if it is yes. The same in a replay; a replay that shows something else stops in review."""
    note = yield from awaited(session, _Asked(name, seconds, shown, digest, default, requester))
    if not note.result:
        raise timed_out(session, f"nobody decided about {name} in time", name)
    decision = msgspec.json.decode(note.result, type=Decision)
    if not decision.approved:
        raise Rejected(
            f"{name} was rejected by {decision.by or 'nobody, in time'}{decision.note and ': ' + decision.note}; "
            "catch Rejected to go another way, or start under another key.",
            name=name,
            decision=decision,
            run=shown_run(session.claim.run),
        )
    return decision


# -- from outside --------------------------------------------------------------------------------


def decide(
    store: Store, approval: str, *, approved: bool, by: str, note: str = "", shown: str = "", mark: str, born: str = ""
) -> Operation[Decided]:
    """A person's word, once. Whoever comes second is told what the first said. `born`: which start's question it is."""
    at = request_address(approval)
    wait = Address(at.space, ARRIVAL, _wait_name(at.key))
    while True:
        record, run, now = yield from _standing(store, at)
        request = request_of(record)
        _refuse_other_shown(request, shown, born)
        _refuse_requester(request, approved, by)
        prior = (yield from store.read(wait)).record
        if prior is not None and is_of(prior, run):
            return _told(prior, mark)
        if not _may_go_on(run):
            raise NoSuchWait("Its run has ended; nothing waits for this approval any more. Look at the run.")
        decision = Decision(approved, by, now, note)
        arrival = Arrival(request.born, Raw(msgspec.json.encode(decision)), mark)
        closed = Replace(at, body_of(structs.replace(request, decision=decision)), DECIDED, version=record.version)
        written = yield from store.write(*landing(run, prior, wait, ARRIVED, arrival), closed)
        if isinstance(written, Written):
            return Decided(True, decision)


def _standing(store: Store, at: Address) -> Operation[tuple[Record, Record, float]]:
    found = yield from store.read(at)
    if found.record is None:
        raise NoSuchWait("There is no such approval, or its time is over; list them with: twiceproof approvals list")
    run = yield from standing_run(store, at.space, request_of(found.record).born)
    return found.record, run, found.now


def _refuse_other_shown(request: ApprovalRequest, shown: str, born: str) -> None:
    """A decision about something else than what is asked now, or asked by an earlier start, is no decision."""
    if (shown and shown != request.digest) or (born and born != request.born):
        raise PayloadMismatch(
            "What was shown is not what this approval is about; look at it again, and decide anew.",
            operation=request.flow,
            key=request.key,
            found=request.digest,
            asked=shown,
        )


def _refuse_requester(request: ApprovalRequest, approved: bool, by: str) -> None:
    """Who asks may take it back, but not say yes to it."""
    if approved and request.requester and by.casefold() == request.requester.casefold():
        raise OwnRequest(f"{by} asked for this and cannot approve it; have somebody else decide.", by=by)


def _told(prior: Record, mark: str) -> Decided:
    arrival = arrival_of(prior)
    decision = msgspec.json.decode(arrival.payload, type=Decision) if arrival.payload else None
    return Decided(bool(mark) and arrival.mark == mark, decision)


def _may_go_on(run: Record) -> bool:
    return run.state not in (DONE, FAILED) and not work_of(claim_of(run)).undoing


def look_up(store: Store, approval: str) -> Operation[Approval]:
    record, _, _ = yield from _standing(store, request_address(approval))
    return approval_of(record)


def open_approvals(store: Store, prefix: str, limit: int) -> Operation[list[Approval]]:
    """What waits for somebody's word, of spaces that begin with `prefix`. Not what its run no longer waits for."""
    found: list[Approval] = []
    after: str | None = None
    while True:
        page = yield from store.scan(APPROVAL_KIND, state=OPEN, after=after, limit=PAGE)
        for record in page.records:
            if record.at.space.startswith(prefix) and (yield from _is_waited_for(store, record)):
                found.append(approval_of(record))
        after = page.after
        if after is None or len(found) >= limit:
            return found[:limit]


def _is_waited_for(store: Store, record: Record) -> Operation[bool]:
    try:
        run = yield from standing_run(store, record.at.space, request_of(record).born)
    except NoSuchWait:
        return False
    return _may_go_on(run)


LINK_KIND = "link"
PATH = "/v1/approvals/link/"
TOKEN_BYTES = 24


class ApprovalLink(Struct, frozen=True, omit_defaults=True):
    """Where a token leads: which approval of which start of which run, and what was to be shown there."""

    space: str
    name: str
    born: str
    digest: str
    to: str = ""  # whose word it will be; "": whoever has it says who they are


def draw_link(store: Store, link: ApprovalLink, seconds: float) -> Operation[str]:
    """The token. It is told to nobody else: not to the store, not to a log, and not twice."""
    token = secrets.token_urlsafe(TOKEN_BYTES)
    yield from store.write(Insert(_address(token), body_of(link), queue=EXPIRE, due_in=seconds))
    return token


def find_link(store: Store, token: str) -> Operation[ApprovalLink | None]:
    """None: there is no such link, or its time is over."""
    found = yield from store.read(_address(token))
    record = found.record
    if record is None or (record.due_at is not None and record.due_at <= found.now):
        return None
    return msgspec.json.decode(record.body, type=ApprovalLink)


def link_url(base: str, token: str) -> str:
    if not base.startswith(("http://", "https://")):
        raise Misuse(
            'Nobody knows where a browser can reach this app; say App(url="https://hooks.example.com") or set '
            "TWICEPROOF_URL."
        )
    return f"{base.rstrip('/')}{PATH}{token}"


def _address(token: str) -> Address:
    """Found by its hash: how long a look-up takes tells nothing about any token."""
    hashed = sha256(token.encode(errors="replace")).hexdigest()
    return Address(f"links/{hashed}", LINK_KIND, SELF)
