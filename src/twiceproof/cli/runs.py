"""Runs list|show|retry|cancel|fork."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from ..claims.claim import DONE, FAILED, HELD, QUEUED, RUN, Claim, address_of, claim_of, validate_name
from ..claims.retention import run_or_claim
from ..claims.run_index import resolve_run
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
    list_runs,
    look_at_run,
)
from ..flows.history.review import retry_run
from ..flows.history.run_view import MoveShape
from ..operations import block
from ..records import Address
from ..stores.base import Store
from .doctor import NOWHERE
from .failures import NEGATIVE, NotFound
from .output import show_json, show_text
from .prompts import between, confirm, login_name, time_options
from .run_views import show_run, show_runs
from .target import LedgerTarget, command, opened, target_options

__all__ = ["RUN_HELP", "cancel", "fork", "list_", "moves_shape", "named_run", "retry", "runs", "show"]


RUN_HELP = "RUN is a run's id, FLOW/KEY, or a KEY that only one run has."
MOST_NAMED = 5


def named_run(target: LedgerTarget, store: Store, name: str) -> Address:
    """Where it is. A guarded function's claim is no run."""
    try:
        at = block(resolve_run(store, target.tenant, name))
    except Misuse:  # no id, and no flow's name before a slash
        return _by_key(target, store, name, None)
    found = block(run_or_claim(store, at.space))
    if found.record is None or is_expired(found.record, found.now):
        return _by_key(target, store, name, None)
    return at if found.record.at == at else _by_key(target, store, name, claim_of(found.record))


def _by_key(target: LedgerTarget, store: Store, key: str, claim: Claim | None) -> Address:
    """The one run that has this key. Read from the first claim to the last: an id, or FLOW/KEY, is found at once."""
    which = Filter(validate_name("tenant", target.tenant), key=key)
    runs = block(list_runs(store, which, limit=MOST_NAMED + 1)).runs
    if len(runs) == 1:
        return address_of(target.tenant, runs[0].flow, runs[0].key, RUN)
    if runs:
        names = ", ".join(f"{run.flow}/{run.key}" for run in runs[:MOST_NAMED])
        more = ", …" if len(runs) > MOST_NAMED else ""
        raise NotFound(f"Several runs have this key; name one of them as FLOW/KEY: {names}{more}")
    if claim is not None:
        show = command(target, "claims", "show", about=(claim.operation, claim.key))
        raise NotFound(f"This is a claim, not a run; look at it with: {show}")
    listed = command(target, "runs", "list", "--state", "all")
    raise NotFound(f"There is no such run; name it by its id, as FLOW/KEY, or by its key. List them with: {listed}")


def moves_shape(target: LedgerTarget, moves: Sequence[MoveShape]) -> list[dict[str, Any]]:
    """What is safe to do next: why, and what to type ("" where nothing is)."""
    return [{"why": move.why, "command": command(target, *move.words) if move.words else ""} for move in moves]


CANCEL_EPILOG = """\b
Example:
  twiceproof runs cancel sync_order/shop:order:17 --by ann
RUN is a run's id, FLOW/KEY, or a KEY that only one run has.
"""
WORDS = {
    QUEUED: "is cancelled; a worker undoes what has an undo, or the next call.",
    HELD: "is told to stop; whoever is at it stops before the next step and undoes what has an undo.",
    FAILED: "is cancelled; nothing had to be undone.",
}


@click.command(epilog=CANCEL_EPILOG)
@click.argument("run")
@click.option("--by", metavar="NAME", help="Whose word this is. Default: your login name.")
@target_options
@click.pass_obj
def cancel(target: LedgerTarget, run: str, by: str | None) -> None:
    """Stop a run before its next step, and have undone what it did."""
    with opened(target) as store:
        at = named_run(target, store, run)
        before = store.read(at).block().record
        state = block(cancel_run(store, at, by or login_name()))
    ended = before is not None and before.state in (DONE, FAILED)
    if target.json:
        show_json({"run": run, "state": state, "cancelled": not ended})
    else:
        show_text(f"{run} had ended before: it is {state}." if ended else f"{run} {WORDS[state]}")
    if ended:
        raise click.exceptions.Exit(NEGATIVE)


FORK_EPILOG = """\b
Examples:
  twiceproof runs fork sync_order/shop:order:17 --key shop:order:17:again
  twiceproof runs fork sync_order/shop:order:17 --key shop:order:17:b --from ship
RUN is a run's id, FLOW/KEY, or a KEY that only one run has.
A fork is something new: its steps act again,
with effect keys of their own, also those declared never to be repeated.
"""


