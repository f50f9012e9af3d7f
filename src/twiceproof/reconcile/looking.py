"""The second look: the rows of single keys, read again later. If a row cannot be read again, the outcome is unsure, not
absent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ..claims.claim import parse_space, run_address
from ..effects.base import Absent, Happened, Unknown
from ..flows.engine.step_identity import stem_of
from ..flows.limits import Rate, admit
from ..operations import Operation, block
from ..stores.base import Store
from .checks import Comparison, Discrepancy, judge
from .findings import LOOKS, ReconcileNote, record_run
from .ledger_rows import LedgerSource
from .readers import Reading, Row, RowReader, as_reader
from .sources import KeyedSource, SourceOrigin, SourceRow, Unkeyed, read_source

__all__ = ["SecondLook", "Wanted", "report_several"]

Wanted = tuple[Comparison, str]  # a check, and the key of a suspect
DEFAULT_RATE = Rate(10, 1.0)  # looks at a source that has `look=`
LONGEST_PAUSE = 1.0


class SecondLook:
    """Freshly reads the rows of some keys. Sources without `look=` are read once more, for all keys together."""

    def __init__(self, store: Store, tenant: str, name: str, reading: Reading, rows_before: Mapping[str, int]) -> None:
        self._store = store
        self._tenant = tenant
        self._name = name
        self._reading = reading
        self._rows_before = rows_before
        self._rows: dict[int, dict[str, list[SourceRow]]] = {}
        self._unsure: dict[tuple[int, str], str] = {}
        self._untold: dict[int, str] = {}  # sources that could not be read again

    def ask(self, wanted: Iterable[Wanted]) -> None:
        """Read the rows of these keys in all sources of their checks."""
        keys: dict[int, set[str]] = {}
        views: dict[int, KeyedSource] = {}
        for check, key in wanted:
            for source in check.sources:
                keys.setdefault(source.number, set()).add(key)
                views[source.number] = source
        again: dict[int, tuple[SourceOrigin, list[KeyedSource]]] = {}
        for number, view in views.items():
            if view.look is not None:
                self._look_at_each(view, view.look, sorted(keys[number]))
            else:
                again.setdefault(id(view.origin), (view.origin, []))[1].append(view)
        for origin, several in again.values():
            self._read_again(origin, several, keys)

    def _look_at_each(self, view: KeyedSource, look: Callable[[str], Any], keys: list[str]) -> None:
        rows = self._rows.setdefault(view.number, {})
        for key in keys:
            if not isinstance(view, LedgerSource):
                self._pace(view)
            try:
                found = _rows_of(look(key), self._reading)
            except Exception as error:  # noqa: BLE001 - a look that fails does not tell
                self._unsure[view.number, key] = f"{type(error).__name__}: {error}"[:200]
                continue
            if isinstance(found, Unknown):
                self._unsure[view.number, key] = found.why or "its source cannot tell"
                continue
            known = [view.row(row) for row in found]
            unkeyed = next((one for one in known if isinstance(one, Unkeyed)), None)
            if unkeyed is not None:  # it may be the row that was asked for
                self._unsure[view.number, key] = f"its look returned a row without a usable key: {unkeyed.why}"[:200]
                continue
            rows[key] = [one for one in known if isinstance(one, SourceRow) and one.key == key]

    def _pace(self, view: KeyedSource) -> None:
        """Wait, so that all workers together keep the rate."""
        rate = view.origin.rate or DEFAULT_RATE
        meter = f"{self._name}.{view.origin.name}"
        while (wait := block(admit(self._store, self._tenant, meter, rate))) > 0:
            self._reading.clock.sleep(min(wait, LONGEST_PAUSE))

    def _read_again(self, origin: SourceOrigin, views: list[KeyedSource], keys: Mapping[int, set[str]]) -> None:
        def keep(view: KeyedSource, found: SourceRow) -> None:
            if found.key in keys[view.number]:
                self._rows.setdefault(view.number, {}).setdefault(found.key, []).append(found)

        before = self._rows_before.get(origin.name)
        told = read_source(origin, views, self._reading, before, keep)
        for view in views:
            if not told.whole:
                self._untold[view.number] = f"{origin.name} could not be read again: {told.why}"

    # -- answers ---------------------------------------------------------------------------------

    def judge(self, check: Comparison, key: str) -> Discrepancy | Unknown | None:
        """Return what is wrong with a key, by its freshly read rows; None if nothing is wrong any more."""
        why = self._why_unsure(check, key)
        if why:
            return Unknown(why)
        fresh = {source.number: self.rows(source, key) for source in check.sources}
        found = judge(check, key, fresh)
        if found is None or check.kind != "disagree" or fresh[check.sources[1].number]:
            return found
        return self._by_probe(check, key, found)

    def _by_probe(self, check: Comparison, key: str, found: Discrepancy) -> Discrepancy | Unknown | None:
        """For a row that is done in the ledger and absent there: the step's own probe, if there is one, must confirm
        it.
        """
        ledger = check.sources[0]
        answer = ledger.ledger.probe(key) if isinstance(ledger, LedgerSource) else None
        if isinstance(answer, Happened):
            return None
        return answer if isinstance(answer, Unknown) else found

    def _why_unsure(self, check: Comparison, key: str) -> str:
        for source in check.sources:
            why = self._untold.get(source.number) or self._unsure.get((source.number, key))
            if why:
                return why
        return ""

    def rows(self, source: KeyedSource, key: str) -> list[SourceRow]:
        return self._rows.get(source.number, {}).get(key, [])


def _rows_of(answer: Any, reading: Reading) -> list[Row] | Unknown:
    """Return the rows in what `look=` returned: nothing, a row, rows, a reader, or a probe's answer."""
    if isinstance(answer, type) and issubclass(answer, Absent | Unknown):
        answer = answer()
    if answer is None or isinstance(answer, Absent):
        return []
    if isinstance(answer, Unknown):
        return answer
    if isinstance(answer, Happened):
        answer = answer.receipt
    if isinstance(answer, Mapping):
        return [answer]
    reader: RowReader = answer if isinstance(answer, RowReader) else as_reader(list(answer))
    return list(reader.rows(reading))


# -- looks of single steps -----------------------------------------------------------------------


def report_several(
    store: Store, space: str, step: str, found: Sequence[str], *, goes_on: bool = False
) -> Operation[None]:
    """Record a finding: the destination has several records for a step's effect.

    Either the run stops for review, or it `goes_on` with one of them; then other runs meet the same records, and the
    finding is about the step and not the run. It has the ids; it is counted and notified like those of a
    reconciliation, and a person resolves it. The same records found again are the same finding.
    """
    run = parse_space(space)
    key = f"{run.operation} {stem_of(step)}" if goes_on else f"{run.operation}/{run.key} {step}"
    now = (yield from store.read(run_address(space))).now
    summary = f"{step} of {run.operation}/{run.key} is {len(found)} times at its destination: {', '.join(found)}"
    seen = Discrepancy("several-found", key, tuple(sorted(found)), summary)
    yield from record_run(store, run.tenant, ReconcileNote(LOOKS, now), [seen], (), ())
