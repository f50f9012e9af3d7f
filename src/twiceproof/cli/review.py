"""`twiceproof review list|show|settle`: runs and claims that need a person's decision."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import click
from msgspec import Struct

from ..claims.claim import CLAIM, FAILED, NO_RESULT, QUEUED, REVIEW, RUN, validate_name
from ..claims.lists import list_records
from ..claims.views import ReviewedClaimShape, reviewed_shape
from ..flows.history.queries import Filter, all_runs
from ..flows.history.review import ReviewDecision, SettledRun, Verdict, settle_run
from ..flows.history.run_view import RunShape, run_shape
from ..operations import Operation, block
from ..stores.base import Store
from .doctor import NOWHERE
from .output import NEGATIVE, counted, show_json, show_text, span
from .prompts import (
    after_option,
    between,
    by_option,
    confirm,
    limit_option,
    login_name,
    note_option,
    read_result,
    result_option,
    time_options,
)
from .run_views import show_rows
from .runs import RUN_HELP, act_on_each, move_shape, moves_after, named_run, show
from .target import LedgerTarget, command, opened, target_options

__all__ = ["list_", "review", "settle", "settle_many"]


HEAD = ("FLOW OR OPERATION", "KEY", "KIND", "AGE", "REASON")

LIST_EPILOG = """\b
Examples:
  twiceproof review list
  twiceproof review list --flow sync_order --since 2h
"""


@click.command("list", epilog=LIST_EPILOG)
@click.option("--flow", metavar="NAME", default="", help="Only runs of this flow, or claims of this operation.")
@time_options
@limit_option()
@after_option
@target_options
@click.pass_obj
def list_(target: LedgerTarget, flow: str, since: str | None, until: str | None, limit: int, after: str | None) -> None:
    """List runs and claims that need a person's decision."""
    tenant = validate_name("tenant", target.tenant)
    with opened(target) as store:
        times = between(since, until, store.read(NOWHERE).block().now)
        which = Filter(tenant, flow and validate_name("flow", flow), "", "", *times)
        page = block(_list_reviews(store, which, limit=limit, after=after))
    given = {"--flow": flow, "--since": since, "--until": until, "--limit": str(limit)}
    moves = list(_list_moves(target, page, [word for name, value in given.items() if value for word in (name, value)]))
    if target.json:
        show_json({**{name: getattr(page, name) for name in page.__struct_fields__}, "next": moves})
    elif page.runs or page.claims:
        _show(page, moves)
    else:
        show_text("Nothing is in review.")


class ReviewPage(Struct, frozen=True):
    """One page of a list. `after` is the cursor of the next page; None on the last one."""

    runs: Sequence[RunShape]
    claims: Sequence[ReviewedClaimShape]
    after: str | None


def _list_reviews(store: Store, which: Filter, *, limit: int, after: str | None) -> Operation[ReviewPage]:
    listed = yield from list_records(
        store, [(RUN, REVIEW), (CLAIM, REVIEW)], which.fits, limit=limit, after=after, prefix=f"{which.tenant}/"
    )
    runs = [run_shape(record, listed.now) for record in listed.records if record.at.kind == RUN]
    claims = [reviewed_shape(record, listed.now) for record in listed.records if record.at.kind == CLAIM]
    return ReviewPage(runs, claims, listed.after)


