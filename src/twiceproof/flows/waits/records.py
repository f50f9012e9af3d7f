"""Records of waits: arrivals, approval requests and decisions."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Generator
from typing import Any

import msgspec
from msgspec import Raw, Struct

from ...claims.claim import DONE, NO_RESULT, WAITING, body_of, claim_of, run_address, short_id
from ...claims.results import json_of
from ...claims.states import is_expired
from ...errors import NoSuchWait, ValueRefused
from ...operations import Operation
from ...records import Address, Check, Insert, Record, Replace, Write, Written, record_kind
from ...stores.base import Store
from ..engine.run_states import work_of

__all__ = [
    "APPROVAL_KIND",
    "ARRIVAL_KIND",
    "ARRIVED",
    "CALLBACK_KIND",
    "DECIDED",
    "ENDED",
    "LINK_KIND",
    "OPEN",
    "TIMEOUT",
    "WAIT",
    "Approval",
    "ApprovalRequest",
    "Arrival",
    "Decided",
    "Decision",
    "DecisionOrAwaitable",
    "Delivered",
    "approval_id",
    "approval_of",
    "arrival_of",
    "arrival_writes",
    "deliver",
    "encode_payload",
    "is_for_run",
    "request_address",
    "request_of",
    "require_current_run",
]


APPROVAL_KIND = record_kind("approval", beside_run=True)
# Here and not beside their users, which are loaded when first needed: a sweep must know every kind.
LINK_KIND = record_kind("link", expires=True)
CALLBACK_KIND = record_kind("callback", expires=True, points_to_run=True)
OPEN, DECIDED = "open", "decided"
PREFIX = "apr_"


class Decision(Struct, frozen=True):
    """A decision about an approval. `at` is the store's time."""

    approved: bool
    by: str
    at: float
    note: str = ""


class DecisionOrAwaitable(Decision, frozen=True):
    """For type checkers only: a decision in a `def` flow, an awaitable of it in an `async def` flow."""

    def __await__(self) -> Generator[Any, Any, Decision]:
        raise NotImplementedError


class Decided(Struct, frozen=True):
    """The result of deciding: the first decision counts. None: the approval timed out first."""

    first: bool
    decision: Decision | None


class ApprovalRequest(Struct, frozen=True, omit_defaults=True):
    """The body of an approval's record. Its key is the approval's name; its state is open, decided or timeout."""

    start_id: str  # which start of its run
    flow: str
    key: str
    digest: str  # digest of the data shown: the decision is about exactly this
    shown: Raw = NO_RESULT
    until: float | None = None
    decision: Decision | None = None
    requester: str = ""  # the requester, where known


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


_decode_approval = msgspec.json.Decoder(ApprovalRequest).decode


def request_of(record: Record) -> ApprovalRequest:
    return _decode_approval(record.body)


def approval_of(record: Record) -> Approval:
    request = request_of(record)
    return Approval(
        approval_id(record.at),
        record.at.key,
        request.flow,
        request.key,
        short_id(record.at.space),
        record.state,
        msgspec.json.decode(request.shown),
        request.digest,
        record.created_at,
        request.until,
        request.decision,
        request.requester,
    )


def approval_id(at: Address) -> str:
    """The id encodes the address of the record, so no index is needed."""
    return PREFIX + urlsafe_b64encode(f"{at.space}\n{at.key}".encode()).rstrip(b"=").decode()


def request_address(approval: str) -> Address:
    text = approval.removeprefix(PREFIX)
    try:
        space, _, name = urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode().partition("\n")
    except ValueError:
        space, name = "", ""
    at = Address(space, APPROVAL_KIND, name)
    if not space or not name or approval_id(at) != approval:
        raise NoSuchWait(f"{approval[:80]!r} is not the id of an approval; list them with: twiceproof approvals list")
    return at