@click.command(epilog=FORK_EPILOG, short_help="Start a run's input once more, under a new key.")
@click.argument("run")
@click.option("--key", required=True, metavar="KEY", help="The new run's key; one that is not there yet.")
@click.option(
    "--from",
    "step",
    default="",
    metavar="STEP",
    help="Take as done what was done before this step came to its end, with the results it had.",
)
@click.option("--yes", is_flag=True, help="Do not ask. Needed where there is no terminal to ask on.")
@target_options
@click.pass_obj
def fork(target: LedgerTarget, run: str, key: str, step: str, yes: bool) -> None:
    """Start a run's input once more under a new key; the first run stays as it is."""
    with opened(target) as store:
        at = named_run(target, store, run)
        plan = block(plan_fork(store, at, key, step))
        if plan.again:
            confirm(_question(plan), yes=yes)
        plan = block(fork_run(store, at, key, step))
    if target.json:
        show_json({"forked": {"run": plan.run, "key": plan.key, "kept": plan.kept, "again": plan.again}})
    else:
        kept = f" {', '.join(plan.kept)} taken as done." if plan.kept else ""
        show_text(f"{plan.run} is queued under {plan.key}.{kept} A worker goes on with it.")


def _question(plan: Forked) -> str:
    return f"Start it as something new, {plan.key}? These act once more: {', '.join(plan.again)}"


LIST_EPILOG = """\b
Examples:
  twiceproof runs list
  twiceproof runs list --flow sync_order --state failed --since 2h
  twiceproof runs list --prefix shop:order: --state all --json
"""


@click.command("list", epilog=LIST_EPILOG, short_help="List runs: what is not done, reviews first.")
@click.option("--flow", metavar="NAME", default="", help="Only runs of this flow.")
@click.option(
    "--state",
    type=click.Choice([*EVERY_STATE, ALL]),
    help="Only runs in this state. Default: all but done, those in review first.",
)
@click.option("--key", metavar="KEY", default="", help="Only runs with exactly this key.")
@click.option("--prefix", metavar="TEXT", default="", help="Only runs whose key begins like this.")
@time_options[0]
@time_options[1]
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="At most so many.")
@click.option("--after", metavar="CURSOR", help="Go on where an earlier answer ended.")
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
    """List runs: what is not done, reviews first; done ones if asked for."""
    tenant = validate_name("tenant", target.tenant)
    states = EVERY_STATE if state == ALL else (state,) if state else (*OPEN_STATES, FAILED)
    with opened(target) as store:
        times = between(since, until, store.read(NOWHERE).block().now)
        which = Filter(tenant, flow and validate_name("flow", flow), key, prefix, *times)
        page = block(list_runs(store, which, states, limit=limit, after=after))
    if target.json:
        show_json(page)
    else:
        given = {"--flow": flow, "--key": key, "--prefix": prefix, "--since": since, "--until": until}
        _show(target, page, state, [word for name, value in given.items() if value for word in (name, value)])


def _show(target: LedgerTarget, page: RunPage, state: str | None, asked: Sequence[str]) -> None:
    if page.runs:
        show_runs(page.runs)
        first = page.runs[0]
        show_text(f"Look at one: {command(target, 'runs', 'show', about=(f'{first.flow}/{first.key}',))}")
    else:
        show_text("No runs." if state else "No runs that are not done.")
    if page.after is not None:
        show_text(f"There is more; say the same again with: --after {page.after}")
    if state is None:
        show_text(f"Done ones are not shown: {command(target, 'runs', 'list', *asked, '--state', 'done')}")


RETRY_EPILOG = """\b
Example:
  twiceproof runs retry sync_order/shop:order:17
RUN is a run's id, FLOW/KEY, or a KEY that only one run has.
A worker goes on with it, or the next call.
A run that was cancelled or undone stays so: twiceproof runs fork RUN --key KEY
"""


@click.command(epilog=RETRY_EPILOG)
@click.argument("run")
@target_options
@click.pass_obj
def retry(target: LedgerTarget, run: str) -> None:
    """Queue a run that failed, or whose flow had changed under it."""
    with opened(target) as store:
        state = block(retry_run(store, named_run(target, store, run), target.words()))
    if target.json:
        show_json({"run": run, "state": state})
    else:
        show_text(f"{run} is {state}; a worker goes on with it, or the next call. What is done stays done.")


SHOW_EPILOG = """\b
Examples:
  twiceproof runs show sync_order/shop:order:17
  twiceproof runs show run_b0tpf8qq5qd3zbs71fj4d --json
RUN is a run's id, FLOW/KEY, or a KEY that only one run has.
A name that begins with a dash follows two.
"""


@click.command(epilog=SHOW_EPILOG, short_help="Show one run, step by step, and the next move.")
@click.argument("run")
@click.option("--all", "whole_batch", is_flag=True, help="Show every item of a batch, also all that are done.")
@target_options
@click.pass_obj
def show(target: LedgerTarget, run: str, *, whole_batch: bool) -> None:
    """Show everything about one run: its steps, what is known of each, and the next move.

    Of a batch, the items that are not done come first, and most of the others are counted.
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
    """Look at runs; try again, cancel or fork them."""


for _command in (list_, show, retry, cancel, fork):
    runs.add_command(_command)
