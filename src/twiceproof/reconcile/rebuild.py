"""Rebuilds the ledger from the source of truth: a plan that can be read first, and then applied line by line.

A rebuild only adds: claims and runs that the ledger lacks, results of those in review, evidence where the two disagree.
It never changes a recorded result, and never touches what is held, queued or waiting.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Raw, Struct, structs

from ..claims.claim import (
    CLAIM,
    DONE,
    FAILED,
    NO_RESULT,
    REVIEW,
    RUN,
    Claim,
    Settlement,
    address_of,
    alone,
    body_of,
    claim_of,
    parse_space,
    run_id,
)
from ..claims.manager import ClaimManager
from ..claims.once import Once
from ..claims.queries import Evidence, evidence_write
from ..claims.results import encode_given_result, unpack
from ..claims.states import Lifetime, finish_times, is_expired
from ..errors import KeyRefused, Misuse
from ..flows.engine.ledger import STARTED, STEP_DONE, UNKNOWN, Entry, EntryNote, entries_in, entry_write
from ..flows.engine.run_states import RunState, encoded
from ..flows.external_ids import pointer_to
from ..flows.flow import Flow
from ..flows.history.review import ReviewDecision, settle_run
from ..flows.step import Step
from ..keys import Template
from ..operations import Operation
from ..records import Address, Insert, Record, Written
from ..stores.base import Store

__all__ = [
    "RebuildLine",
    "RebuildPlan",
    "RebuildTarget",
    "Rebuilt",
    "apply_rebuild",
    "plan_rebuild",
    "read_plan",
    "target_of",
]

BY = "rebuild"
PAGE = 200
FORMAT = 1

Action = Literal["adopt", "settle", "unchanged", "differs", "missing", "absent", "failed", "left", "twice", "no-key"]
WRITES: tuple[Action, ...] = ("adopt", "settle", "differs", "missing", "failed")
Receipt = Callable[[Mapping[str, Any]], Any]


class RebuildTarget(Struct, frozen=True):
    """The operation whose ledger is rebuilt. `externals` make the external ids of steps from `result`."""

    tenant: str
    operation: str
    kind: str  # of its records: claims of a guarded function, or runs of a flow
    life: Lifetime
    version: str = "1"
    externals: Mapping[str, Callable[[dict[str, Any]], str]] = {}

    def address(self, key: str) -> Address:
        return address_of(self.tenant, self.operation, key, self.kind)


def target_of(
    operation: Any, tenant: str, flows: Mapping[str, Flow], guarded: Mapping[str, Once], steps: Iterable[Step]
) -> RebuildTarget:
    """Return what is to be rebuilt, by the function or its name."""
    declared = getattr(operation, "flow", None) or getattr(operation, "once", None)
    name = str(operation if declared is None else declared.policy.operation)
    externals = {step.name: step.external for step in steps if step.external is not None}
    if name in flows:
        return RebuildTarget(tenant, name, RUN, flows[name].policy.life, flows[name].version, externals)
    if name in guarded:
        return RebuildTarget(tenant, name, CLAIM, guarded[name].policy.life)
    raise Misuse(f"{name} is neither a flow nor a guarded function of this app; name one that is declared.")


class RebuildLine(Struct, frozen=True, omit_defaults=True):
    """One key: what is to be done, and what the ledger had when the plan was made.

    "adopt": the ledger lacks it. "settle": its outcome was unknown. "differs": both have it, with other results.
    "missing": the ledger says done, the source does not have it. "absent": in review, and not in the source. "failed":
    the ledger says failed, the source has it. "twice": the source has it several times, and none is on record. "left":
    it is under way, or a person must look.
    """

    action: Action
    key: str
    state: str = ""
    version: str = ""
    steps: dict[str, Raw] = {}
    result: Raw = NO_RESULT
    why: str = ""


class RebuildHead(Struct, frozen=True):
    """The first line of a plan. `hash` is that of all other lines."""

    operation: str
    tenant: str
    kind: str
    rows: int
    whole: bool
    counts: dict[str, int]
    hash: str
    format: int = FORMAT


class RebuildPlan(Struct, frozen=True):
    """What a rebuild would do. Nothing has been written."""

    head: RebuildHead
    lines: Sequence[RebuildLine]

    @property
    def counts(self) -> dict[str, int]:
        return self.head.counts

    def save(self, path: str | Path) -> None:
        """Write the plan as JSON lines: the head, then a line per key."""
        encode = msgspec.json.encode
        text = b"".join(encode(one) + b"\n" for one in (self.head, *self.lines))
        Path(path).write_bytes(text)


class Rebuilt(Struct, frozen=True):
    """What applying a plan did: lines by action, and those that were skipped because the ledger had changed."""

    applied: dict[str, int]
    skipped: Sequence[str]


def read_plan(path: str | Path) -> RebuildPlan:
    """Read a plan from a file. Refuses one that was changed."""
    try:
        first, *rest = Path(path).read_bytes().splitlines()
        head = msgspec.json.decode(first, type=RebuildHead)
        lines = [msgspec.json.decode(line, type=RebuildLine) for line in rest]
    except (ValueError, msgspec.MsgspecError) as error:
        raise Misuse(f"{path} is not a plan ({error}); make one with: twiceproof rebuild plan") from None
    if head.format != FORMAT or _hash(lines) != head.hash:
        raise Misuse(f"{path} was changed after it was made, or is of another release; make a new plan.")
    return RebuildPlan(head, lines)


def _hash(lines: Iterable[RebuildLine]) -> str:
    digest = sha256()
    for line in lines:
        digest.update(msgspec.json.encode(line) + b"\n")
    return digest.hexdigest()


# -- planning ------------------------------------------------------------------------------------


class _Row(Struct, frozen=True):
    key: str
    steps: dict[str, Raw]
    result: Raw


def plan_rebuild(
    store: Store,
    target: RebuildTarget,
    rows: Iterable[Mapping[str, Any]],
    *,
    key: str,
    result: Receipt | None = None,
    steps: Mapping[str, Receipt] | None = None,
    whole: bool = True,
) -> Operation[RebuildPlan]:
    """Compare the source's rows with the ledger. Reads only.

    `whole`: the rows are all there are, so that what is not among them is missing.
    """
    read = _Reader(key, result, steps or {})
    lines: list[RebuildLine] = []
    keys: dict[str, list[_Row]] = {}
    for row in read.rows(rows):
        if isinstance(row, RebuildLine):
            lines.append(row)
        elif row not in keys.setdefault(row.key, []):
            keys[row.key].append(row)
    for page in _pages(keys.values()):
        lines += yield from _compare(store, target, page)
    if whole:
        lines += yield from _not_in_source(store, target, keys)
    counts: dict[str, int] = dict(sorted(Counter(str(line.action) for line in lines).items()))
    head = RebuildHead(target.operation, target.tenant, target.kind, read.count, whole, counts, _hash(lines))
    return RebuildPlan(head, lines)


class _Reader:
    """Makes keys and receipts from rows."""

    def __init__(self, key: str, result: Receipt | None, steps: Mapping[str, Receipt]) -> None:
        self._key = Template(key)
        self._result = result
        self._steps = steps
        self.count = 0

    def rows(self, rows: Iterable[Mapping[str, Any]]) -> Iterator[_Row | RebuildLine]:
        for row in rows:
            self.count += 1
            try:
                key = self._key.make(row)
            except KeyRefused as error:
                yield RebuildLine("no-key", f"row {self.count}", why=str(error))
                continue
            steps = {name: encode_given_result(receipt(row)) for name, receipt in self._steps.items()}
            value = NO_RESULT if self._result is None else encode_given_result(self._result(row))
            yield _Row(key, steps, value)


def _pages(rows: Iterable[Any]) -> Iterator[list[Any]]:
    page: list[Any] = []
    for row in rows:
        page.append(row)
        if len(page) == PAGE:
            yield page
            page = []
    if page:
        yield page


def _compare(store: Store, target: RebuildTarget, groups: Sequence[list[_Row]]) -> Operation[list[RebuildLine]]:
    """Compare a page of keys, each with its rows, of which there should be one."""
    lines = []
    founds = yield from store.read_each([target.address(rows[0].key) for rows in groups])
    for rows, found in zip(groups, founds, strict=True):
        record = found.record
        if record is None or is_expired(record, found.now):
            lines.append(_unrecorded(rows))
            continue
        entries = (yield from entries_in(store, record.at.space)) if record.at.kind == RUN else []
        recorded = yield from _results(store, record, entries)
        lines.append(_line_of_several([_line(row, record, entries, recorded) for row in rows]))
    return lines


def _unrecorded(rows: Sequence[_Row]) -> RebuildLine:
    first = rows[0]
    if len(rows) > 1:
        return RebuildLine(
            "twice", first.key, why=f"the source has it {len(rows)} times: a person decides which is right"
        )
    return RebuildLine("adopt", first.key, steps=first.steps, result=first.result)


def _line_of_several(lines: Sequence[RebuildLine]) -> RebuildLine:
    """Of several rows for one key: a contradiction of what is on record is told; nothing is settled by one of them."""
    if len(lines) > 1 and lines[0].action == "settle":
        return structs.replace(lines[0], action="twice", why=f"the source has it {len(lines)} times: a person decides")
    return next((line for line in lines if line.action == "differs"), lines[0])


def _results(store: Store, record: Record, entries: Sequence[Entry]) -> Operation[dict[str, Any]]:
    """Return the recorded results: of the steps by name, of the whole under ""."""
    found, claim = {}, claim_of(record)
    if record.state == DONE:
        found[""] = yield from unpack(store, record.at, claim.result, claim.spill)
    for entry in entries:
        if entry.state == STEP_DONE:
            found[entry.name] = yield from unpack(store, record.at, entry.note.result, entry.note.spill)
    return found


def _line(row: _Row, record: Record, entries: Sequence[Entry], recorded: Mapping[str, Any]) -> RebuildLine:
    """Decide about one key that both have. Pure."""
    line = RebuildLine("left", row.key, record.state, record.version, row.steps, row.result)
    if record.state == DONE:
        return _line_of_done(line, recorded)
    if record.state == FAILED:
        return structs.replace(line, action="failed", why="the ledger says that it failed, and the source has it")
    if record.state != REVIEW:
        return structs.replace(line, why=f"it is {record.state}: whoever has it goes on with it")
    if record.at.kind == CLAIM:
        settled = structs.replace(line, action="settle")
        return settled if row.result else structs.replace(line, why="no result= is given")
    unknown = [entry.name for entry in entries if entry.state in (UNKNOWN, STARTED)]
    told = [name for name in unknown if name in row.steps]
    if told:
        return structs.replace(line, action="settle", steps={name: row.steps[name] for name in told})
    why = f"the source says nothing of {', '.join(unknown)}" if unknown else "it stopped for another reason"
    return structs.replace(line, why=why)


def _line_of_done(line: RebuildLine, recorded: Mapping[str, Any]) -> RebuildLine:
    given = dict(line.steps) or ({"": line.result} if line.result else {})
    other = sorted(name for name, raw in given.items() if name in recorded and not _same(raw, recorded[name]))
    if not other:
        return structs.replace(line, action="unchanged", steps={}, result=NO_RESULT)
    what = ", ".join(name or "the result" for name in other)
    return structs.replace(line, action="differs", why=f"{what}: another one is on record; it may be a duplicate")


def _same(one: Any, other: Any) -> bool:
    if not other:
        return True  # its result was not kept: nothing contradicts the source
    return bool(msgspec.json.decode(one) == msgspec.json.decode(other))


def _not_in_source(store: Store, target: RebuildTarget, seen: Collection[str]) -> Operation[list[RebuildLine]]:
    lines: list[RebuildLine] = []
    for state, action in ((DONE, "missing"), (REVIEW, "absent")):
        after: str | None = None
        while True:
            page = yield from store.scan(target.kind, state=state, after=after, limit=1_000)
            for record in page.records:
                tenant, operation, key = parse_space(record.at.space)
                ours = (tenant, operation) == (target.tenant, target.operation) and key not in seen
                if ours and not is_expired(record, page.now):
                    lines.append(_absent(action, key, record))  # type: ignore[arg-type]
            after = page.after
            if after is None:
                break
    return lines


def _absent(action: Action, key: str, record: Record) -> RebuildLine:
    why = "the ledger says that it is done, and the source does not have it"
    if action == "absent":
        why = "its outcome is unknown, and the source does not have it: a person decides"
    return RebuildLine(action, key, record.state, record.version, why=why)


# -- applying ------------------------------------------------------------------------------------


def apply_rebuild(
    store: Store,
    claims: ClaimManager,
    target: RebuildTarget,
    plan: RebuildPlan,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Operation[Rebuilt]:
    """Do what the plan says, each line only if the ledger is as it was. Applied twice, it writes nothing more."""
    head = plan.head
    if (head.tenant, head.operation, head.kind) != (target.tenant, target.operation, target.kind):
        raise Misuse(f"This plan is for {head.operation} of {head.tenant}; apply it with the app that made it.")
    applied: Counter[str] = Counter()
    skipped: list[str] = []
    todo = [line for line in plan.lines if line.action in WRITES]
    for done, line in enumerate(todo, 1):
        if (yield from _apply(store, claims, target, line)):
            applied[line.action] += 1
        else:
            skipped.append(line.key)
        progress(done, len(todo))
    return Rebuilt(dict(sorted(applied.items())), skipped)


def _apply(store: Store, claims: ClaimManager, target: RebuildTarget, line: RebuildLine) -> Operation[bool]:
    at = target.address(line.key)
    if line.action == "adopt":
        return (yield from _adopt(store, target, at, line))
    found = yield from store.read(at)
    if found.record is None or found.record.version != line.version:
        return False
    if line.action != "settle":
        return (yield from _testify(store, at, line))
    if at.kind == CLAIM:
        word = Settlement("happened", BY, found.now, "found in the source of truth")
        yield from claims.settle(at, word, result=line.result, life=target.life)
        return True
    for step, receipt in line.steps.items():
        decision = ReviewDecision("happened", BY, "found in the source of truth", step, receipt)
        yield from settle_run(store, at, decision, life=target.life)
    return True


def _adopt(store: Store, target: RebuildTarget, at: Address, line: RebuildLine) -> Operation[bool]:
    """Record what the ledger lacks as done: a redelivered event is a duplicate then."""
    now = (yield from store.read(at)).now
    queue, due_in, keep = finish_times(DONE, target.life)
    claim = Claim(
        target.operation,
        line.key,
        BY,
        target.tenant,
        run=run_id(at.space),
        result=line.result or Raw(b"null"),
        settled=Settlement("happened", BY, now, "found in the source of truth"),
        keep=keep,
        work=encoded(RunState(target.version)) if at.kind == RUN else NO_RESULT,
    )
    insert = Insert(at, body_of(claim), DONE, draw=True, queue=queue, due_in=due_in)
    entries = [_entry(target, line, name, number) for number, name in enumerate(line.steps, 1)]
    writes = [entry_write(at.space, entry) for entry in entries]
    written = yield from store.write(insert, *alone(insert), *writes)
    for entry in entries:
        if isinstance(written, Written) and entry.note.external:
            yield from store.write(pointer_to(at.space, claim, entry.name, entry.note.external))
    return isinstance(written, Written)


def _entry(target: RebuildTarget, line: RebuildLine, name: str, order: int) -> Entry:
    receipt = line.steps[name]
    make = target.externals.get(name)
    external = "" if make is None else make({"result": msgspec.json.decode(receipt)})
    settled = Settlement("happened", BY, 0.0)
    return Entry(name, STEP_DONE, EntryNote(result=receipt, order=order, external=external, settled=settled))


def _testify(store: Store, at: Address, line: RebuildLine) -> Operation[bool]:
    """Keep as evidence what the source says. Its address is fixed: told twice, it is kept once."""
    told, is_new = line.steps or {"": line.result}, False
    for step, receipt in told.items():
        evidence = Evidence(f"{BY}: {line.why}", 0, result=receipt, step=step or "source")
        is_new |= isinstance((yield from store.write(evidence_write(at.space, evidence))), Written)
    return is_new
