"""Findings: what a reconciliation found, kept in the ledger under an id that is the same in every run.

    open → acknowledged | suppressed | acted | resolved

A finding is resolved by a person, or by a run that read all of its sources and no longer sees it. If it is seen again,
it is reopened and counted. The functions that decide are pure; those that write do so at the version that they read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import product
from typing import Any

import msgspec
from msgspec import Struct, structs

from ..claims.claim import body_of, validate_name
from ..claims.states import EXPIRE
from ..effects.incidents import FINDING_KIND as FINDING
from ..errors import Misuse
from ..operations import Operation
from ..records import SELF, Address, Insert, Record, Replace, Write, Written, record_kind
from ..safe_text import suggested_command
from ..stores.base import EVERY, Store, scan_all
from .checks import INCOMPLETE, Discrepancy, finding_id

__all__ = [
    "ACKNOWLEDGED",
    "ACTED",
    "EVERY_STATE",
    "LOOKS",
    "OPEN",
    "OPEN_STATES",
    "REBUILDS",
    "RESOLVED",
    "SUPPRESSED",
    "FindingCounts",
    "FindingShape",
    "ReconcileNote",
    "RecordedRun",
    "StoredFinding",
    "change_finding",
    "count_findings",
    "find_finding",
    "list_findings",
    "list_notes",
    "lower_rows",
    "mark_acted",
    "next_words",
    "note_of",
    "read_note",
    "record_run",
    "shape_of",
    "sighted",
]

NOTE = record_kind("reconciliation")
OPERATION = "@reconcile"

OPEN, ACKNOWLEDGED, SUPPRESSED, ACTED, RESOLVED = "open", "acknowledged", "suppressed", "acted", "resolved"
OPEN_STATES = (OPEN, ACKNOWLEDGED, SUPPRESSED, ACTED)
EVERY_STATE = (*OPEN_STATES, RESOLVED)
LOOKS = "effect-looks"  # instead of a reconciliation's name: findings of steps that looked for their effect
REBUILDS = "ledger-rebuilds"  # and contradictions found by a rebuild of the ledger
KEEP = 90 * 86_400.0  # seconds for which a resolved finding is kept
TOGETHER = 200  # findings that are written at once


class StoredFinding(Struct, frozen=True, omit_defaults=True):
    """The body of a finding's record; its state is the record's own. Times of runs are their ticks."""

    id: str
    tenant: str
    reconciliation: str
    check: str
    key: str
    refs: tuple[str, ...]
    summary: str
    records: dict[str, Any]
    opened: float  # the run that first saw it
    since: float  # the run that opened it, or opened it again
    last: float  # the run that saw it last
    seen: int = 1  # runs that saw it since it was opened
    reopened: int = 0
    fresh: bool = False  # no run has seen it again since it was opened: a notice is sent
    by: str = ""  # who acknowledged, suppressed or resolved it
    note: str = ""
    until: float | None = None  # for how long it is suppressed; None: for ever
    outcome: str = ""  # what was done about it, or why nothing was
    acted: bool = False  # something was done since it was opened: it is not done again automatically
    resolved: float | None = None  # the run that no longer saw it


class ReconcileNote(Struct, frozen=True, omit_defaults=True):
    """What is stored about a reconciliation between its runs."""

    name: str
    last: float | None = None  # the tick of its last run
    whole: float | None = None  # the tick of the last run that read all sources completely
    rows: dict[str, int] = {}  # of each source's last complete reading


class RecordedRun(Struct, frozen=True):
    """What one run changed, by ids. `states` has each finding that it saw: its state, how often it was opened again,
    and whether something was done about it since."""

    new: tuple[str, ...] = ()
    reopened: tuple[str, ...] = ()
    resolved: tuple[str, ...] = ()
    states: dict[str, tuple[str, int, bool]] = {}


_finding = msgspec.json.Decoder(StoredFinding).decode
note_of = msgspec.json.Decoder(ReconcileNote).decode


def space_for(tenant: str, name: str) -> str:
    """One space for each reconciliation: its findings are listed together."""
    return f"{tenant}/{OPERATION}/{name}"


# -- decisions -----------------------------------------------------------------------------------


def sighted(state: str, old: StoredFinding, found: Discrepancy, tick: float, now: float) -> tuple[str, StoredFinding]:
    """Return a known finding as it is after a run that saw it. After a crash the same run may see it twice."""
    if old.last == tick and state != RESOLVED:
        return state, old
    lapsed = state == SUPPRESSED and old.until is not None and now >= old.until
    again = structs.replace(old, last=tick, summary=found.summary, records=found.records, resolved=None)
    if state == RESOLVED or lapsed:
        return OPEN, structs.replace(
            again,
            since=tick,
            seen=1,
            reopened=old.reopened + 1,
            fresh=True,
            by="",
            note="",
            until=None,
            acted=False,
            outcome="",
        )
    if state == ACTED and old.seen > 1:  # it has had a whole run's time to disappear
        outcome = f"{old.outcome}; it is still there"
        return OPEN, structs.replace(again, seen=old.seen + 1, fresh=True, outcome=outcome)
    return state, structs.replace(again, seen=old.seen + 1, fresh=False)


def unsighted(old: StoredFinding, tick: float) -> StoredFinding:
    return structs.replace(old, fresh=False, resolved=tick, by=old.by, until=None)


# -- writing -------------------------------------------------------------------------------------


def record_run(
    store: Store,
    tenant: str,
    note: ReconcileNote,
    found: Sequence[Discrepancy],
    settled: Collection[str],
    unsure: Collection[tuple[str, str]],
) -> Operation[RecordedRun]:
    """Record what a run found. `settled` are the checks whose other findings are resolved by it; `unsure` are checks
    and keys that it could not judge: they stay as they are.
    """
    name, tick = note.name, note.last or 0.0
    yield from _write_note(store, tenant, note)
    seen = {finding_id(name, one): one for one in found}
    space = space_for(tenant, name)
    known = {record.at.key: record for record in (yield from scan_all(store, FINDING, space=space))}
    now = (yield from store.read(Address(space, NOTE, SELF))).now
    for ids in _parts(list(seen)):
        yield from _write_all(
            store, space, ids, known, lambda id_, old: _on_seen(tenant, name, id_, seen[id_], tick, now, old)
        )
    gone = [id_ for id_, record in known.items() if id_ not in seen and _is_over(record, settled, unsure)]
    for ids in _parts(gone):
        yield from _write_all(store, space, ids, known, lambda _, old: _on_gone(old, tick))
    after = {record.at.key: record for record in (yield from scan_all(store, FINDING, space=space))}
    return _recorded(after, seen, tick)


def _parts(ids: list[str]) -> Iterable[list[str]]:
    return (ids[start : start + TOGETHER] for start in range(0, len(ids), TOGETHER))


Change = Callable[[str, Record | None], Write | None]


def _write_all(
    store: Store, space: str, ids: Sequence[str], known: Mapping[str, Record], change: Change
) -> Operation[None]:
    """Write each finding. If a person has changed one meanwhile, decide again by the new record."""
    left: dict[str, Record | None] = {id_: known.get(id_) for id_ in ids}
    while left:
        writes = {id_: write for id_, old in left.items() if (write := change(id_, old)) is not None}
        answers = yield from store.write_each([[write] for write in writes.values()])
        left = {}
        for id_, answer in zip(writes, answers, strict=True):
            if isinstance(answer, Exception):
                raise answer
            if not isinstance(answer, Written):
                left[id_] = (yield from store.read(Address(space, FINDING, id_))).record


def _on_seen(
    tenant: str, name: str, id_: str, found: Discrepancy, tick: float, now: float, old: Record | None
) -> Write | None:
    at = Address(space_for(tenant, name), FINDING, id_)
    if old is None:
        first = StoredFinding(
            id_,
            tenant,
            name,
            found.check,
            found.key,
            found.refs,
            found.summary,
            found.records,
            tick,
            tick,
            tick,
            fresh=True,
        )
        return Insert(at, body_of(first), OPEN)
    before = _finding(old.body)
    state, after = sighted(old.state, before, found, tick, now)
    if (state, after) == (old.state, before):
        return None
    return Replace(at, body_of(after), state, version=old.version)


def _is_over(record: Record, settled: Collection[str], unsure: Collection[tuple[str, str]]) -> bool:
    body = _finding(record.body)
    return record.state != RESOLVED and body.check in settled and (body.check, body.key) not in unsure


def _on_gone(old: Record | None, tick: float) -> Write | None:
    if old is None or old.state == RESOLVED:
        return None
    body = body_of(unsighted(_finding(old.body), tick))
    return Replace(old.at, body, RESOLVED, version=old.version, queue=EXPIRE, due_in=KEEP)


def _recorded(after: Mapping[str, Record], seen: Collection[str], tick: float) -> RecordedRun:
    """Read the result from the records: a run that is repeated after a crash reports the same."""
    bodies = {id_: (record.state, _finding(record.body)) for id_, record in sorted(after.items())}
    since = {id_: body for id_, (_, body) in bodies.items() if id_ in seen and body.since == tick}
    return RecordedRun(
        tuple(id_ for id_, body in since.items() if not body.reopened),
        tuple(id_ for id_, body in since.items() if body.reopened),
        tuple(id_ for id_, (state, body) in bodies.items() if state == RESOLVED and body.resolved == tick),
        {id_: (state, body.reopened, body.acted) for id_, (state, body) in bodies.items() if id_ in seen},
    )


def read_note(store: Store, tenant: str, name: str) -> Operation[ReconcileNote]:
    record = (yield from store.read(Address(space_for(tenant, name), NOTE, SELF))).record
    return ReconcileNote(name) if record is None else note_of(record.body)


def _write_note(store: Store, tenant: str, note: ReconcileNote) -> Operation[None]:
    at = Address(space_for(tenant, note.name), NOTE, SELF)
    while True:
        record = (yield from store.read(at)).record
        body = body_of(note)
        write: Write = Insert(at, body) if record is None else Replace(at, body, version=record.version)
        if isinstance((yield from store.write(write)), Written):
            return


def lower_rows(store: Store, tenant: str, name: str, source: str) -> Operation[None]:
    """Expect one row less in a source, because one was just removed there: this is not a loss of rows."""
    note = yield from read_note(store, tenant, name)
    if source in note.rows:
        yield from _write_note(store, tenant, structs.replace(note, rows={**note.rows, source: note.rows[source] - 1}))


def mark_acted(store: Store, tenant: str, name: str, id_: str, outcome: str, *, acted: bool) -> Operation[None]:
    """Record what was done about a finding, or why nothing was."""
    at = Address(space_for(tenant, name), FINDING, id_)
    while True:
        record = (yield from store.read(at)).record
        if record is None or record.state == RESOLVED:
            return
        before = _finding(record.body)
        after = structs.replace(before, outcome=outcome, acted=before.acted or acted, fresh=before.fresh and not acted)
        state = ACTED if acted and record.state == OPEN else record.state
        if (state, after) == (record.state, before):
            return
        if isinstance((yield from store.write(Replace(at, body_of(after), state, version=record.version))), Written):
            return


# -- people --------------------------------------------------------------------------------------


def change_finding(
    store: Store, tenant: str, id_: str, to: str, *, by: str, note: str = "", until: float | None = None, was: str = ""
) -> Operation[FindingShape]:
    """Acknowledge, suppress or resolve a finding; refused if it has another state than `was`, where that is given.
    A resolved `source-incomplete` accepts the source's new size."""
    while True:
        record = yield from find_finding(store, tenant, id_)
        before = _finding(record.body)
        if record.state == RESOLVED:
            raise Misuse(f"{id_} is resolved already; list those that are not: twiceproof reconcile findings list")
        if was and record.state != was:
            raise Misuse(f"{id_} is {record.state} by now, and no longer {was}; look at it again.")
        after = structs.replace(before, by=by, note=note, until=until, fresh=False)
        times: dict[str, Any] = {"queue": EXPIRE, "due_in": KEEP} if to == RESOLVED else {}
        written = yield from store.write(Replace(record.at, body_of(after), to, version=record.version, **times))
        if isinstance(written, Written):
            if to == RESOLVED and before.check == INCOMPLETE:
                yield from _accept_size(store, tenant, before)
            return shape_of((yield from find_finding(store, tenant, id_)))


