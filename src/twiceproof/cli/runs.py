"""`twiceproof runs list|show|retry|cancel|fork`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import click
from msgspec import Struct

from ..claims.claim import DONE, FAILED, HELD, QUEUED, RUN, Claim, address_of, claim_of, validate_name
from ..claims.queries import resolve_run
from ..claims.retention import run_or_claim
from ..claims.states import is_expired
from ..errors import Misuse
from ..flows.engine.compensation import cancel as cancel_run
from ..flows.history.fork import Forked, fork_run, plan_fork
from ..flows.history.queries import (
    ALL,
    EVERY_STATE,
    OPEN_STATES,
    Filter,
    RunPage,
    all_runs,
    list_runs,
    look_at_run,
)
from ..flows.history.review import retry_run
from ..flows.history.run_view import MoveShape, RunShape
from ..operations import Operation, block
from ..records import Address
from ..stores.base import Store
from .doctor import NOWHERE
from .output import NEGATIVE, NotFound, Progress, counted, show_json, show_text
from .prompts import (
    after_option,
    between,
    by_option,
    confirm,
    limit_option,
    login_name,
    time_options,
    yes_option,
)
from .run_views import show_run, show_runs
from .target import LedgerTarget, command, opened, target_options

__all__ = [
    "RUN_HELP",
    "act_on_each",
    "cancel",
    "fork",
    "list_",
    "move_shape",
    "moves_after",
    "named_run",
    "retry",
    "runs",
    "show",
]


RUN_HELP = "RUN is a run id, FLOW/KEY, or a KEY that only one run has."
MOST_NAMED = 5


def named_run(target: LedgerTarget, store: Store, name: str) -> Address:
    """Return the address of a run. The claim of a guarded function is not a run."""
    try:
        at = block(resolve_run(store, target.tenant, name))
    except Misuse:  # neither an id nor FLOW/KEY
        return _by_key(target, store, name, None)
    found = block(run_or_claim(store, at.space))
    if found.record is None or is_expired(found.record, found.now):
        return _by_key(target, store, name, None)
    return at if found.record.at == at else _by_key(target, store, name, claim_of(found.record))


def _by_key(target: LedgerTarget, store: Store, key: str, claim: Claim | None) -> Address:
    """Return the one run that has this key. This scans all runs; an id, or FLOW/KEY, is read directly."""
    which = Filter(validate_name("tenant", target.tenant), key=key)
    runs = block(all_runs(store, which, limit=MOST_NAMED + 1))
    if len(runs) == 1:
        return address_of(target.tenant, runs[0].flow, runs[0].key, RUN)
    if runs:
        names = ", ".join(f"{run.flow}/{run.key}" for run in runs[:MOST_NAMED])
        more = ", …" if len(runs) > MOST_NAMED else ""
        raise NotFound(f"Several runs have this key; name one as FLOW/KEY: {names}{more}")
    if claim is not None:
        show = command(target, "claims", "show", about=(claim.operation, claim.key))
        raise NotFound(f"This is a claim, not a run; show it with: {show}")
    listed = command(target, "runs", "list", "--state", "all")
    raise NotFound(f"There is no such run; name it by its id, as FLOW/KEY, or by its key. List all runs: {listed}")


def moves_shape(target: LedgerTarget, moves: Sequence[MoveShape]) -> list[dict[str, Any]]:
    """Return the next moves: when each applies, and its command ("" if there is none)."""
    return [move_shape(move.why, command(target, *move.words) if move.words else "") for move in moves]


def moves_after(target: LedgerTarget, store: Store, at: Address) -> list[dict[str, Any]]:
    """Return the moves that are safe after a change of a run, as `runs show` names them. None if it is gone already."""
    try:
        return moves_shape(target, block(look_at_run(store, at)).next)
    except Misuse:  # the change itself was made, and the answer must say so
        return []


def move_shape(why: str, command: str) -> dict[str, Any]:
    """Return one next move in the form of `moves_shape`."""
    return {"why": why, "command": command}


CANCEL_EPILOG = f"""\b
Examples:
  twiceproof runs cancel sync_order/shop:order:17 --by ann
  twiceproof runs cancel --flow sync_order --version r8 --dry-run
{RUN_HELP}
Without RUN, --flow cancels all runs of a flow that have not ended.
Exit codes: 1 if the run had already ended, or if one of several was not cancelled.
"""
CANCELLED = {
    QUEUED: "is cancelled; a worker, or the next call, runs the undo of each completed step.",
    HELD: "is being cancelled; the process that holds it stops before the next step and runs the undo of each step.",
    FAILED: "is cancelled; there was nothing to undo.",
}


class BulkCancellation(Struct, frozen=True):
    """Which runs to cancel if none is named, and who does it."""

    flow: str
    version: str
    by: str
    dry_run: bool
    yes: bool


@click.command(epilog=CANCEL_EPILOG)
@click.argument("run", required=False)
@by_option
@click.option("--flow", default="", metavar="NAME", help="In bulk: cancel all runs of this flow that have not ended.")
@click.option("--version", default="", metavar="r8", help="In bulk: only runs of this version or release.")
@click.option("--dry-run", is_flag=True, help="In bulk: count the runs without cancelling them.")
@click.option("--yes", is_flag=True, help="In bulk: do not ask for confirmation.")
@target_options
@click.pass_obj
def cancel(
    target: LedgerTarget,
    /,
    run: str | None,
    by: str | None,
    flow: str,
    version: str,
    dry_run: bool,
    yes: bool,
) -> None:
    """Cancel a run before its next step, and undo its completed steps."""
    if bool(run) == bool(flow):
        raise click.UsageError("Name one RUN, or select runs with --flow; not both.")
    if not run:
        cancel_many(target, BulkCancellation(flow, version, by or login_name(), dry_run, yes))
        return
    if version or dry_run:
        raise click.UsageError("--version and --dry-run require --flow; remove them, or use --flow.")
    with opened(target) as store:
        at = named_run(target, store, run)
        before = store.read(at).block().record
        state = block(cancel_run(store, at, by or login_name()))
        moves = moves_after(target, store, at) if target.json else []
    ended = before is not None and before.state in (DONE, FAILED)
    if target.json:
        show_json({"run": run, "state": state, "cancelled": not ended, "next": moves})
    else:
        show_text(f"{run} had already ended; its state is {state}." if ended else f"{run} {CANCELLED[state]}")
    if ended:
        raise click.exceptions.Exit(NEGATIVE)


def cancel_many(target: LedgerTarget, bulk: BulkCancellation) -> None:
    """Cancel all selected runs, after counting them: what a cancelled run has done is undone."""
    with opened(target) as store:
        which = Filter(validate_name("tenant", target.tenant), validate_name("flow", bulk.flow))
        found = block(all_runs(store, which, OPEN_STATES, limit=sys.maxsize))
        runs = [run for run in found if bulk.version in ("", run.version)]
        kept: list[dict[str, str]] = []
        if runs and not bulk.dry_run:
            confirm(f"Cancel {counted(len(runs), 'run')} of {bulk.flow}?", yes=bulk.yes)
            kept = act_on_each(runs, lambda at: cancel_run(store, at, bulk.by), "cancelled", quiet=target.json)
    done = 0 if bulk.dry_run else len(runs) - len(kept)
    words = ["--flow", bulk.flow, *(["--version", bulk.version] if bulk.version else [])]
    again = [move_shape("To cancel them", command(target, "runs", "cancel", *words, "--yes"))]
    moves = again if bulk.dry_run and runs else [_settling(target, bulk.flow, one["key"]) for one in kept]
    _show_cancelled(target, len(runs), done, kept, moves)
    if kept:
        raise click.exceptions.Exit(NEGATIVE)


def act_on_each(
    runs: Sequence[RunShape], act: Callable[[Address], Operation[Any]], done: str, *, quiet: bool
) -> list[dict[str, str]]:
    """Do this to one run after the other. Runs that refuse it are not changed, and are returned with the reason."""
    refused = []
    with Progress(done, quiet=quiet) as progress:
        for number, run in enumerate(runs, 1):
            try:
                block(act(address_of(run.tenant, run.flow, run.key, RUN)))
            except Misuse as error:
                refused.append({"run": run.run, "key": run.key, "reason": str(error)})
            progress.show(number, len(runs))
    return refused


def _settling(target: LedgerTarget, flow: str, key: str) -> dict[str, Any]:
    return move_shape("To look at it", command(target, "review", "show", about=(f"{flow}/{key}",)))


def _show_cancelled(
    target: LedgerTarget, found: int, done: int, kept: Sequence[dict[str, str]], moves: Sequence[dict[str, Any]]
) -> None:
    if target.json:
        show_json({"found": found, "cancelled": done, "refused": kept, "next": moves})
        return
    show_text(f"{counted(found, 'run')} under way: {done:,} cancelled, {len(kept):,} refused and not changed.")
    for one in kept:
        show_text(f"  {one['key']}: {one['reason']}")
    for move in moves:
        show_text(f"{move['why']}: {move['command']}")


FORK_EPILOG = f"""\b
Examples:
  twiceproof runs fork sync_order/shop:order:17 --key shop:order:17:again
  twiceproof runs fork sync_order/shop:order:17 --key shop:order:17:b --from ship
{RUN_HELP}
The steps of the new run have effect keys of their own and run again, including
those declared repeat=never.
"""


@click.command(epilog=FORK_EPILOG, short_help="Start a new run with the same input, under a new key.")
@click.argument("run")
@click.option("--key", required=True, metavar="KEY", help="Key of the new run; no run may have it yet.")
@click.option(
    "--from",
    "step",
    default="",
    metavar="STEP",
    help="Keep the steps that were done before this one ended, with their results. Default: keep none.",
)
@yes_option
@target_options
@click.pass_obj
def fork(target: LedgerTarget, run: str, key: str, step: str, yes: bool) -> None:
    """Start a new run with the same input, under a new key; the first run is not changed."""
    with opened(target) as store:
        at = named_run(target, store, run)
        plan = block(plan_fork(store, at, key, step))
        if plan.again:
            confirm(_question(plan), yes=yes)
        plan = block(fork_run(store, at, key, step, by=login_name()))
    if target.json:
        steps = {"kept_steps": plan.kept, "repeated_steps": plan.again}
        show_json({"forked": {"run": plan.run, "key": plan.key, **steps}})
    else:
        kept = f" Kept: {', '.join(plan.kept)}." if plan.kept else ""
        show_text(f"{plan.run} is queued with the key {plan.key}; a worker runs it.{kept}")


def _question(plan: Forked) -> str:
    return f"Start a new run with the key {plan.key}? These steps run again: {', '.join(plan.again)}"


LIST_EPILOG = """\b
Examples:
  twiceproof runs list
  twiceproof runs list --flow sync_order --state failed --since 2h
  twiceproof runs list --key-prefix shop:order: --state all --json
