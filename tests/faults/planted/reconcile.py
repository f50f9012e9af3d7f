"""Planted bugs of reconciliation."""

from __future__ import annotations

import itertools
from typing import Any

from msgspec import structs

from twiceproof.reconcile import actions, findings, looking, run
from twiceproof.reconcile.actions import CompensateDuplicates


def missing_from_half_a_source() -> None:
    """A source that was not read to its end counts as whole."""
    for module in (run, looking):
        read = module.read_source
        module.read_source = lambda *given, read=read: structs.replace(read(*given), whole=True, why="")  # type: ignore[attr-defined]


def cap_for_each_item() -> None:
    """The cap is compared with one action at a time, and not with the whole plan."""
    refuses = actions.Cap.refuses
    actions.Cap.refuses = lambda self, planned, rows: refuses(self, 1, rows)  # type: ignore[method-assign]


def oldest_is_kept() -> None:
    """Of several rows the first stays, whatever the ledger recorded."""

    def surplus(self: Any, around: Any, key: str, rows: Any) -> Any:
        return {row.ref: row for row in rows[1:]}, f"{around.runtime.tenant}/sync/{key}"

    CompensateDuplicates._surplus = surplus  # type: ignore[method-assign]
    from twiceproof.flows.parallel import compensate_duplicate

    def trusting(session: Any, duplicate: Any) -> Any:
        yield from ()

    compensate_duplicate._refuse_recorded_effect = trusting  # type: ignore[assignment]


def time_in_the_id() -> None:
    """A finding's id has the time in it: each run finds it anew."""
    times, made = itertools.count(), findings.finding_id

    def with_time(name: str, found: Any) -> str:
        return made(f"{name}{next(times)}", found)

    findings.finding_id = run.finding_id = with_time  # type: ignore[attr-defined]
