"""Find or create a row in a table that has no unique column: `table.find_or_create(table.airtable(…), key, values)`.

The row's key is claimed; then the row is looked for, created, and looked for again, to make sure that there is exactly
one. This holds only if every program that writes to the table does the same; rows added by hand or by other programs
are not guarded. If several rows are found, nothing is deleted: they are reported, and a person decides.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Literal, Protocol

from msgspec import Struct

from ..errors import ClaimError, ClaimLost, Misuse, NotDone, OutcomeUnknown
from ..keys.maker import composite
from .base import Absent, Happened, Look, Unknown, refuse_blank_key
from .json_api import plain_values
from .repeat import Declared, check
from .table_services import RowTable, StoredTableRow, airtable, sharepoint, sheets

__all__ = ["FoundRow", "RowClaims", "RowFinding", "airtable", "find_or_create", "sharepoint", "sheets"]

log = logging.getLogger("twiceproof")

OPERATION = "table-row"
KEEP = 2.0  # seconds that a claim is kept after its work, so that waiting callers see its end
LEASE = 60.0
SLACK = 5.0

Several = Literal["review", "first"]


class RowClaims(Protocol):
    """What guards a row's key: an `App`, or any object with the same `claim` method."""

    def claim(self, operation: str, key: str, **options: Any) -> AbstractContextManager[Any]: ...


class FoundRow(Struct, frozen=True):
    """`created` is None if that is no longer known. `others` are the ids of further rows with this key."""

    id: str
    created: bool | None = None
    others: list[str] = []


def find_or_create(
    table: RowTable,
    key: Mapping[str, Any],
    values: Mapping[str, Any],
    *,
    claims: RowClaims | None = None,
    several: Several = "review",
) -> RowFinding:
    """Find the row with this key, or create it with these values.

    Args:
        table: `table.airtable(…)`, `table.sheets(…)` or `table.sharepoint(…)`.
        key: The columns and values that name the row.
        values: The other columns of a new row. A row that is found is not changed.
        claims: The app, by whose claims the key is guarded. All programs that write to the table must use the same
            store. A SharePoint list with a unique column needs none.
        several: What happens if there are several rows: "review" leaves it to a person, "first" continues with the
            oldest. Both report them; neither deletes any.
    """
    if not key:
        raise Misuse("A row is named by its key; give key={column: value}.")
    if claims is None and not table.unique:
        raise Misuse(f"{table.name} has no unique column, so two rows may be created at once; give claims=app.")
    if several not in ("review", "first"):
        raise Misuse(f'several={several!r} is not known; use "review" or "first".')
    found = plain_values(key)
    refuse_blank_key(found)
    return RowFinding(table, found, plain_values(values, without=found), claims, several)


class RowFinding(Struct, frozen=True):
    """`find_or_create(…)`: the table is asked whether the row is there."""

    table: RowTable
    key: dict[str, Any]
    values: dict[str, Any]
    claims: RowClaims | None = None
    several: Several = "review"

    @property
    def name(self) -> str:
        return f"find or create {self.table.name}"

    @property
    def repeat(self) -> Declared:
        return check(self.look, settling=self.table.timeout + SLACK)

    @property
    def result_type(self) -> Any:
        return FoundRow

    def describe(self) -> dict[str, Any]:
        return {"find or create": self.table.name, "key": self.key, "values": self.values}

    def perform(self, effect_key: str) -> FoundRow:
        with self._guarded() as held:
            rows = self._find()
            if rows:
                return self._one_of(rows, created=False)
            if not held:
                raise NotDone(f"the row {self._shown} was just removed by another; try again.", retry_after=KEEP)
            created = self._create(effect_key)
            rows = self._find_again()
            if not rows:
                raise OutcomeUnknown(f"the row {self._shown} was created, and is not found; look at {self.table.name}.")
            return self._one_of(rows, created=rows[0].id == created)

    def _find(self) -> list[StoredTableRow]:
        """Look before anything is created: a failure here means that nothing was done."""
        try:
            return self.table.find(self.key)
        except OutcomeUnknown as error:
            raise NotDone(str(error), retry_after=error.data.get("retry_after")) from error

    def _find_again(self) -> list[StoredTableRow]:
        """Look after a row was or may have been created: a failure here leaves the outcome unknown."""
        try:
            return self.table.find(self.key)
        except (NotDone, OutcomeUnknown) as error:
            wait = error.data.get("retry_after")
            raise OutcomeUnknown(f"{error} A row was created, or may have been.", retry_after=wait) from error

    def _create(self, effect_key: str) -> str:
        """Return the new row's id. After a refusal or a missing answer the row may exist; then it is looked for
        again.
        """
        try:
            return self.table.create({**self.key, **self.values}, effect_key)
        except NotDone:
            if not (self.table.unique and self._find()):
                raise
        except OutcomeUnknown:
            if not self._find_again():
                raise
        return ""

    def _one_of(self, rows: list[StoredTableRow], *, created: bool) -> FoundRow:
        others = [row.id for row in rows[1:]]
        if not others:
            return FoundRow(rows[0].id, created)
        ids = ", ".join(row.id for row in rows)
        log.warning("%s has %d rows for %s: %s", self.table.name, len(rows), self._shown, ids)
        if self.several == "review":
            raise OutcomeUnknown(
                f"{len(rows)} found: {self.table.name} has the rows {ids} for {self._shown}. Keep one, remove the "
                "others, and settle the step.",
                repeats=True,
            )
        return FoundRow(rows[0].id, created, others)

    def found_several(self, result: FoundRow) -> tuple[str, ...]:
        """The rows of a result that should be one: the engine records a finding about them."""
        return (result.id, *result.others) if result.others else ()

    @contextmanager
    def _guarded(self) -> Iterator[bool]:
        """Hold the claim on the row's key. False: another caller has just finished its work on it."""
        if self.claims is None:
            yield True
            return
        key = composite(self.table.name, *(f"{column}={value}" for column, value in sorted(self.key.items())))
        options = {"on_duplicate": "wait", "on_failure": "release", "repeat": "safe", "keep": KEEP, "lease": LEASE}
        try:
            with ExitStack() as stack:
                yield self._entered(stack, self.claims.claim(OPERATION, key, stable=True, **options))
        except ClaimLost as error:
            raise OutcomeUnknown(f"the claim on the row {self._shown} was lost meanwhile ({error})") from error

    def _entered(self, stack: ExitStack, claim: AbstractContextManager[Any]) -> bool:
        try:
            return bool(stack.enter_context(claim).held)
        except ClaimError as error:
            raise NotDone(f"the row {self._shown} is being worked on ({error})", retry_after=KEEP) from error

    @property
    def _shown(self) -> str:
        return ", ".join(f"{column}={value!r}" for column, value in self.key.items())

    def look(self, effect_key: str) -> Look:
        try:
            rows = self.table.find(self.key)
        except (NotDone, OutcomeUnknown) as error:
            return Unknown(str(error), failed=True)
        if len(rows) > 1 and self.several == "review":
            return Unknown.several((row.id for row in rows), self.table.name)
        return Happened(FoundRow(rows[0].id, None, [row.id for row in rows[1:]])) if rows else Absent()
