"""Approvals: wait for a decision in a flow, decide from outside, and links to a decision page."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from hashlib import sha256

import msgspec
from msgspec import Raw, Struct, structs

from ...claims.acts import act_beside
from ...claims.claim import DONE, FAILED, SELF, body_of, claim_of, run_address, shown_run
from ...claims.states import EXPIRE, is_expired
from ...errors import Misuse, NoSuchWait, OwnRequest, PayloadMismatch, Rejected
from ...keys import validate_key
from ...operations import Operation
from ...records import Address, Found, Insert, Record, Replace, Write, Written
from ...stores.base import Store
from ..engine.run_states import work_of
from ..engine.session import Session
from .records import (
    APPROVAL_KIND,
    ARRIVED,
    DECIDED,
    LINK_KIND,
    OPEN,
    TIMEOUT,
    Approval,
    ApprovalRequest,
    Arrival,
    Decided,
    Decision,
    approval_of,
    arrival_of,
    arrival_writes,
    is_for_run,
    request_address,
    request_of,
    require_current_run,
    start_id_of,
)
from .records import ARRIVAL_KIND as ARRIVAL
from .waiting import Pending, awaited, timed_out

__all__ = [
    "PATH",
    "ApprovalLink",
    "FoundApprovals",
    "approve",
    "create_link",
    "decide",
    "decided_approvals",
    "find_link",
    "find_open",
    "link_url",
    "look_up",
    "open_approvals",
]


PAGE = 200


# -- in a flow -----------------------------------------------------------------------------------


class _PendingApproval(Pending):
    """Waits for a decision. The approval request is stored beside the wait, where people can list it."""

    def __init__(
        self, name: str, seconds: float | None, shown: Raw, digest: str, default: bool | None, requester: str
    ) -> None:
        super().__init__(_wait_name(name), f"waits for an approval of {name}", seconds, asked=f"show={digest}")
        self._word = validate_key(name)
        self._shown = shown
        self._digest = digest
        self._default = default
        self._requester = requester

    def open(self, session: Session) -> Operation[None]:
        """Written together with the wait. Replaces the request of an earlier run of the same key."""
        claim, entry = session.claim, session.ledger.entries[self.name]
        request = ApprovalRequest(
            session.work.start_id,
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
            decision = Decision(self._default, "", session.ledger.now(), "no decision in time")
            self.otherwise = Raw(msgspec.json.encode(decision))
        record = (yield from session.runtime.store.read(Address(session.space, APPROVAL_KIND, self._word))).record
        if record is None:
            return ()
        body = body_of(structs.replace(request_of(record), decision=decision))
        return (Replace(record.at, body, TIMEOUT, version=record.version),)


def _wait_name(name: str) -> str:
    """A name of its own, unlike a callback's: a delivered payload must never pass for a decision."""
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
    """Return the decision if it is yes; the same in a replay. A replay that shows other data stops in review."""
    note = yield from awaited(session, _PendingApproval(name, seconds, shown, digest, default, requester))
    if not note.result:
        raise timed_out(session, f"no decision about {name} came in time", name)
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
    store: Store,
    approval: str,
    *,
    approved: bool,
    by: str,
    note: str = "",
    shown: str = "",
    mark: str,
    start_id: str = "",
    person: str = "",
) -> Operation[Decided]:
    """Record a decision; the first one counts, and a later one gets the first as its answer.

    `start_id` names the start of the run whose request is decided. `person`: who may not have asked for it, where `by`
    says more than a name.
    """
    at = request_address(approval)
    wait = Address(at.space, ARRIVAL, _wait_name(at.key))
    while True:
        record, run, now = yield from _standing(store, at)
        request = request_of(record)
        _refuse_other_shown(request, shown, start_id)
        _refuse_requester(request, approved, person or by)
        prior = (yield from store.read(wait)).record
        if prior is not None and is_for_run(prior, run):
            return _told(prior, mark)
        if not _may_go_on(run):
            raise NoSuchWait("Its run has ended; nothing waits for this approval any more. Look at the run.")
        decision = Decision(approved, by, now, note)
        arrival = Arrival(request.start_id, Raw(msgspec.json.encode(decision)), mark)
        closed = Replace(at, body_of(structs.replace(request, decision=decision)), DECIDED, version=record.version)
        said = "approved" if approved else "rejected"
        act = act_beside(store, record, "decide", by, said=said, step=at.key, note=note)
        written = yield from store.write(*arrival_writes(run, prior, wait, ARRIVED, arrival), closed, *act)
        if isinstance(written, Written):
            return Decided(True, decision)


def _standing(store: Store, at: Address) -> Operation[tuple[Record, Record, float]]:
    found = yield from store.read(at)
    if found.record is None:
        raise NoSuchWait("There is no such approval, or its time is over; list them with: twiceproof approvals list")
    run = yield from require_current_run(store, at.space, request_of(found.record).start_id)
    return found.record, run, found.now


