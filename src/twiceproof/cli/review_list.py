"""`twiceproof review list`: whatever waits for a person, runs and claims alike."""

from __future__ import annotations

from collections.abc import Sequence

import click
from msgspec import Struct

from ..claims.claim import CLAIM, REVIEW, RUN, validate_name
from ..claims.listing import list_records
from ..drive import Operation, block
from ..flows.history.run_shape import RunShape, run_shape
from ..flows.history.runs import Filter
from ..stores.base import Store
from .checks import NOWHERE
from .claim_shape import ReviewedClaimShape, reviewed_shape
from .ledger import opened
from .output import show_json, show_text
from .run_table import show_rows
from .shell import command
from .span import span
from .target import Target, target_options
from .when import between, time_options

__all__ = ["list_"]

HEAD = ("FLOW OR OPERATION", "KEY", "KIND", "AGE", "WHY")

EPILOG = """\b
Examples:
  twiceproof review list
  twiceproof review list --flow sync_order --since 2h
"""


@click.command("list", epilog=EPILOG, short_help="List what waits for a person: runs, and claims.")
@click.option("--flow", metavar="NAME", default="", help="Only runs of this flow, or claims of this operation.")
@time_options[0]
@time_options[1]
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="At most so many.")
@click.option("--after", metavar="CURSOR", help="Go on where an earlier answer ended.")
@target_options
@click.pass_obj
def list_(
    target: Target, flow: str, since: str | None, until: str | None, limit: int, after: str | None
) -> None:  # fmt: skip
    """List what waits for a person: runs, and claims of guarded functions and of tools over HTTP."""
    tenant = validate_name("tenant", target.tenant)
    with opened(target) as store:
        times = between(since, until, store.read(NOWHERE).block().now)
        which = Filter(tenant, flow and validate_name("flow", flow), "", "", *times)
        page = block(_list_reviews(store, which, limit=limit, after=after))
    if target.json:
        show_json(page)
    elif page.runs or page.claims:
        _show(target, page)
    else:
        show_text("Nothing is in review.")


class ReviewPage(Struct, frozen=True):
    """Part of a list. `after` continues it; None means that this was the last part."""

    runs: Sequence[RunShape]
    claims: Sequence[ReviewedClaimShape]
    after: str | None


def _list_reviews(store: Store, which: Filter, *, limit: int, after: str | None) -> Operation[ReviewPage]:
    listed = yield from list_records(store, [(RUN, REVIEW), (CLAIM, REVIEW)], which.fits, limit=limit, after=after)
    runs = [run_shape(record, listed.now) for record in listed.records if record.at.kind == RUN]
    claims = [reviewed_shape(record, listed.now) for record in listed.records if record.at.kind == CLAIM]
    return ReviewPage(runs, claims, listed.after)


def _show(target: Target, page: ReviewPage) -> None:
    rows = [(f"{run.flow}@{run.version}", run.key, "run", span(run.age), run.reason) for run in page.runs]
    rows += [(claim.operation, claim.key, "claim", span(claim.age), claim.reason) for claim in page.claims]
    show_rows(HEAD, rows)
    if page.runs:
        run = page.runs[0]
        show_text(f"Look at a run: {command(target, 'review', 'show', about=(f'{run.flow}/{run.key}',))}")
    if page.claims:
        claim = page.claims[0]
        show_text(f"Look at a claim: {command(target, 'claims', 'show', about=(claim.operation, claim.key))}")
    if page.after is not None:
        show_text(f"There is more; say the same again with: --after {page.after}")
