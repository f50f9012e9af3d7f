"""`twiceproof flows run --draft` and `flows migrate`: runs of drafts, and runs that are moved to another release."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec
from msgspec import structs

from ..errors import Misuse
from ..operations import block
from .flow_promotion import acting_options, releaser
from .flow_releases import FOLDER_HELP, answer, connections_in
from .output import NEGATIVE, OK
from .prove import read_json
from .target import LedgerTarget, command, opened, target_options

if TYPE_CHECKING:
    from ..declared.drafts import DraftFlow, DraftRun
    from ..declared.releases import FlowRelease
    from ..stores.base import Store

__all__ = ["migrate", "run"]


RUN_EPILOG = """\b
Examples:
  twiceproof flows run welcome --draft --event event.json
  twiceproof flows run welcome --draft --like run_7f3a
  twiceproof flows run welcome --draft --replay-letter dl_9c1b
  twiceproof flows run welcome --draft --event event.json --allow-live crm --note "a look at real data"
Run it again to continue a run that waits. Exit codes: 0 done or waiting, 1 failed or in review.
"""


@click.command(epilog=RUN_EPILOG)
@click.argument("name")
@click.option("--draft", is_flag=True, help="Run the draft. Required: live runs are started by their triggers.")
@click.option("--release", "which", metavar="r7|HASH", default="", help="Content to run. Default: the draft.")
@click.option("--event", metavar="FILE", help="JSON file with the input: by name, or the value of a single one.")
@click.option("--like", metavar="RUN", help="Use the input of this run.")
@click.option("--replay-letter", "letter", metavar="ID", help="Use a dead letter, read by the draft's own webhook.")
@click.option(
    "--allow-live",
    "allowed",
    metavar="CONNECTION",
    multiple=True,
    help="Use the live side of this connection, or this module:function. Needs the scope release, and is recorded.",
)
@click.option("--flows", "folder", metavar="DIR", type=click.Path(path_type=Path, file_okay=False), help=FOLDER_HELP)
@acting_options
@target_options
@click.pass_context
def run(ctx: click.Context, /, name: str, draft: bool, **given: Any) -> None:
    """Run a draft, with keys, claims and history of its own.

    Connections are used on their draft side. Those without one are replaced by stand-ins with the answers of the file's
    tests. Draft runs are kept for seven days.
    """
    from ..app.app import App
    from ..declared.drafts import compile_draft, run_draft

    if not draft:
        raise Misuse(f"Live runs are started by their triggers, or by POST /v1/runs/{name}; to try the draft: --draft")
    target = ctx.ensure_object(LedgerTarget)
    connections = connections_in(target, given["folder"])
    with opened(target) as store, App(store, tenant=target.tenant) as app:
        release = _content(store, target, name, given["which"])
        made = compile_draft(app, release, connections, given["allowed"])
        event = _event(store, target, given, made)
        if made.allowed:
            _record(store, target, release, made, given, app.runtime.owner())
        outcome = run_draft(made, event)
    _show(target, name, outcome)
    ctx.exit(NEGATIVE if outcome.state in ("failed", "review") else OK)


def _content(store: Store, target: LedgerTarget, name: str, which: str) -> FlowRelease:
    from ..declared.releases import draft_of, release_of

    found = block(release_of(store, target.tenant, name, which) if which else draft_of(store, target.tenant, name))
    if found is None or not found.text:
        raise Misuse(f"{name} has no draft in a file; push one: {command(target, 'flows', 'push', 'FILE')}")
    return found


def _event(store: Store, target: LedgerTarget, given: dict[str, Any], made: DraftFlow) -> Any:
    event, like, letter = given["event"], given["like"], given["letter"]
    if [event, like, letter].count(None) != 2:
        raise Misuse("A draft run needs its input: give one of --event FILE, --like RUN and --replay-letter ID.")
    if event is not None:
        return read_json(event, "--event")
    if letter is not None:
        from ..declared.drafts import input_of_letter

        return block(input_of_letter(store, target.tenant, letter, made))
    from ..flows.history.queries import look_at_run
    from ..flows.runtime import own_run

    whole = block(look_at_run(store, block(own_run(store, target.tenant, str(like)))))
    if whole.input is None:
        raise Misuse(f"The input of {like} is not kept any more; give --event FILE.")
    return msgspec.json.decode(whole.input)


def _record(
    store: Store, target: LedgerTarget, release: FlowRelease, made: DraftFlow, given: dict[str, Any], mark: str
) -> None:
    """Record the use of live connections, before anything runs."""
    from ..declared.releases import ReleaseChange, keep_change

    who = releaser(store, target, given["by"], given["token"])
    who.require("let a draft use live connections")
    change = ReleaseChange("draft", release.number, release.hash, who.by, 0.0, given["note"], about=made.allowed)
    block(keep_change(store, target.tenant, release.flow, change, mark=f"draft {mark}"))


def _show(target: LedgerTarget, name: str, made: DraftRun) -> None:
    told = f"DRAFT of {name}, {made.key}: {made.state}"
    lines = [f"{told} ({made.reason})" if made.reason else told]
    if made.state == "done":
        lines.append(f"Result: {msgspec.json.encode(made.result).decode()}")
    lines += [f"Replaced by a stand-in: {one}" for one in made.stood_in]
    lines += [f"Used live: {one}" for one in made.allowed_live]
    answer(
        target,
        structs.asdict(made),
        lines,
        [("Look at it", command(target, "runs", "show", f"{made.flow}/{made.key}"))],
    )


MIGRATE_EPILOG = """\b
Examples:
  twiceproof flows migrate run_7f3a sync_order/shop:order:17 --to r8 --dry-run
  twiceproof flows migrate run_7f3a --to r8 --note "the new confirmation"
