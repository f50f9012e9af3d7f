"""Checks: which keys are suspect, by a condition on their sorted rows; and whether freshly read rows of a key confirm
it.

Both are pure. A suspect becomes a discrepancy only if its rows, read again, still differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any, Literal

import msgspec
from msgspec import Struct

from ..claims.claim import ID_LETTERS
from ..errors import Misuse
from ..keys import canonical
from .matching import are_apart
from .sources import FieldPair, KeyedSource, SourceRow, field_value

__all__ = [
    "INCOMPLETE",
    "TOO_MANY",
    "UNUSABLE",
    "Comparison",
    "Condition",
    "Discrepancy",
    "condition_of",
    "finding_id",
    "judge",
    "pairs",
]

INCOMPLETE, UNUSABLE, TOO_MANY = "source-incomplete", "unusable-key", "too-many"

CheckKind = Literal["duplicates", "missing", "extra", "differ", "disagree", "ledger"]
Fresh = Mapping[int, Sequence[SourceRow]]  # the rows of one key, by the number of their source

DONE, PENDING = "done", "pending"  # the ledger's states of a key, as in the rows of `find.ledger`


class Comparison(Struct, frozen=True, eq=False):
    """One declared check. `label` is its name in findings; `then` is what is done about each finding."""

    kind: CheckKind
    label: str
    sources: tuple[KeyedSource, ...]
    then: Any = None
    most: int = 1  # with "duplicates": rows that one key may have
    direct: Callable[[], Iterable[Discrepancy]] | None = None  # with "ledger": discrepancies, found without matching

    @property
    def needs_absence(self) -> bool:
        """Whether a row that was not read would be mistaken for a missing one."""
        return self.kind in ("missing", "extra", "disagree")


class Discrepancy(Struct, frozen=True):
    """What is wrong with one key: the ids of the rows concerned, a sentence, and the contents of the rows."""

    check: str
    key: str
    refs: tuple[str, ...]
    summary: str
    records: dict[str, list[dict[str, Any]]] = {}


def finding_id(name: str, found: Discrepancy) -> str:
    """Return the id of a finding: equal for the same discrepancy in every run, since it contains no time and nothing
    random.
    """
    hashed = sha256(canonical([name, found.check, found.key, sorted(found.refs)])).digest()
    bits = int.from_bytes(hashed[:13])
    return "fnd_" + "".join(ID_LETTERS[bits >> shift & 31] for shift in range(95, -1, -5))


# -- suspects ------------------------------------------------------------------------------------


class Condition(Struct, frozen=True):
    """A condition on the rows of one key, as SQL."""

    having: str
    sources: tuple[int, ...]
    values: tuple[Any, ...] = ()


def condition_of(check: Comparison, *, sealed: bool) -> Condition:
    numbers = tuple(source.number for source in check.sources)
    if check.kind == "duplicates":
        counted = "count(DISTINCT ref)" if check.sources[0].has_ids else "count(*)"
        return Condition(f"{counted} > ?", numbers, (check.most,))
    left, right = numbers
    if check.kind in ("missing", "extra"):
        return Condition("max(source = ?) AND NOT max(source = ?)", numbers, (left, right))
    if check.kind == "differ":
        return _differing(check, left, right, sealed=sealed)
    return _disagreeing(left, right, by_id=check.sources[1].has_ids)


def _differing(check: Comparison, left: int, right: int, *, sealed: bool) -> Condition:
    """One row on each side, with different values. Another check handles several rows of one key."""
    one = "count(DISTINCT CASE WHEN source = ? THEN ref END) = 1"
    mark = "max(CASE WHEN source = ? THEN mark END)"
    having = f"{one} AND {one} AND {mark} IS NOT {mark}"
    values: tuple[Any, ...] = (left, right, left, right)
    tolerances = [pair.tolerance for pair in check.sources[0].fields]
    if not sealed and any(tolerance is not None for tolerance in tolerances):
        having += f" AND apart({mark}, {mark}, ?)"
        values += (left, right, msgspec.json.encode(tolerances).decode())
    return Condition(having, (left, right), values)


def _disagreeing(ledger: int, there: int, *, by_id: bool) -> Condition:
    """Done in the ledger and missing there; there, and not done in the ledger; or done under an id that is not
    there.
    """
    done = f"max(source = ? AND mark = '{DONE}')"
    pending = f"max(source = ? AND mark = '{PENDING}')"
    known = "max(source = ? AND ref <> '')"
    foreign = "count(DISTINCT NULLIF(ref, '')) > count(DISTINCT CASE WHEN source = ? THEN ref END)"
    having = f"({done} AND NOT max(source = ?)) OR (max(source = ?) AND NOT {done} AND NOT {pending})"
    values: tuple[Any, ...] = (ledger, there, there, ledger, ledger)
    if by_id:
        having += f" OR ({done} AND max(source = ?) AND {known} AND {foreign})"
        values += (ledger, there, ledger, there)
    return Condition(having, (ledger, there), values)


# -- fresh rows ----------------------------------------------------------------------------------


def judge(check: Comparison, key: str, fresh: Fresh) -> Discrepancy | None:
    """Return what is wrong with a key, by its freshly read rows; None if nothing is."""
    rows = [_distinct(source, fresh.get(source.number, ())) for source in check.sources]
    sentence, refs = _JUDGES[check.kind](check, rows)
    if not sentence:
        return None
    records = {
        source.name: [source.shown(one.row) | {"ref": one.ref} for one in found[:20]]
        for source, found in zip(check.sources, rows, strict=True)
    }
    return Discrepancy(check.label, key, tuple(sorted(refs)), sentence, records)


def _distinct(source: KeyedSource, rows: Sequence[SourceRow]) -> list[SourceRow]:
    """Drop repeated rows: a row with an id that came on two pages is one row."""
    return list({row.ref: row for row in rows}.values()) if source.has_ids else list(rows)


def _ids(source: KeyedSource, rows: Sequence[SourceRow]) -> list[str]:
    """Return the ids of rows, for the finding's own id. The contents of a row without an id may change from day to
    day.
    """
    return [row.ref for row in rows if row.ref] if source.has_ids else []


Judged = tuple[str, list[str]]
NOTHING: Judged = ("", [])


def _duplicates(check: Comparison, rows: list[list[SourceRow]]) -> Judged:
    found = rows[0]
    if len(found) <= check.most:
        return NOTHING
    source = check.sources[0]
    return f"{len(found)} in {source.name}, where {check.most} should be", _ids(source, found)


def _missing(check: Comparison, rows: list[list[SourceRow]]) -> Judged:
    here, there = rows
    if not here or there:
        return NOTHING
    left, right = check.sources
    return f"in {left.name}, and not in {right.name}", _ids(left, here)


def _differ(check: Comparison, rows: list[list[SourceRow]]) -> Judged:
    if len(rows[0]) != 1 or len(rows[1]) != 1:
        return NOTHING
    left, right = rows[0][0], rows[1][0]
    apart = []
    for ours, theirs in zip(check.sources[0].fields, check.sources[1].fields, strict=True):
        values = [field_value(left.row.get(ours.name), ours), field_value(right.row.get(theirs.name), theirs)]
        if are_apart(*(msgspec.json.encode([value]).decode() for value in (*values, ours.tolerance))):
            apart.append(
                f"{ours.name} is {values[0]} in {check.sources[0].name}, {values[1]} in {check.sources[1].name}"
            )
    ids = _ids(check.sources[0], rows[0]) + _ids(check.sources[1], rows[1])
    return ("; ".join(apart), ids) if apart else NOTHING


def _disagree(check: Comparison, rows: list[list[SourceRow]]) -> Judged:
    ours, theirs = rows
    there = check.sources[1].name
    done = [row for row in ours if row.row["step_state"] == DONE]
    pending = any(row.row["step_state"] == PENDING for row in ours)
    refs = _ids(check.sources[1], theirs)
    if done and not theirs:
        return f"the ledger says done, and it is not in {there}", [row.ref for row in done if row.ref]
    if theirs and not done and not pending:
        state = f"its run is {ours[0].row['state']}" if ours else "the ledger knows no run of it"
        return f"in {there}, and {state}", refs
    recorded = [row.ref for row in done if row.ref]
    if recorded and refs and not set(recorded) & set(refs):
        return f"the ledger recorded {recorded[0]}, and {there} has {', '.join(refs[:5])}", refs
    return NOTHING


_JUDGES: dict[str, Callable[[Comparison, list[list[SourceRow]]], Judged]] = {
    "duplicates": _duplicates,
    "missing": _missing,
    "extra": _missing,
    "differ": _differ,
    "disagree": _disagree,
}


def pairs(fields: Mapping[str, str] | Sequence[str], tolerance: Any) -> tuple[tuple[FieldPair, ...], ...]:
    """Return the fields of `find.differ` for each side: `{"total": "amount"}`, or the same names on both."""
    named = dict(fields) if isinstance(fields, Mapping) else {name: name for name in fields}
    if not named:
        raise Misuse('find.differ needs fields to compare; write fields={"total": "amount"}.')
    by_field = dict(tolerance) if isinstance(tolerance, Mapping) else dict.fromkeys(named, tolerance)
    texts = {name: None if by_field.get(name) is None else str(by_field[name]) for name in named}
    return (
        tuple(FieldPair(name, texts[name]) for name in named),
        tuple(FieldPair(there, texts[here]) for here, there in named.items()),
    )
