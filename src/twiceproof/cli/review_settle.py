"""`twiceproof review settle`: a person's word about a run, or about many at once."""

from __future__ import annotations

from typing import Any

import click
from msgspec import Struct

from ..claims.claim import FAILED, NO_RESULT, QUEUED, REVIEW
from ..drive import block
from ..flows.history.review import Settled, Verdict, Word, settle_run
from .ledger import opened
from .output import show_json, show_text
from .review_bulk import settle_many
from .run_named import named_run
from .target import Target, target_options
from .when import time_options
from .word import login_name, read_result

__all__ = ["settle"]

EPILOG = """\b
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


@click.command(epilog=EPILOG, short_help="Say what happened, and have the run go on.")
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
    target: Target, /, run: str | None, flow: str, since: str | None, until: str | None, yes: bool, dry_run: bool,
    **given: Any,
) -> None:  # fmt: skip
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
    _tell(target, run, settled, word)


def _word(
    *, happened: bool, did_not_happen: bool, retry: bool, undo: bool, abandon: bool, step: str, result: str | None,
    evidence: str, note: str, by: str | None,
) -> Word:  # fmt: skip
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


def _tell(target: Target, run: str, settled: Settled, word: Word) -> None:
    if target.json:
        show_json({"settled": {
            "run": settled.run, "state": settled.state, "verdict": settled.verdict, "step": settled.step,
            "by": word.by, "note": word.note,
        }})  # fmt: skip
    else:
        show_text(f"{run} {WORDS[settled.state]}")