def _list_moves(target: LedgerTarget, page: ReviewPage, given: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Name the command that shows each entry: the possible decisions depend on its steps, and are shown there."""
    for run in page.runs:
        yield _show_move(target, run.flow, run.key)
    for claim in page.claims:
        yield move_shape("To show a claim", command(target, "claims", "show", about=(claim.operation, claim.key)))
    if page.after is not None:
        yield move_shape("Next page", command(target, "review", "list", *given, "--after", page.after))


def _show(page: ReviewPage, moves: Sequence[dict[str, Any]]) -> None:
    """Print the list, and one move of each sort."""
    rows = [(f"{run.flow}@{run.version}", run.key, "run", span(run.age), run.reason) for run in page.runs]
    rows += [(claim.operation, claim.key, "claim", span(claim.age), claim.reason) for claim in page.claims]
    show_rows(HEAD, rows)
    told: set[str] = set()
    for move in moves:
        if move["why"] not in told:
            show_text(f"{move['why']}: {move['command']}")
            told.add(move["why"])


SHOWN = 5  # refusals that are printed; --json has all of them


def settle_many(target: LedgerTarget, bulk: BulkSettlement, word: ReviewDecision) -> None:
    """Settle all selected runs, after counting them: a settlement of many runs is hard to revert."""
    with opened(target) as store:
        times = between(bulk.since, bulk.until, store.read(NOWHERE).block().now)
        which = Filter(validate_name("tenant", target.tenant), validate_name("flow", bulk.flow), "", "", *times)
        runs = block(all_runs(store, which, (REVIEW,), limit=sys.maxsize))
        if bulk.dry_run or not runs:
            _show_many(target, len(runs), 0, [], _bulk_moves(target, bulk, word) if runs else [])
            return
        confirm(f"Settle {counted(len(runs), 'run')} of {bulk.flow} as {word.verdict}?", yes=bulk.yes)
        refused = act_on_each(runs, lambda at: settle_run(store, at, word), "settled", quiet=target.json)
    moves = [_show_move(target, bulk.flow, one["key"]) for one in refused]
    _show_many(target, len(runs), len(runs) - len(refused), refused, moves)
    if refused:
        raise click.exceptions.Exit(NEGATIVE)


def _bulk_moves(target: LedgerTarget, bulk: BulkSettlement, word: ReviewDecision) -> list[dict[str, Any]]:
    """Name the command that settles what a dry run counted, with the same decision."""
    given = {"--since": bulk.since, "--until": bulk.until, "--step": word.step, "--result": bytes(word.result).decode()}
    given |= {"--evidence": word.evidence, "--note": word.note, "--by": word.by}
    did = {None: [], True: ["--happened"], False: ["--did-not-happen"]}[word.did]
    words = [f"--{word.verdict}", *did, *(part for name, value in given.items() if value for part in (name, value))]
    return [
        move_shape("To settle them", command(target, "review", "settle", "--flow", bulk.flow, *words, "--yes")),
        move_shape("To list them", command(target, "review", "list", "--flow", bulk.flow)),
    ]


def _show_move(target: LedgerTarget, flow: str, key: str) -> dict[str, Any]:
    return move_shape("To show a run", command(target, "review", "show", about=(f"{flow}/{key}",)))


def _show_many(
    target: LedgerTarget,
    found: int,
    settled: int,
    refused: Sequence[dict[str, str]],
    moves: Sequence[dict[str, Any]],
) -> None:
    if target.json:
        show_json({"found": found, "settled": settled, "refused": refused, "next": moves})
        return
    show_text(f"{counted(found, 'run')} in review: {settled:,} settled, {len(refused):,} refused and not changed.")
    for one in refused[:SHOWN]:
        show_text(f"  {one['key']}: {one['reason']}")
    if len(refused) > SHOWN:
        show_text(f"  and {len(refused) - SHOWN} more; --json lists all of them")


SETTLE_EPILOG = f"""\b
Examples:
  twiceproof review settle sync_order/shop:order:17 --happened --result '{{"id": "ch_1"}}'
  twiceproof review settle sync_order/shop:order:17 --happened --evidence 12:charge
  twiceproof review settle sync_order/shop:order:17 --did-not-happen --note "asked the bank"
  twiceproof review settle sync_order/shop:order:17 --undo --did-not-happen
  twiceproof review settle --flow sync_order --since 2h --did-not-happen --dry-run
{RUN_HELP}
Without RUN, --flow settles all runs of a flow that are in review.
"""
SETTLED = {
    QUEUED: "is queued; a worker, or the next call, continues it.",
    REVIEW: "is still in review: the outcome of another step is unknown. Show it with `review show`.",
    FAILED: "is failed; nothing was undone.",
}


class BulkSettlement(Struct, frozen=True):
    """Which runs to settle if none is named."""

    flow: str
    since: str | None
    until: str | None
    yes: bool
    dry_run: bool


@click.command(epilog=SETTLE_EPILOG, short_help="Record what happened, so that a run in review can continue.")
@click.argument("run", required=False)
@click.option("--happened", is_flag=True, help="The step was done: continue with its result.")
@click.option("--did-not-happen", is_flag=True, help="The step was not done: run it again.")
@click.option("--retry", is_flag=True, help="The cause is repaired and no outcome is unknown: continue the run.")
@click.option(
    "--undo",
    is_flag=True,
    help="Undo completed steps and stop; with --happened or --did-not-happen if an outcome is unknown.",
)
@click.option("--abandon", is_flag=True, help="Mark the run as failed and undo nothing.")
@click.option("--step", default="", metavar="STEP", help="The step to settle; required if several are unknown.")
@result_option("--result", "With --happened: the return value of the step")
@click.option("--evidence", default="", metavar="ID", help="With --happened: take the return value from this evidence.")
@note_option("the run and the step")
@by_option
@click.option("--flow", default="", metavar="NAME", help="In bulk: settle all runs of this flow that are in review.")
@time_options
@click.option("--dry-run", is_flag=True, help="In bulk: count the runs without settling them.")
@click.option("--yes", is_flag=True, help="In bulk: do not ask for confirmation.")
@target_options
@click.pass_obj
def settle(
    target: LedgerTarget,
    /,
    run: str | None,
    flow: str,
    since: str | None,
    until: str | None,
    yes: bool,
    dry_run: bool,
    **given: Any,
) -> None:
    """Settle a run in review: record what happened, retry it, undo it or abandon it."""
    if bool(run) == bool(flow):
        raise click.UsageError("Name one RUN, or select runs with --flow; not both.")
    word = _word(**given)
    if not run:
        settle_many(target, BulkSettlement(flow, since, until, yes, dry_run), word)
        return
    if since or until or dry_run:
        raise click.UsageError("--since, --until and --dry-run require --flow; remove them, or use --flow.")
    with opened(target) as store:
        at = named_run(target, store, run)
        settled = block(settle_run(store, at, word, where=target.words()))
        moves = moves_after(target, store, at) if target.json else []
    _show_one(target, run, settled, word, moves)


def _word(
    *,
    happened: bool,
    did_not_happen: bool,
    retry: bool,
    undo: bool,
    abandon: bool,
    step: str,
    result: str | None,
    evidence: str,
    note: str,
    by: str | None,
) -> ReviewDecision:
    alone = retry or abandon
    if (happened and did_not_happen) or (retry and abandon) or (alone and (happened or did_not_happen or undo)):
        raise click.UsageError("These verdicts contradict each other; use one of them.")
    if not (happened or did_not_happen or undo or alone):
        raise click.UsageError(
            "The verdict is missing; use --happened, --did-not-happen, --retry, --undo or --abandon."
        )
    if (result is not None or evidence) and not happened:
        raise click.UsageError("--result and --evidence require --happened; remove them, or use --happened.")
    flags: dict[Verdict, bool] = {"undo": undo, "abandon": abandon, "retry": retry, "happened": happened}
    verdict: Verdict = next((name for name, is_set in flags.items() if is_set), "did-not-happen")
    did = True if happened else False if did_not_happen else None
    raw = NO_RESULT if result is None else read_result(result)
    return ReviewDecision(verdict, by or login_name(), note, step, raw, evidence, did if undo else None)


def _show_one(
    target: LedgerTarget, run: str, settled: SettledRun, word: ReviewDecision, moves: Sequence[dict[str, Any]]
) -> None:
    if target.json:
        show_json(
            {
                "settled": {
                    "run": settled.run,
                    "state": settled.state,
                    "verdict": settled.verdict,
                    "step": settled.step,
                    "by": word.by,
                    "note": word.note,
                },
                "next": moves,
            }
        )
    else:
        show_text(f"{run} {SETTLED[settled.state]}")


@click.group()
def review() -> None:
    """List runs and claims that need a decision, and settle runs."""


for _command in (list_, show, settle):
    review.add_command(_command)