def _accept_size(store: Store, tenant: str, finding: StoredFinding) -> Operation[None]:
    note = yield from read_note(store, tenant, finding.reconciliation)
    rows = {name: count for name, count in note.rows.items() if name != finding.key}
    yield from _write_note(store, tenant, structs.replace(note, rows=rows))


# -- reading -------------------------------------------------------------------------------------


class FindingShape(Struct, frozen=True):
    """A finding as it is shown."""

    id: str
    reconciliation: str
    check: str
    key: str
    state: str
    summary: str
    refs: tuple[str, ...]
    records: dict[str, Any]
    opened_at: float
    last_seen_at: float
    seen: int
    reopened: int
    by: str
    note: str
    until: float | None
    outcome: str
    next: tuple[str, ...]


def shape_of(record: Record) -> FindingShape:
    body = _finding(record.body)
    return FindingShape(
        id=body.id,
        reconciliation=body.reconciliation,
        check=body.check,
        key=body.key,
        state=record.state,
        summary=body.summary,
        refs=body.refs,
        records=body.records,
        opened_at=body.opened,
        last_seen_at=body.last,
        seen=body.seen,
        reopened=body.reopened,
        by=body.by,
        note=body.note,
        until=body.until,
        outcome=body.outcome,
        next=_next(record.state, body),
    )


