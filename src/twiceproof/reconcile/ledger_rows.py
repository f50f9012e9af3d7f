"""The ledger as a source: one row for each run of a flow, or for each step done by a run."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from ..claims.claim import DONE as RUN_DONE
from ..claims.claim import FAILED, REVIEW, RUN, claim_of, parse_space, run_address, shown_id, space_of
from ..claims.results import unpack
from ..claims.states import is_expired
from ..effects.base import Look, Unknown, look_of
from ..errors import Misuse
from ..flows.engine.ledger import STEP_DONE, STEP_KIND, Entry, entries_in, entry_of
from ..flows.engine.run_states import work_of
from ..flows.engine.step_identity import effect_key, is_undo, stem_of
from ..flows.flow import Flow
from ..flows.step import Step
from ..inbound.hook import Hook
from ..keys import Template
from ..operations import block
from ..records import Record
from ..stores.base import Store
from .checks import DONE, PENDING, Discrepancy
from .readers import Reading, Row
from .sources import KeyedSource, SourceOrigin

__all__ = ["LedgerRows", "LedgerSource", "RecordedStep", "ledger_discrepancies", "recorded_step"]

PAGE = 500
ENTRIES = 1_000  # of one run


class LedgerRows:
    """Rows with `key`, `state` (of the run), `step_state`, `run`, `external` and `receipt`."""

    unstable = True  # a run may change its state, and its place in a scan, while others are read

    def __init__(self, store: Store, tenant: str, flow: Flow, step: Step | None, id_: str | None = None) -> None:
        self._store = store
        self._tenant = tenant
        self._flow = flow
        self.step = step
        self._id = None if id_ is None else Template(id_)

    def rows(self, reading: Reading) -> Iterator[Row]:
        for records, now in runs_of(self._store, self._tenant, self._flow.name):
            entries = self._entries(records)
            for record in records:
                if not is_expired(record, now):
                    yield from self._rows(record, entries.get(record.at.space, []))

    def look(self, key: str) -> list[Row]:
        """Return the rows of one key."""
        at = run_address(space_of(self._tenant, self._flow.name, key))
        found = self._store.read(at).block()
        if found.record is None or is_expired(found.record, found.now):
            return []
        entries = block(entries_in(self._store, at.space)) if self.step is not None else []
        return list(self._rows(found.record, entries))

    def _entries(self, records: Sequence[Record]) -> dict[str, list[Entry]]:
        found: dict[str, list[Entry]] = {}
        if self.step is not None and records:
            spaces = [record.at.space for record in records]
            for record in self._store.beside(spaces, (STEP_KIND,), limit=ENTRIES).block():
                found.setdefault(record.at.space, []).append(entry_of(record))
        return found

    def _rows(self, record: Record, entries: Sequence[Entry]) -> Iterator[Row]:
        key = parse_space(record.at.space).key
        row = {
            "key": key,
            "state": record.state,
            "run": shown_id(record.at),
            "external": "",
            "receipt": None,
            "ref": "",
        }
        if self.step is None:
            yield {**row, "step_state": _step_state(record.state, done=record.state == RUN_DONE)}
            return
        done = [entry for entry in entries if entry.state == STEP_DONE and stem_of(entry.name) == self.step.name]
        if not done:
            yield {**row, "step_state": _step_state(record.state, done=False)}
        for entry in done:
            receipt = _receipt(self._store, record, entry)
            found = {**row, "step_state": DONE, "external": entry.note.external, "receipt": receipt}
            yield {**found, "ref": self._ref(found)}

    def _ref(self, row: Row) -> str:
        """Return the destination's id: by `id=`, otherwise from the receipt, otherwise the external id."""
        if self._id is not None:
            return self._id.render(row)
        receipt = row["receipt"]
        own = receipt.get("id") if isinstance(receipt, Mapping) else receipt
        return str(own) if isinstance(own, str | int) and not isinstance(own, bool) else str(row["external"])

    def probe(self, key: str) -> Look | None:
        """Ask the destination by the step's own probe, or by its effect's look. None: there is none, or it needs what
        the ledger does not have.
        """
        if self.step is None:
            return None
        space = space_of(self._tenant, self._flow.name, key)
        record = self._store.read(run_address(space)).block().record
        if record is None:
            return None
        given = self._input(record)
        for name, asked in self._calls(space, self.step):
            probe = self.step.probe_of(given, asked)
            if probe is not None:
                return _asked(probe, {**given, "effect_key": effect_key(space, name)})
        return None

    def _calls(self, space: str, step: Step) -> list[tuple[str, str]]:
        """Return the recorded calls of a step: their names, and the digests of their descriptions."""
        entries = [entry for entry in block(entries_in(self._store, space)) if stem_of(entry.name) == step.name]
        return [(entry.name, entry.note.asked) for entry in entries] or [(step.name, "")]

    def _input(self, record: Record) -> dict[str, Any]:
        """Return the run's arguments as its flow gets them; nothing if they are not kept, or do not fit any more."""
        try:
            return block(self._flow.inputs.unpack(self._store, record.at, work_of(claim_of(record))))
        except Misuse:
            return {}


