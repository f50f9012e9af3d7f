"""The history of runs: which there are, and everything about one of them."""

from __future__ import annotations

from collections.abc import Sequence
from unicodedata import normalize

from msgspec import Raw, Struct
from msgspec.structs import force_setattr

from ...claims.claim import (
    DONE,
    FAILED,
    HELD,
    QUEUED,
    REVIEW,
    RUN,
    WAITING,
    address_of,
    claim_of,
    other_kind,
    run_address,
    space_of_run,
    validate_name,
)
from ...claims.evidence import KIND as EVIDENCE
from ...claims.evidence import read_evidence
from ...claims.listing import Listed, list_records
from ...claims.pieces import PIECES
from ...claims.results import KIND as RESOURCE
from ...claims.results import unpack
from ...claims.states import is_expired
from ...drive import Operation
from ...errors import Misuse
from ...keys import validate_key
from ...records import Address, Found, Record
from ...stores.base import Store
from ..entry import KIND as STEP
from ..entry import Entry, entry_of
from ..work import work_of
from .moves import next_moves
from .run_shape import EvidenceShape, PieceShape, RunShape, StepShape, WholeRun, fields, run_shape, step_shape

__all__ = [
    "ALL",
    "EVERY_STATE",
    "OPEN_STATES",
    "Filter",
    "RunPage",
    "address_of_run",
    "entries_in",
    "list_runs",
    "look_at_run",
    "read_run",
    "require_run",
]

OPEN_STATES = (REVIEW, HELD, QUEUED, WAITING)
EVERY_STATE = (*OPEN_STATES, FAILED, DONE)
ALL = "all"
PAGE = 1_000
TOKENS = "callback:"  # what these entries hold opens a door: whoever has the token can end the wait


class Filter(Struct, frozen=True):
    """Which runs are meant. Times are when a run was last written: parked, ended, begun."""

    tenant: str
    flow: str = ""
    key: str = ""
    prefix: str = ""  # of the key
    since: float | None = None
    until: float | None = None

    def __post_init__(self) -> None:
        """Keys are kept in Unicode's normal form: typed in another, they would not be found."""
        for name in ("key", "prefix"):
            force_setattr(self, name, normalize("NFC", getattr(self, name)))

    def fits(self, record: Record) -> bool:
        """By its address and times: no body is read."""
        tenant, flow, key = record.at.space.split("/", 2)
        return (
            tenant == self.tenant
            and self.flow in ("", flow)
            and self.key in ("", key)
            and key.startswith(self.prefix)
            and (self.since is None or record.updated_at >= self.since)
            and (self.until is None or record.updated_at < self.until)
        )


class RunPage(Struct, frozen=True):
    """Part of a list. `after` continues it; None means that this was the last part."""

    runs: Sequence[RunShape]
    after: str | None


def list_runs(
    store: Store, which: Filter, states: Sequence[str] = EVERY_STATE, *, limit: int = 100, after: str | None = None
) -> Operation[RunPage]:  # fmt: skip
    listed: Listed = yield from list_records(
        store, [(RUN, state) for state in states], which.fits, limit=limit, after=after
    )
    return RunPage([run_shape(record, listed.now) for record in listed.records], listed.after)


def address_of_run(tenant: str, name: str) -> Address:
    """A run by its id, or as FLOW/KEY: a flow's name has no slash."""
    flow, slash, key = name.partition("/")
    if not slash:
        return run_address(space_of_run(name))
    return address_of(validate_name("tenant", tenant), validate_name("flow", flow), validate_key(key), RUN)


def read_run(store: Store, at: Address) -> Operation[Found]:
    """For `require_run`. A guarded function's claim has an id, too, and is no run."""
    found = yield from store.read(at)
    if found.record is None and (yield from store.read(other_kind(at))).record is not None:
        raise Misuse("This is a claim, not a run; look at it with: twiceproof claims show OPERATION KEY")
    return found


def require_run(found: Found) -> Record:
    record = found.record
    if record is None or is_expired(record, found.now):
        raise Misuse("There is no such run; list them with: twiceproof runs list --state all")
    return record


def entries_in(store: Store, space: str) -> Operation[list[Entry]]:
    """A run's ledger, in the order in which things came to their end; what has not ended comes last."""
    records = yield from _all(store, STEP, space)
    return sorted(map(entry_of, records), key=lambda entry: (not entry.note.order, entry.note.order, entry.at))


def look_at_run(store: Store, at: Address) -> Operation[WholeRun]:
    found = yield from read_run(store, at)
    record = require_run(found)
    claim = claim_of(record)
    work = work_of(claim)
    given = yield from unpack(store, at, work.input, work.spill)
    result = yield from unpack(store, at, claim.result, claim.spill)
    whole = WholeRun(
        run=run_shape(record, found.now), input=Raw(given) if given else None, result_kept=bool(result),
        result=Raw(result) if result else None, fault=fields(claim.fault), settled=fields(claim.settled),
        undoing=work.undoing, forked_from=work.forked_from, fence=record.fence, lease_until=record.lease_until,
        steps=(yield from _steps(store, at)), evidence=(yield from _evidence(store, at)),
        pieces=(yield from _pieces(store, at)),
    )  # fmt: skip
    return next_moves(whole)


def _steps(store: Store, at: Address) -> Operation[list[StepShape]]:
    shapes = []
    for entry in (yield from entries_in(store, at.space)):
        result = yield from unpack(store, at, entry.note.result, entry.note.spill)
        shapes.append(step_shape(entry, "" if entry.name.startswith(TOKENS) else result))
    return shapes


def _evidence(store: Store, at: Address) -> Operation[list[EvidenceShape]]:
    shapes = []
    for record in (yield from _all(store, EVIDENCE, at.space)):
        piece = read_evidence(record)
        result = yield from unpack(store, at, piece.result, piece.spill)
        shapes.append(EvidenceShape(
            id=record.at.key, step=piece.step, owner=piece.owner, fence=piece.fence, seen_at=piece.seen_at,
            result_kept=bool(result), result=Raw(result) if result else None, fault=fields(piece.fault),
        ))  # fmt: skip
    return sorted(shapes, key=lambda shape: (shape.seen_at, shape.fence))


def _pieces(store: Store, at: Address) -> Operation[list[PieceShape]]:
    """Arrivals, approvals and whatever else waits leave; not what is shown with its step."""
    shapes = []
    for kind in PIECES:
        if kind not in (STEP, EVIDENCE, RESOURCE):
            records = yield from _all(store, kind, at.space)
            shapes += [_piece_shape(record) for record in records]
    return sorted(shapes, key=lambda piece: piece.created_at)


def _piece_shape(record: Record) -> PieceShape:
    return PieceShape(
        kind=record.at.kind, key=record.at.key, state=record.state, created_at=record.created_at,
        updated_at=record.updated_at, body=Raw(record.body or "null"),
    )  # fmt: skip


def _all(store: Store, kind: str, space: str) -> Operation[list[Record]]:
    found: list[Record] = []
    after: str | None = None
    while True:
        page = yield from store.scan(kind, space=space, after=after, limit=PAGE)
        found += page.records
        if page.after is None:
            return found
        after = page.after
