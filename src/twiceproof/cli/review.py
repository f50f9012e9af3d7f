"""Review list|show|settle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
from msgspec import Struct

from ..claims.claim import CLAIM, FAILED, NO_RESULT, QUEUED, REVIEW, RUN, address_of, validate_name
from ..claims.queries import list_records
from ..errors import Misuse
from ..flows.history.queries import Filter, list_runs
from ..flows.history.review import SettledRun, Verdict, Word, settle_run
from ..flows.history.run_view import RunShape, run_shape
from ..operations import Operation, block
from ..stores.base import Store
from .claim_views import ReviewedClaimShape, reviewed_shape
from .doctor import NOWHERE
from .failures import NEGATIVE
from .output import Progress, show_json, show_text, span
from .prompts import between, confirm, login_name, read_result, time_options
from .run_views import show_rows
from .runs import named_run, show
from .target import LedgerTarget, command, opened, target_options

__all__ = ["list_", "review", "settle", "settle_many"]


HEAD = ("FLOW OR OPERATION", "KEY", "KIND", "AGE", "WHY")

LIST_EPILOG = """\b
Examples:
  twiceproof review list
  twiceproof review list --flow sync_order --since 2h
"""


@click.command("list", epilog=LIST_EPILOG, short_help="List what waits for a person: runs, and claims.")
@click.option("--flow", metavar="NAME", default="", help="Only runs of this flow, or claims of this operation.")
@time_options[0]
@time_options[1]
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="At most so many.")
@click.option("--after", metavar="CURSOR", help="Go on where an earlier answer ended.")
@target_options
@click.pass_obj
def list_(target: LedgerTarget, flow: str, since: str | None, until: str | None, limit: int, after: str | None) -> None:
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


def _show(target: LedgerTarget, page: ReviewPage) -> None:
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


PAGE = 1_000
SHOWN = 5  # refusals told one by one; --json gives all


def settle_many(target: LedgerTarget, many: Many, word: Word) -> None:
    """Counted first: a word about many is hard to take back."""
    with opened(target) as store:
        times = between(many.since, many.until, store.read(NOWHERE).block().now)
        which = Filter(validate_name("tenant", target.tenant), validate_name("flow", many.flow), "", "", *times)
        runs = block(_meant(store, which))
        if many.dry_run or not runs:
            _tell_many(target, len(runs), 0, [])
            return
        confirm(f"Settle {len(runs)} runs of {many.flow} as {word.verdict}?", yes=many.yes)
        refused = _settle(store, runs, word, quiet=target.json)
    _tell_many(target, len(runs), len(runs) - len(refused), refused)
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
                block(settle_run(store, address_of(run.tenant, run.flow, run.key, RUN), word))
            except Misuse as error:
                refused.append({"run": run.run, "key": run.key, "why": str(error)})
            progress.show(number, len(runs))
    return refused


def _tell_many(target: LedgerTarget, found: int, settled: int, refused: Sequence[dict[str, str]]) -> None:
    if target.json:
        show_json({"found": found, "settled": settled, "refused": refused})
        return
    show_text(f"{found} in review, {settled} settled, {len(refused)} left as they are.")
    for one in refused[:SHOWN]:
        show_text(f"  {one['key']}: {one['why']}")
    if len(refused) > SHOWN:
        show_text(f"  and {len(refused) - SHOWN} more; all of them: --json")


SETTLE_EPILOG = """\b
Examples:
  twiceproof review settle sync_order/shop:order:17 --happened --result '{"id": "ch_1"}'
  twiceproof review settle sync_order/shop:order:17 --happened --evidence 12:charge
  twiceproof review settle sync_order/shop:order:17 --did-not-happen --note "asked the bank"
  twiceproof review settle sync_order/shop:order:17 --undo --did-not-happen
  twiceproof review settle --flow sync_order --since 2h --did-not-happen --dry-run