def runs_of(
    store: Store, tenant: str, flow: str = "", state: str | None = None
) -> Iterator[tuple[list[Record], float]]:
    """Return the records of a tenant's runs, page by page, with the store's time."""
    prefix, after = f"{tenant}/{flow}/" if flow else f"{tenant}/", None
    while True:
        page = store.scan(RUN, state=state, after=after, limit=PAGE).block()
        yield [record for record in page.records if record.at.space.startswith(prefix)], page.now
        if page.after is None:
            return
        after = page.after


def _step_state(state: str, *, done: bool) -> str:
    if done:
        return DONE
    return state if state in (RUN_DONE, REVIEW, FAILED) and state != DONE else "not-done" if state == DONE else PENDING


def _receipt(store: Store, record: Record, entry: Entry) -> Any:
    """Return what a step returned; for a row written by an SQL effect, its columns."""
    text = block(unpack(store, record.at, entry.note.result, entry.note.spill))
    found = msgspec.json.decode(text) if text else None
    return found["values"] if isinstance(found, dict) and found.keys() == {"created", "values"} else found


def _asked(probe: Callable[..., Any], offered: dict[str, Any]) -> Look | None:
    parameters = inspect.signature(probe).parameters.values()
    plain = [each for each in parameters if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
    if any(each.default is each.empty and each.name not in offered for each in plain):
        return None
    given = {each.name: offered[each.name] for each in plain if each.name in offered}
    try:
        answer = probe(**given)
        if inspect.iscoroutine(answer):
            import asyncio

            answer = asyncio.run(answer)
    except Exception as error:  # noqa: BLE001 - a probe that fails does not tell
        return Unknown(f"the probe failed: {type(error).__name__}")
    return look_of(answer)


class LedgerSource(KeyedSource):
    """The ledger's view: a row's mark is the state of its step."""

    def __init__(self, number: int, name: str, origin: SourceOrigin, rows: LedgerRows) -> None:
        super().__init__(number, name, origin, key="{key}", look=rows.look, show=("run", "state", "external"))
        self.ledger = rows

    def _ref(self, row: Row) -> str:
        return str(row["ref"])

    def mark(self, row: Row, *, plain: bool) -> bytes | str | None:
        return str(row["step_state"])


# -- the step that a duplicate is told apart by --------------------------------------------------


class RecordedStep(Struct, frozen=True):
    """A step that a run recorded as done, with its address, receipt and external id."""

    space: str
    flow: str
    receipt: Any
    external: str

    def is_of(self, step: Step, receipt: Mapping[str, Any]) -> bool:
        """Whether a row is the recorded effect: all fields of the receipt agree, or the external id does."""
        if self.external and step.external is not None and step.external({"result": receipt}) == self.external:
            return True
        ours = self.receipt
        return isinstance(ours, Mapping) and all(name in ours and _same(ours[name], receipt[name]) for name in receipt)


def _same(one: Any, other: Any) -> bool:
    return bool(one == other) or str(one) == str(other)


def recorded_step(store: Store, tenant: str, flows: Sequence[str], key: str, step: Step) -> list[RecordedStep]:
    """Return what runs of this key recorded for a step, in any of these flows."""
    found = []
    for flow in flows:
        at = run_address(space_of(tenant, flow, key))
        record = store.read(at).block().record
        for entry in block(entries_in(store, at.space)) if record is not None else ():
            if record is not None and entry.state == STEP_DONE and stem_of(entry.name) == step.name:
                found.append(RecordedStep(at.space, flow, _receipt(store, record, entry), entry.note.external))
    return found


# -- the ledger alone ----------------------------------------------------------------------------


def ledger_discrepancies(
    store: Store, tenant: str, hooks: Mapping[str, Hook], steps: Sequence[Step], label: str
) -> Iterator[Discrepancy]:
    """Return runs in review, keys that are forgotten before their sender stops retrying, and steps without a declared
    external id.
    """
    for records, _ in runs_of(store, tenant, state=REVIEW):
        for record in records:
            space = parse_space(record.at.space)
            reason = claim_of(record).reason
            yield Discrepancy(label, f"{space.operation}/{space.key}", (shown_id(record.at),), f"in review: {reason}")
    for hook in hooks.values():
        keep = hook.policy.life.keep
        if keep is not None and keep < hook.source.retry_window:
            known = f"ids are known for {keep:g} s, and its sender retries for {hook.source.retry_window:g} s"
            yield Discrepancy(label, f"webhook/{hook.name}", (), known)
    yield from _without_ids(store, tenant, {step.name for step in steps if step.external is not None}, label)


def _without_ids(store: Store, tenant: str, names: set[str], label: str) -> Iterator[Discrepancy]:
    for records, _ in runs_of(store, tenant, state=RUN_DONE) if names else ():
        by_space = {record.at.space: record for record in records}
        entries = store.beside(list(by_space), (STEP_KIND,), limit=ENTRIES).block() if by_space else ()
        for found in entries:
            entry, space = entry_of(found), parse_space(found.at.space)
            done = entry.state == STEP_DONE and not is_undo(entry.name) and stem_of(entry.name) in names
            if done and not entry.note.external:
                key = f"{space.operation}/{space.key}/{entry.name}"
                run = shown_id(by_space[found.at.space].at)
                yield Discrepancy(label, key, (run,), "done, and no external id was recorded")