def _refuse_other_shown(request: ApprovalRequest, shown: str, start_id: str) -> None:
    """Refuse a decision about other data than the approval shows now, or about the request of an earlier start."""
    if (shown and shown != request.digest) or (start_id and start_id != request.start_id):
        raise PayloadMismatch(
            "What was shown is not what this approval is about; look at it again, and decide anew.",
            operation=request.flow,
            key=request.key,
            found=request.digest,
            asked=shown,
        )


def _refuse_requester(request: ApprovalRequest, approved: bool, by: str) -> None:
    """The requester may withdraw the request but not approve it."""
    if approved and request.requester and by.casefold() == request.requester.casefold():
        raise OwnRequest(f"{by} asked for this and cannot approve it; another person must decide.", by=by)


def _told(prior: Record, mark: str) -> Decided:
    arrival = arrival_of(prior)
    decision = msgspec.json.decode(arrival.payload, type=Decision) if arrival.payload else None
    return Decided(bool(mark) and arrival.mark == mark, decision)


def _may_go_on(run: Record) -> bool:
    return run.state not in (DONE, FAILED) and not work_of(claim_of(run)).undoing


def look_up(store: Store, approval: str) -> Operation[Approval]:
    record, _, _ = yield from _standing(store, request_address(approval))
    return approval_of(record)


class FoundApprovals(Struct, frozen=True):
    """`more`: there may be others, which were not looked through."""

    approvals: list[Approval]
    more: bool


def open_approvals(store: Store, prefix: str, limit: int, *, most_read: int | None = None) -> Operation[list[Approval]]:
    """Open approvals in spaces that begin with `prefix`, without those whose run no longer waits."""
    return (yield from find_open(store, prefix, limit, most_read=most_read)).approvals


def find_open(store: Store, prefix: str, limit: int, *, most_read: int | None = None) -> Operation[FoundApprovals]:
    """Return open approvals, and whether there may be others. `most_read`: how many may be looked through; None: until
    `limit` are found."""
    found: list[Approval] = []
    after: str | None = None
    looked = 0
    while True:
        page = yield from store.scan(APPROVAL_KIND, state=OPEN, after=after, limit=PAGE)
        those = [record for record in page.records if record.at.space.startswith(prefix)]
        runs = (yield from store.read_each([run_address(one.at.space) for one in those])) if those else []
        found += [approval_of(one) for one, run in zip(those, runs, strict=True) if _is_waited_for(one, run)]
        looked, after = looked + len(page.records), page.after
        if after is None or len(found) >= limit or (most_read is not None and looked >= most_read):
            return FoundApprovals(found[:limit], after is not None or len(found) > limit)


def decided_approvals(store: Store, prefix: str, limit: int, *, most_read: int) -> Operation[list[Approval]]:
    """Return the approvals that people decided last, from a bounded number of records."""
    page = yield from store.scan(APPROVAL_KIND, state=DECIDED, newest=True, limit=most_read)
    found = [approval_of(one) for one in page.records if one.at.space.startswith(prefix)]
    at = {one.id: one.decision.at for one in found if one.decision is not None}
    return sorted((one for one in found if one.id in at), key=lambda one: -at[one.id])[:limit]


def _is_waited_for(record: Record, found: Found) -> bool:
    """Whether this very start of the run is there and still waits."""
    run = found.record
    if run is None or is_expired(run, found.now) or start_id_of(run) != request_of(record).start_id:
        return False
    return _may_go_on(run)


PATH = "/v1/approvals/link/"
TOKEN_BYTES = 24


class ApprovalLink(Struct, frozen=True, omit_defaults=True):
    """Where a link's token leads: an approval of one start of one run, and the digest of the data to show."""

    space: str
    name: str
    start_id: str
    digest: str
    to: str = ""  # who decides by this link; "": the visitor enters a name


def create_link(store: Store, link: ApprovalLink, seconds: float) -> Operation[str]:
    """Return a new token. It is stored only as a hash, never logged, and cannot be shown again."""
    token = secrets.token_urlsafe(TOKEN_BYTES)
    yield from store.write(Insert(_address(token), body_of(link), queue=EXPIRE, due_in=seconds))
    return token


def find_link(store: Store, token: str) -> Operation[ApprovalLink | None]:
    """The link of a token; None if there is none, or if it has expired."""
    found = yield from store.read(_address(token))
    record = found.record
    if record is None or (record.due_at is not None and record.due_at <= found.now):
        return None
    return msgspec.json.decode(record.body, type=ApprovalLink)


def link_url(base: str, token: str) -> str:
    if not base.startswith(("http://", "https://")):
        raise Misuse(
            'The public URL of this app is not known; pass App(url="https://hooks.example.com") or set TWICEPROOF_URL.'
        )
    return f"{base.rstrip('/')}{PATH}{token}"


def _address(token: str) -> Address:
    """Looked up by its hash, so that the time of a look-up reveals nothing about a token."""
    hashed = sha256(token.encode(errors="replace")).hexdigest()
    return Address(f"links/{hashed}", LINK_KIND, SELF)