def _next(state: str, body: StoredFinding) -> tuple[str, ...]:
    tenant = () if body.tenant == "default" else ("--tenant", body.tenant)
    return tuple(suggested_command("reconcile", "findings", word, body.id, *tenant) for word in next_words(state))


def next_words(state: str) -> tuple[str, ...]:
    """Return the commands that a person can give for a finding in this state."""
    return {OPEN: ("ack", "suppress", "resolve"), ACKNOWLEDGED: ("suppress", "resolve")}.get(state, ())


def find_finding(store: Store, tenant: str, id_: str) -> Operation[Record]:
    """Return a tenant's finding by its id. There are few reconciliations, so each one is searched."""
    for note in (yield from list_notes(store, tenant)):
        record = (yield from store.read(Address(space_for(tenant, note.name), FINDING, id_))).record
        if record is not None:
            return record
    raise Misuse(f"There is no finding {id_!r:.60}; list them with: twiceproof reconcile findings list")


def list_notes(store: Store, tenant: str) -> Operation[list[ReconcileNote]]:
    prefix = f"{tenant}/{OPERATION}/"
    records = yield from scan_all(store, NOTE)
    return sorted((note_of(one.body) for one in records if one.at.space.startswith(prefix)), key=lambda note: note.name)


def list_findings(
    store: Store,
    tenant: str,
    *,
    name: str = "",
    states: Sequence[str] = OPEN_STATES,
    limit: int = 100,
    most_read: int = EVERY,
) -> Operation[list[FindingShape]]:
    """Return findings, those that were seen last first. `most_read`: how many are looked through."""
    names = (
        [validate_name("reconciliation", name)]
        if name
        else [note.name for note in (yield from list_notes(store, tenant))]
    )
    found: list[FindingShape] = []
    left = most_read
    for one, state in product(names, states):
        if left == 0:
            break
        records = yield from scan_all(store, FINDING, space=space_for(tenant, one), state=state, most=left)
        left -= len(records)
        found += map(shape_of, records)
    return sorted(found, key=lambda shape: (-shape.last_seen_at, shape.check, shape.key))[:limit]


class FindingCounts(Struct, frozen=True):
    """Over all tenants: findings that are open, by reconciliation and check; rows; and the last whole runs."""

    open: dict[tuple[str, str], int]
    rows: dict[tuple[str, str], int]
    whole: dict[str, float]
    now: float


def count_findings(store: Store, most: int = 1_000) -> Operation[FindingCounts]:
    counts: dict[tuple[str, str], int] = {}
    page = yield from store.scan(FINDING, state=OPEN, limit=most)
    for record in page.records:
        body = _finding(record.body)
        counts[body.reconciliation, body.check] = counts.get((body.reconciliation, body.check), 0) + 1
    rows: dict[tuple[str, str], int] = {}
    whole: dict[str, float] = {}
    for note in (note_of(record.body) for record in (yield from scan_all(store, NOTE))):
        for source, count in note.rows.items():
            rows[note.name, source] = rows.get((note.name, source), 0) + count
        if note.name in (LOOKS, REBUILDS):  # these have no runs whose age would mean something
            continue
        whole[note.name] = min(whole.get(note.name, note.whole or 0.0), note.whole or 0.0)
    return FindingCounts(counts, rows, whole, page.now)