Exit codes: 1 if a run is not moved.
"""


@click.command(epilog=MIGRATE_EPILOG)
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@click.option("--to", "which", metavar="r8", required=True, help="Release on which they continue.")
@click.option("--dry-run", is_flag=True, help="Show what would happen to each run, and move none.")
@click.option("--flows", "folder", metavar="DIR", type=click.Path(path_type=Path, file_okay=False), help=FOLDER_HELP)
@acting_options
@target_options
@click.pass_context
def migrate(ctx: click.Context, /, runs: tuple[str, ...], which: str, dry_run: bool, **given: Any) -> None:
    """Move waiting runs to another release, if they can continue.

    Each run is first rehearsed on a copy of its records, without effects. A run that would stop there, because the
    other release lacks a step that it has done, is not moved.
    """
    target = ctx.ensure_object(LedgerTarget)
    connections = connections_in(target, given["folder"])
    with opened(target) as store:
        who = releaser(store, target, given["by"], given["token"])
        who.require("migrate runs")
        shapes = [_migrated(store, target, run, which, connections, dry_run=dry_run) for run in runs]
        moved = [shape for shape in shapes if shape["moved"]]
        for flow in sorted({shape["flow"] for shape in moved}):
            about = tuple(shape["run"] for shape in moved if shape["flow"] == flow)
            _record_moves(store, target, flow, which, who.by, given["note"], about)
    stays = [shape for shape in shapes if not shape["goes_on"] or (not dry_run and not shape["moved"])]
    lines = [f"{shape['flow']}/{shape['key']}: {shape['before']} → {shape['to']}: {shape['says']}" for shape in shapes]
    lines.append(f"{len(moved)} moved." if not dry_run else "Nothing has changed.")
    moves = [("Move them", command(target, "flows", "migrate", *runs, "--to", which))] if dry_run else []
    answer(target, {"dry_run": dry_run, "runs": shapes}, lines, moves)
    ctx.exit(NEGATIVE if stays else OK)


def _migrated(
    store: Store, target: LedgerTarget, run: str, which: str, connections: Any, *, dry_run: bool
) -> dict[str, Any]:
    from ..claims.claim import parse_space
    from ..declared.migration import move_run, rehearse
    from ..declared.releases import release_of
    from ..flows.runtime import own_run

    at = block(own_run(store, target.tenant, run))
    release = block(release_of(store, target.tenant, parse_space(at.space).operation, which))
    move = block(rehearse(store, at, release, connections))
    moved = not dry_run and move.before != release.name and block(move_run(store, move, release))
    says = "it changed meanwhile; try again" if move.goes_on and not (dry_run or moved) else move.says
    told = {"run": move.run, "flow": move.flow, "key": move.key, "state": move.state, "before": move.before}
    already = move.before == release.name
    return {**told, "to": release.name, "goes_on": move.goes_on, "moved": moved, "says": move.says if already else says}


def _record_moves(
    store: Store, target: LedgerTarget, flow: str, which: str, by: str, note: str, about: tuple[str, ...]
) -> None:
    from ..declared.releases import ReleaseChange, keep_change, release_of

    release = block(release_of(store, target.tenant, flow, which))
    change = ReleaseChange("migrate", release.number, release.hash, by, 0.0, note, about=about)
    block(keep_change(store, target.tenant, flow, change, mark=f"migrate {about[0]}"))