"""


@click.command("list", epilog=LIST_EPILOG)
@click.option("--flow", metavar="NAME", default="", help="Only runs of this flow.")
@click.option(
    "--state",
    type=click.Choice([*EVERY_STATE, ALL]),
    help="Only runs in this state. Default: all states but done.",
)
@click.option("--key", metavar="KEY", default="", help="Only runs with exactly this key.")
@click.option("--key-prefix", "prefix", metavar="TEXT", default="", help="Only runs whose key begins with this text.")
@time_options
@limit_option()
@after_option
@target_options
@click.pass_obj
def list_(
    target: LedgerTarget,
    flow: str,
    state: str | None,
    key: str,
    prefix: str,
    since: str | None,
    until: str | None,
    limit: int,
    after: str | None,
) -> None:
    """List runs that are not done, those in review first."""
    tenant = validate_name("tenant", target.tenant)
    states = EVERY_STATE if state == ALL else (state,) if state else (*OPEN_STATES, FAILED)
    with opened(target) as store:
        times = between(since, until, store.read(NOWHERE).block().now)
        which = Filter(tenant, flow and validate_name("flow", flow), key, prefix, *times)
        page = block(list_runs(store, which, states, limit=limit, after=after))
    given = {"--flow": flow, "--key": key, "--key-prefix": prefix, "--since": since, "--until": until}
    filters = [word for name, value in given.items() if value for word in (name, value)]
    moves = list(_list_moves(target, page, state, filters, limit))
    if target.json:
        show_json({**{name: getattr(page, name) for name in page.__struct_fields__}, "next": moves})
    else:
        _show(page, state, moves)


def _list_moves(
    target: LedgerTarget, page: RunPage, state: str | None, filters: Sequence[str], limit: int
) -> Iterator[dict[str, Any]]:
    if page.runs:
        first = page.runs[0]
        yield move_shape("To show one", command(target, "runs", "show", about=(f"{first.flow}/{first.key}",)))
    if page.after is not None:
        words = [*filters, *(("--state", state) if state else ()), "--limit", str(limit), "--after", page.after]
        yield move_shape("Next page", command(target, "runs", "list", *words))
    if state is None:
        done = command(target, "runs", "list", *filters, "--state", "done")
        yield move_shape("To list runs that are done", done)


def _show(page: RunPage, state: str | None, moves: Sequence[dict[str, Any]]) -> None:
    if page.runs:
        show_runs(page.runs)
    else:
        show_text("No runs." if state in (None, ALL) else f"No runs in state {state}.")
    for move in moves:
        show_text(f"{move['why']}: {move['command']}")


RETRY_EPILOG = f"""\b
Examples:
  twiceproof runs retry sync_order/shop:order:17
{RUN_HELP}
A worker, or the next call, continues it.
A run that was cancelled or undone is not retried: twiceproof runs fork RUN --key KEY
"""


@click.command(epilog=RETRY_EPILOG, short_help="Retry a run that failed, or whose flow had changed.")
@click.argument("run")
@by_option
@target_options
@click.pass_obj
def retry(target: LedgerTarget, run: str, by: str | None) -> None:
    """Retry a run that failed, or that stopped because its flow had changed."""
    with opened(target) as store:
        at = named_run(target, store, run)
        state = block(retry_run(store, at, target.words(), by=by or login_name()))
        moves = moves_after(target, store, at) if target.json else []
    if target.json:
        show_json({"run": run, "state": state, "next": moves})
    else:
        show_text(f"{run} is {state}; a worker, or the next call, continues it. Steps that are done are not repeated.")


SHOW_EPILOG = f"""\b
Examples:
  twiceproof runs show sync_order/shop:order:17
  twiceproof runs show run_b0tpf8qq5qd3zbs71fj4d --json
{RUN_HELP}
Write -- before a name that begins with a dash.
"""


@click.command(epilog=SHOW_EPILOG)
@click.argument("run")
@click.option("--all", "whole_batch", is_flag=True, help="Show every item of a batch, also those that are done.")
@target_options
@click.pass_obj
def show(target: LedgerTarget, run: str, *, whole_batch: bool) -> None:
    """Show one run, its steps with their outcomes, and the next move.

    Of a batch, items that are not done come first; of those that are done, most are only counted.
    """
    with opened(target) as store:
        whole = block(look_at_run(store, named_run(target, store, run)))
    moves = moves_shape(target, whole.next)
    if target.json:
        show_json({**{name: getattr(whole, name) for name in whole.__struct_fields__}, "next": moves})
    else:
        show_run(whole, moves, fold=not whole_batch)


@click.group()
def runs() -> None:
    """List runs, and retry, cancel or fork them."""


for _command in (list_, show, retry, cancel, fork):
    runs.add_command(_command)
