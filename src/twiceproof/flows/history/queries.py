"""List and show runs; count runs by version and state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unicodedata import normalize

from msgspec import Raw, Struct, structs
from msgspec.structs import force_setattr

from ...claims.blobs.records import RESOURCE_KIND as RESOURCE
from ...claims.claim import (
    CLAIM,
    DONE,
    FAILED,
    HELD,
    QUEUED,
    REVIEW,
    RUN,
    WAITING,
    claim_of,
    other_kind,
    parse_space,
    shown_run,
)
from ...claims.queries import EVIDENCE_KIND as EVIDENCE
from ...claims.queries import Listed, index_run, list_records, read_evidence
from ...claims.results import unpack
from ...claims.states import is_expired
from ...effects.incidents import DEAD_LETTER_KIND
from ...errors import Misuse
from ...operations import Operation
from ...outbox.queries import MessageCounts, count_messages
from ...records import Address, Found, Record, kinds_beside_runs
from ...stores.base import Store, scan_all
from ..engine.ledger import STEP_KIND as STEP
from ..engine.ledger import entries_in
from ..engine.run_states import work_of
from .run_view import (
    EvidenceShape,
    PieceShape,
    RunShape,
    StepShape,
    WholeRun,
    fields,
    next_moves,
    run_shape,
    step_shape,
)

__all__ = [
    "ALL",
    "COUNTED",
    "EVERY_STATE",
    "MOST_COUNTED",
    "OPEN_STATES",
    "Filter",
    "FlowCount",
    "RunPage",
    "StateCounts",
    "count_open",
    "count_states",
    "list_runs",
    "look_at_run",
    "read_run",
    "require_run",
]


OPEN_STATES = (REVIEW, HELD, QUEUED, WAITING)
EVERY_STATE = (*OPEN_STATES, FAILED, DONE)
ALL = "all"
PAGE = 1_000
TOKENS = "callback:"  # these entries hold tokens: anybody who has one can end the wait


class Filter(Struct, frozen=True):
    """Which runs to select. Times refer to the last write of a run: started, parked or ended."""

    tenant: str
    flow: str = ""
    key: str = ""
    prefix: str = ""  # prefix of the key
    since: float | None = None
    until: float | None = None

    def __post_init__(self) -> None:
        """Keys are stored in Unicode normal form C; a filter in another form would find nothing."""
        for name in ("key", "prefix"):
            force_setattr(self, name, normalize("NFC", getattr(self, name)))

    def fits(self, record: Record) -> bool:
        """Whether a record matches by its address and times. Does not decode the body."""
        tenant, flow, key = parse_space(record.at.space)
        return (
            tenant == self.tenant
            and self.flow in ("", flow)
            and self.key in ("", key)
            and key.startswith(self.prefix)
            and (self.since is None or record.updated_at >= self.since)
            and (self.until is None or record.updated_at < self.until)
        )


class RunPage(Struct, frozen=True):
    """One page of a list. `after` is the cursor of the next page; None marks the last page."""

    runs: Sequence[RunShape]
    after: str | None


def list_runs(
    store: Store, which: Filter, states: Sequence[str] = EVERY_STATE, *, limit: int = 100, after: str | None = None
) -> Operation[RunPage]:
    listed: Listed = yield from list_records(
        store, [(RUN, state) for state in states], which.fits, limit=limit, after=after
    )
    return RunPage([run_shape(record, listed.now) for record in listed.records], listed.after)


def read_run(store: Store, at: Address) -> Operation[Found]:
    """Read a run for `require_run`. The claim of a guarded function has an id too, and is not a run."""
    found = yield from store.read(at)
    if found.record is None and (yield from store.read(other_kind(at))).record is not None:
        raise Misuse("This is a claim, not a run; look at it with: twiceproof claims show OPERATION KEY")
    return found


def require_run(found: Found) -> Record:
    record = found.record
    if record is None or is_expired(record, found.now):
        raise Misuse("There is no such run; list them with: twiceproof runs list --state all")
    return record


def look_at_run(store: Store, at: Address) -> Operation[WholeRun]:
    found = yield from read_run(store, at)
    record = require_run(found)
    yield from index_run(store, at.space)
    claim = claim_of(record)
    work = work_of(claim)
    given = yield from unpack(store, at, work.input, work.spill)
    result = yield from unpack(store, at, claim.result, claim.spill)
    whole = WholeRun(
        run=run_shape(record, found.now),
        input=Raw(given) if given else None,
        result_kept=bool(result),
        result=Raw(result) if result else None,
        fault=fields(claim.fault),
        settled=fields(claim.settled),
        undoing=work.undoing,
        forked_from=work.forked_from and shown_run(work.forked_from),
        fence=record.fence,
        lease_until=record.lease_until,
        steps=(yield from _steps(store, at)),
        evidence=(yield from _evidence(store, at)),
        pieces=(yield from _pieces(store, at)),
    )
    return next_moves(whole)


def _steps(store: Store, at: Address) -> Operation[list[StepShape]]:
    shapes = []
    for entry in (yield from entries_in(store, at.space)):
        result = yield from unpack(store, at, entry.note.result, entry.note.spill)
        shapes.append(step_shape(entry, "" if entry.name.startswith(TOKENS) else result))
    return shapes


def _evidence(store: Store, at: Address) -> Operation[list[EvidenceShape]]:
    shapes = []
    for record in (yield from scan_all(store, EVIDENCE, space=at.space)):
        piece = read_evidence(record)
        result = yield from unpack(store, at, piece.result, piece.spill)
        shapes.append(
            EvidenceShape(
                id=record.at.key,
                step=piece.step,
                owner=piece.owner,
                fence=piece.fence,
                seen_at=piece.seen_at,
                result_kept=bool(result),
                result=Raw(result) if result else None,
                fault=fields(piece.fault),
            )
        )
    return sorted(shapes, key=lambda shape: (shape.seen_at, shape.fence))


def _pieces(store: Store, at: Address) -> Operation[list[PieceShape]]:
    """Arrivals, approvals and other records of waits; not those that are shown with their step."""
    shapes = []
    for kind in kinds_beside_runs():
        if kind not in (STEP, EVIDENCE, RESOURCE):
            records = yield from scan_all(store, kind, space=at.space)
            shapes += [_piece_shape(record) for record in records]
    return sorted(shapes, key=lambda piece: piece.created_at)


def _piece_shape(record: Record) -> PieceShape:
    return PieceShape(
        kind=record.at.kind,
        key=record.at.key,
        state=record.state,
        created_at=record.created_at,
        updated_at=record.updated_at,
        body=Raw(record.body or "null"),
    )


COUNTED = (*OPEN_STATES, FAILED)  # finished runs need no attention
MOST_COUNTED = 1_000  # per state: counts are read every few seconds


class FlowCount(Struct, frozen=True):
    """How many runs of one version of a flow are in each state."""

    flow: str
    version: str
    held: int = 0
    queued: int = 0
    waiting: int = 0
    review: int = 0
    here: bool | None = None  # whether an app can carry it out; None: no app was given

    @property
    def open(self) -> int:
        return self.held + self.queued + self.waiting + self.review

    def with_here(self, here: bool) -> FlowCount:
        return structs.replace(self, here=here)

    def shape(self) -> dict[str, Any]:
        return {**structs.asdict(self), "open": self.open}


def count_open(store: Store, tenant: str) -> Operation[list[FlowCount]]:
    """Count open runs by queue. A run in review is in no queue, so its version is read from its body."""
    counts: dict[tuple[str, str], dict[str, int]] = {}
    for state in OPEN_STATES:
        after: str | None = None
        while True:
            page = yield from store.scan(RUN, state=state, after=after, limit=PAGE)
            for record in page.records:
                name = _version_of(record, tenant)
                if name is not None:
                    states = counts.setdefault(name, dict.fromkeys((HELD, QUEUED, WAITING, REVIEW), 0))
                    states[state] += 1
            if page.after is None:
                break
            after = page.after
    return [
        FlowCount(flow, version, states[HELD], states[QUEUED], states[WAITING], states[REVIEW])
        for (flow, version), states in sorted(counts.items())
    ]


def _version_of(record: Record, tenant: str) -> tuple[str, str] | None:
    """The version of a run; None if it belongs to another tenant."""
    owner, flow, _ = parse_space(record.at.space)
    if owner != tenant:
        return None
    if record.queue.startswith(f"{tenant}/{flow}@"):
        return flow, record.queue.removeprefix(f"{tenant}/{flow}@")
    return flow, work_of(claim_of(record)).version


class StateCounts(Struct, frozen=True):
    """Counts over all tenants, each up to `MOST_COUNTED`."""

    runs: dict[str, int]
    claims: dict[str, int]
    dead_letters: int
    messages: MessageCounts


def count_states(store: Store) -> Operation[StateCounts]:
    runs, claims = {}, dict.fromkeys(COUNTED, 0)
    for state in COUNTED:
        runs[state] = yield from _count(store, RUN, state)
        if state not in (QUEUED, WAITING):  # only runs have these states
            claims[state] = yield from _count(store, CLAIM, state)
    dead_letters = yield from _count(store, DEAD_LETTER_KIND, None)
    return StateCounts(runs, claims, dead_letters, (yield from count_messages(store, most=MOST_COUNTED)))


def _count(store: Store, kind: str, state: str | None) -> Operation[int]:
    return len((yield from store.scan(kind, state=state, limit=MOST_COUNTED)).records)