ARRIVAL_KIND = record_kind("arrival", beside_run=True)
WAIT = "wait:"  # prefix of the ledger's name of a wait
ARRIVED, TIMEOUT = "arrived", "timeout"
ENDED = "ended"  # never stored: the run is done and does not wait
MOST = 256 * 1024


class Arrival(Struct, frozen=True, omit_defaults=True):
    """The body of an arrival's record. Its key is the ledger's name of the wait."""

    start_id: str  # which start of its run: an arrival for an earlier start must not answer this one
    payload: Raw = NO_RESULT
    mark: str = ""  # which delivery wrote it, so that one with a lost acknowledgement recognises itself


class Delivered(Struct, frozen=True):
    """The result of a delivery. `answer` is the payload that counts: the first one's."""

    first: bool
    answer: Any = None
    state: str = ARRIVED  # timeout: it came too late; ended: the run is done and did not wait for it


_decode_arrival = msgspec.json.Decoder(Arrival).decode


def arrival_of(record: Record) -> Arrival:
    return _decode_arrival(record.body)


def encode_payload(value: Any, what: str) -> Raw:
    """A value encoded for the ledger. Refused here, before anything is claimed, if it cannot be stored."""
    try:
        encoded = json_of(value)
    except ValueError as error:
        raise ValueRefused(f"{what} has no JSON form ({error}); pass plain data.") from None
    if len(encoded) > MOST:
        raise ValueRefused(f"{what} has {len(encoded):,} bytes, more than {MOST:,}; pass a reference instead.")
    return Raw(encoded)


def require_current_run(store: Store, space: str, start_id: str | None = None) -> Operation[Record]:
    """The run with this id. One that was forgotten, or started again under the same key, is a different run."""
    found = yield from store.read(run_address(space))
    run = found.record
    gone = run is None or is_expired(run, found.now)
    if run is None or gone or (start_id is not None and start_id_of(run) != start_id):
        raise NoSuchWait("There is no such run, or its time is over; list what waits with: twiceproof runs list")
    return run


def start_id_of(run: Record) -> str:
    return work_of(claim_of(run)).start_id


def is_for_run(record: Record | None, run: Record) -> bool:
    """Whether this arrival exists and belongs to this start of the run."""
    return record is not None and arrival_of(record).start_id == start_id_of(run)


def arrival_writes(run: Record, prior: Record | None, at: Address, state: str, arrival: Arrival) -> tuple[Write, Write]:
    """Writes the arrival and wakes its run, together. `prior` is what an earlier run of the key left behind."""
    body = body_of(arrival)
    claimed: Write = Insert(at, body, state)
    if prior is not None:
        claimed = Replace(at, body, state, version=prior.version)
    return claimed, _wake_write(run)


def _wake_write(run: Record) -> Write:
    """A run at work finds the arrival itself, unless it suspends meanwhile: suspending draws a new fence."""
    if run.state != WAITING:
        return Check(run.at, fence=run.fence)
    return Replace(run.at, None, WAITING, version=run.version, queue=run.queue, due_in=0.0)


def deliver(store: Store, at: Address, payload: Raw, *, mark: str, start_id: str | None = None) -> Operation[Delivered]:
    """End a wait, once. A delivery that comes before the wait is kept, and answers the wait at once."""
    while True:
        run = yield from require_current_run(store, at.space, start_id)
        prior = (yield from store.read(at)).record
        if prior is not None and is_for_run(prior, run):
            return _told(prior, mark)
        if run.state == DONE:
            return Delivered(False, None, ENDED)
        arrival = Arrival(start_id_of(run), payload, mark)
        written = yield from store.write(*arrival_writes(run, prior, at, ARRIVED, arrival))
        if isinstance(written, Written):
            return Delivered(True, msgspec.json.decode(payload))


def _told(prior: Record, mark: str) -> Delivered:
    arrival = arrival_of(prior)
    if prior.state == TIMEOUT:
        return Delivered(False, None, TIMEOUT)
    return Delivered(arrival.mark == mark, msgspec.json.decode(arrival.payload))
