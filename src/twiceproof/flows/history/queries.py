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
    space_of,
)
from ...claims.lists import Listed, ListPlace, list_records
from ...claims.queries import EVIDENCE_KIND as EVIDENCE
from ...claims.queries import index_run, read_evidence
from ...claims.results import unpack
from ...claims.states import is_expired
from ...effects.incidents import DEAD_LETTER_KIND
from ...errors import Misuse
from ...operations import Operation
from ...outbox.queries import MessageCounts, count_messages
from ...records import Address, Found, Record, kinds_beside_runs
from ...stores.base import EVERY, Store, scan_all
from ..engine.ledger import STEP_KIND as STEP
from ..engine.ledger import entries_up_to, in_order
from ..engine.run_states import work_of
from ..waits.records import APPROVAL_KIND, OPEN
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
    "all_runs",
    "count_open",
    "count_open_up_to",
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
    """One page of a list. `after` is the cursor of the next page; None marks the last page. `before` leads back to the
    page before; None on the first. `newer` lists what has come since. All three are passed as `after`.
    """

    runs: Sequence[RunShape]
    after: str | None
    before: str | None = None
    newer: str | None = None


def list_runs(
    store: Store,
    which: Filter,
    states: Sequence[str] = EVERY_STATE,
    *,
    limit: int = 100,
    after: str | None = None,
    most_read: int | None = None,
) -> Operation[RunPage]:
    """Return runs: of several states one state after the other, in each, or of all states, the newest first. A flow's
    runs whose key is asked for come in the order of their keys.

    A page may be short, even empty, while `after` goes on: none reads more than `most_read` records, by default
    `lists.MOST_READ`.
    """
    every = set(states) == set(EVERY_STATE)
    places: list[ListPlace] = [(RUN, None)] if every else [(RUN, state) for state in states]
    by_key = bool(which.flow and (which.key or which.prefix))
    prefix = space_of(which.tenant, which.flow, which.key or which.prefix) if which.flow else f"{which.tenant}/"
    listed: Listed = yield from list_records(
        store, places, which.fits, limit=limit, after=after, prefix=prefix, by_key=by_key, most_read=most_read
    )
    runs = [run_shape(record, listed.now) for record in listed.records]
    return RunPage(runs, listed.after, listed.before, listed.newer)


def all_runs(
    store: Store, which: Filter, states: Sequence[str] = EVERY_STATE, *, limit: int = 100
) -> Operation[list[RunShape]]:
    """Return the first `limit` runs, however many others must be read to find them: for a program that asks once."""
    found: list[RunShape] = []
    after: str | None = None
    while True:
        page = yield from list_runs(store, which, states, limit=limit - len(found), after=after)
        found += page.runs
        after = page.after
        if after is None or len(found) >= limit:
            return found


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


def look_at_run(store: Store, at: Address, *, most: int = EVERY) -> Operation[WholeRun]:
    """Return everything about a run.

    `most`: how many of its steps, and of each kind of records beside it, are read. Of a run that has more steps these
    are the first by name, and what is not done.
    """
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
        record_version=record.version,
        lease_until=record.lease_until,
        steps=(yield from _steps(store, record, most)),
        evidence=(yield from _evidence(store, at, most)),
        pieces=(yield from _pieces(store, at, most)),
    )
    return next_moves(whole)


def _steps(store: Store, run: Record, most: int) -> Operation[list[StepShape]]:
    shapes, at = [], run.at
    found = yield from entries_up_to(store, at.space, most, all_done=run.state == DONE)
    for entry in in_order(found):
        result = yield from unpack(store, at, entry.note.result, entry.note.spill)
        shapes.append(step_shape(entry, "" if entry.name.startswith(TOKENS) else result))
    return shapes


def _evidence(store: Store, at: Address, most: int) -> Operation[list[EvidenceShape]]:
    shapes = []
    for record in (yield from scan_all(store, EVIDENCE, space=at.space, most=most)):
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


def _pieces(store: Store, at: Address, most: int) -> Operation[list[PieceShape]]:
    """Arrivals, approvals and other records of waits; not those that are shown with their step."""
    shapes = []
    for kind in kinds_beside_runs():
        if kind not in (STEP, EVIDENCE, RESOURCE):
            records = yield from scan_all(store, kind, space=at.space, most=most)
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
            _add_counts(counts, page.records, tenant, state)
            if page.after is None:
                break
            after = page.after
    return _flow_counts(counts)


def count_open_up_to(store: Store, tenant: str, most: int = MOST_COUNTED) -> Operation[tuple[list[FlowCount], bool]]:
    """Count open runs as `count_open` does, among the latest `most` in each state. Whether there may be others."""
    counts: dict[tuple[str, str], dict[str, int]] = {}
    more = False
    for state in OPEN_STATES:
        page = yield from store.scan(RUN, state=state, newest=True, limit=most)
        _add_counts(counts, page.records, tenant, state)
        more |= page.after is not None
    return _flow_counts(counts), more


def _add_counts(
    counts: dict[tuple[str, str], dict[str, int]], records: Sequence[Record], tenant: str, state: str
) -> None:
    for record in records:
        name = _version_of(record, tenant)
        if name is not None:
            counts.setdefault(name, dict.fromkeys((HELD, QUEUED, WAITING, REVIEW), 0))[state] += 1


def _flow_counts(counts: dict[tuple[str, str], dict[str, int]]) -> list[FlowCount]:
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
    approvals: int = 0


def count_states(store: Store) -> Operation[StateCounts]:
    runs, claims = {}, dict.fromkeys(COUNTED, 0)
    for state in COUNTED:
        runs[state] = yield from _count(store, RUN, state)
        if state not in (QUEUED, WAITING):  # only runs have these states
            claims[state] = yield from _count(store, CLAIM, state)
    dead_letters = yield from _count(store, DEAD_LETTER_KIND, None)
    approvals = yield from _count(store, APPROVAL_KIND, OPEN)
    return StateCounts(runs, claims, dead_letters, (yield from count_messages(store, most=MOST_COUNTED)), approvals)


def _count(store: Store, kind: str, state: str | None) -> Operation[int]:
    return len((yield from store.scan(kind, state=state, limit=MOST_COUNTED)).records)
