"""Settles many runs by one word: those of a flow that came into review within some time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from ..claims.claim import REVIEW, validate_name
from ..drive import Operation, block
from ..errors import Misuse
from ..flows.history.review import Word, settle_run
from ..flows.history.run_shape import RunShape
from ..flows.history.runs import Filter, address_of_run, list_runs
from ..stores.base import Store
from .checks import NOWHERE
from .confirm import confirm
from .failures import NEGATIVE
from .ledger import opened
from .output import show_json, show_text
from .progress import Progress
from .target import Target
from .when import between

if TYPE_CHECKING:
    from .review_settle import Many

__all__ = ["settle_many"]

PAGE = 1_000
SHOWN = 5  # refusals told one by one; --json gives all


def settle_many(target: Target, many: Many, word: Word) -> None:
    """Counted first: a word about many is hard to take back."""
    with opened(target) as store:
        times = between(many.since, many.until, store.read(NOWHERE).block().now)
        which = Filter(validate_name("tenant", target.tenant), validate_name("flow", many.flow), "", "", *times)
        runs = block(_meant(store, which))
        if many.dry_run or not runs:
            _tell(target, len(runs), 0, [])
            return
        confirm(f"Settle {len(runs)} runs of {many.flow} as {word.verdict}?", yes=many.yes)
        refused = _settle(store, runs, word, quiet=target.json)
    _tell(target, len(runs), len(runs) - len(refused), refused)
    if refused:
        raise click.exceptions.Exit(NEGATIVE)


def _meant(store: Store, which: Filter) -> Operation[list[RunShape]]:
    found: list[RunShape] = []
    after: str | None = None
    while True:
        page = yield from list_runs(store, which, (REVIEW,), limit=PAGE, after=after)
        found += page.runs
        if page.after is None:
            return found
        after = page.after


def _settle(store: Store, runs: Sequence[RunShape], word: Word, *, quiet: bool) -> list[dict[str, str]]:
    """One after the other: what the word does not fit is left as it is, and told."""
    refused = []
    with Progress("settled", quiet=quiet) as progress:
        for number, run in enumerate(runs, 1):
            try:
                block(settle_run(store, address_of_run(run.tenant, run.run), word))
            except Misuse as error:
                refused.append({"run": run.run, "key": run.key, "why": str(error)})
            progress.show(number, len(runs))
    return refused


def _tell(target: Target, found: int, settled: int, refused: Sequence[dict[str, str]]) -> None:
    if target.json:
        show_json({"found": found, "settled": settled, "refused": refused})
        return
    show_text(f"{found} in review, {settled} settled, {len(refused)} left as they are.")
    for one in refused[:SHOWN]:
        show_text(f"  {one['key']}: {one['why']}")
    if len(refused) > SHOWN:
        show_text(f"  and {len(refused) - SHOWN} more; all of them: --json")
