"""The plan of a rebuild: the source's rows compared with the ledger, key by key. Nothing is written.

It can be saved as a file with a hash, read by people, and applied later.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Raw, Struct, structs

from ..claims.claim import CLAIM, DONE, FAILED, NO_RESULT, REVIEW, RUN, address_of, claim_of, parse_space
from ..claims.results import encode_given_result, unpack
from ..claims.states import Lifetime, is_expired
from ..errors import KeyRefused, Misuse
from ..flows.engine.ledger import STARTED, STEP_DONE, UNKNOWN, Entry, entries_in
from ..keys import Template
from ..operations import Operation
from ..records import Address, Record
from ..stores.base import Store

__all__ = ["WRITES", "RebuildLine", "RebuildPlan", "RebuildTarget", "plan_rebuild", "read_plan"]

PAGE = 200
FORMAT = 1
SETTLING = 3_600.0  # seconds: work stopped so long before the source was read has arrived there by then, or never will

Action = Literal["adopt", "settle", "unchanged", "differs", "missing", "absent", "failed", "left", "twice", "no-key"]
WRITES: tuple[Action, ...] = ("adopt", "settle", "differs", "missing", "absent", "failed")
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


class RebuildLine(Struct, frozen=True, omit_defaults=True):
    """One key: what is to be done, and what the ledger had when the plan was made.

    "adopt": the ledger lacks it. "settle": its outcome was unknown. "differs": both have it, with different results.
    "missing": the ledger says done, the source does not have it. "absent": in review, and not in the source. "failed":
    the ledger says failed, the source has it. "twice": the source has it several times, and the ledger recorded none.
    "left": it is under way, or a person must decide.

    `not_done`: with "absent", the step, or the guarded function, that certainly did not happen; "": a person must
    decide.
    """

    action: Action
    key: str
    state: str = ""
    version: str = ""
    steps: dict[str, Raw] = {}
    result: Raw = NO_RESULT
    why: str = ""
    not_done: str = ""


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


def says_the_same(line: RebuildLine, now: RebuildLine | None) -> bool:
    """Whether the source still says of a key what it said when a line was made. The ledger may have changed: that is
    noticed by its version.
    """
    if line.action in ("missing", "absent"):
        return now is None or now.action in ("missing", "absent")
    if now is None or now.action in ("missing", "absent", "twice"):
        return False
    steps = all(now.steps.get(name, told) == told for name, told in line.steps.items())
    return steps and (not line.result or not now.result or line.result == now.result)


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
    as_of: datetime | None = None,
) -> Operation[RebuildPlan]:
    """Compare the source's rows with the ledger. Reads only.

    `whole`: the rows are complete, so that keys without a row are missing. `as_of`: when reading them began.
    """
    began = yield from _time_of(store, target, as_of)
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
        proves = began is not None and bool(keys) and not any(line.action == "no-key" for line in lines)
        proof = _Proof(began or 0.0, set(steps or ())) if proves else None
        lines += yield from _not_in_source(store, target, keys, proof)
    counts: dict[str, int] = dict(sorted(Counter(str(line.action) for line in lines).items()))
    head = RebuildHead(target.operation, target.tenant, target.kind, read.count, whole, counts, _hash(lines))
    return RebuildPlan(head, lines)


def _time_of(store: Store, target: RebuildTarget, as_of: datetime | None) -> Operation[float | None]:
    if as_of is None:
        return None
    now = (yield from store.read(target.address("-"))).now
    if as_of.tzinfo is None or as_of.timestamp() > now:
        raise Misuse(
            f"The source cannot have been read at {as_of}; give a time with its zone, not later than now, such as "
            "2026-03-02T12:00:00Z."
        )
    return as_of.timestamp()


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
    """Compare a page of keys, each with its rows (usually one)."""
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
    """Decide about several rows for one key: a contradiction to the ledger is reported, and nothing is settled by one
    of them.
    """
    if len(lines) > 1 and lines[0].action == "settle":
        return structs.replace(lines[0], action="twice", why=f"the source has it {len(lines)} times: a person decides")
    return next((line for line in lines if line.action == "differs"), lines[0])


def _results(store: Store, record: Record, entries: Sequence[Entry]) -> Operation[dict[str, Any]]:
    """Return the recorded results: of the steps by name, of the operation under ""."""
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
        return structs.replace(line, why=f"it is {record.state}: it continues by itself")
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


class _Proof(Struct, frozen=True):
    """A source that proves what did not happen: when reading it began, and the steps that it shows."""

    as_of: float
    steps: set[str]

    def not_done(self, record: Record, entries: Sequence[Entry]) -> str:
        """Return the only outcome that is unknown, if the source would have it by now. Pure."""
        if record.updated_at + SETTLING > self.as_of:
            return ""
        if record.at.kind == CLAIM:
            return parse_space(record.at.space).operation
        unknown = [entry.name for entry in entries if entry.state in (UNKNOWN, STARTED)]
        return unknown[0] if len(unknown) == 1 and unknown[0] in self.steps else ""


def _not_in_source(
    store: Store, target: RebuildTarget, seen: Collection[str], proof: _Proof | None
) -> Operation[list[RebuildLine]]:
    lines: list[RebuildLine] = []
    for state, action in ((DONE, "missing"), (REVIEW, "absent")):
        after: str | None = None
        while True:
            page = yield from store.scan(target.kind, state=state, after=after, limit=1_000)
            for record in page.records:
                tenant, operation, key = parse_space(record.at.space)
                ours = (tenant, operation) == (target.tenant, target.operation) and key not in seen
                if ours and not is_expired(record, page.now):
                    lines.append((yield from _absent(store, action, key, record, proof)))  # type: ignore[arg-type]
            after = page.after
            if after is None:
                break
    return lines


def _absent(store: Store, action: Action, key: str, record: Record, proof: _Proof | None) -> Operation[RebuildLine]:
    if action != "absent":
        why = "the ledger says that it is done, and the source does not have it"
        return RebuildLine(action, key, record.state, record.version, why=why)
    why = "its outcome is unknown, and the source does not have it: a person decides"
    entries = (yield from entries_in(store, record.at.space)) if record.at.kind == RUN else []
    not_done = "" if proof is None else proof.not_done(record, entries)
    return RebuildLine(action, key, record.state, record.version, why=why, not_done=not_done)