RUN is a run's id, FLOW/KEY, or a KEY that only one run has;
without it, all of a --flow are meant.
"""
WORDS = {
    QUEUED: "is queued: a worker goes on with it, or the next call.",
    REVIEW: "waits for a word about another step: look at it again.",
    FAILED: "is failed for good; nothing was undone.",
}


class Many(Struct, frozen=True):
    """Which runs are meant where none is named."""

    flow: str
    since: str | None
    until: str | None
    yes: bool
    dry_run: bool


@click.command(epilog=SETTLE_EPILOG, short_help="Say what happened, and have the run go on.")
@click.argument("run", required=False)
@click.option("--happened", is_flag=True, help="The step happened: the run goes on with its result.")
@click.option("--did-not-happen", is_flag=True, help="The step did not happen: it is tried again.")
@click.option(
    "--retry", is_flag=True, help="What stopped the run is repaired: it goes on. Nothing about it is unknown."
)
@click.option(
    "--undo",
    is_flag=True,
    help="Undo what is done, and stop. Where an outcome is unknown, together with --happened or --did-not-happen.",
)
@click.option("--abandon", is_flag=True, help="Leave everything as it is: failed, and nothing is undone.")
@click.option("--step", default="", metavar="STEP", help="Which step is meant, where several are unknown.")
@click.option(
    "--result",
    metavar="JSON|@FILE|-",
    help="With --happened: what the step returned; @FILE reads it from a file, `-` from stdin.",
)
@click.option(
    "--evidence", default="", metavar="ID", help="With --happened: adopt what this piece of evidence says it returned."
)
@click.option("--note", default="", metavar="TEXT", help="Why: kept with the run and the step.")
@click.option("--by", metavar="NAME", help="Whose word this is. Default: your login name.")
@click.option("--flow", default="", metavar="NAME", help="In bulk: all runs of this flow that are in review.")
@time_options[0]
@time_options[1]
@click.option("--dry-run", is_flag=True, help="In bulk: only count them.")
@click.option("--yes", is_flag=True, help="In bulk: do not ask.")
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
    """Settle a run in review: what happened, what did not, undo it, or leave it."""
    if bool(run) == bool(flow):
        raise click.UsageError("Name one RUN, or say which are meant with --flow (and --since, --until).")
    word = _word(**given)
    if not run:
        settle_many(target, Many(flow, since, until, yes, dry_run), word)
        return
    if since or until or dry_run:
        raise click.UsageError("--since, --until and --dry-run go with --flow, not with one RUN.")
    with opened(target) as store:
        settled = block(settle_run(store, named_run(target, store, run), word, where=target.words()))
    _tell_one(target, run, settled, word)


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
) -> Word:
    alone = retry or abandon
    if (happened and did_not_happen) or (retry and abandon) or (alone and (happened or did_not_happen or undo)):
        raise click.UsageError("These words contradict each other; say one of them.")
    if not (happened or did_not_happen or undo or alone):
        raise click.UsageError("Say what happened: --happened, --did-not-happen, --retry, --undo or --abandon.")
    if (result is not None or evidence) and not happened:
        raise click.UsageError("--result and --evidence go with --happened: what did not happen has no result.")
    words: dict[Verdict, bool] = {"undo": undo, "abandon": abandon, "retry": retry, "happened": happened}
    verdict: Verdict = next((word for word, said in words.items() if said), "did-not-happen")
    did = True if happened else False if did_not_happen else None
    raw = NO_RESULT if result is None else read_result(result)
    return Word(verdict, by or login_name(), note, step, raw, evidence, did if undo else None)


def _tell_one(target: LedgerTarget, run: str, settled: SettledRun, word: Word) -> None:
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
                }
            }
        )
    else:
        show_text(f"{run} {WORDS[settled.state]}")


@click.group()
def review() -> None:
    """Look at runs that wait for a person, and settle them."""


for _command in (list_, show, settle):
    review.add_command(_command)
