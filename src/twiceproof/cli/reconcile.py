"""`twiceproof reconcile list|run|findings`: compares sources, and resolves findings."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click
import msgspec

from ..claims.claim import validate_name
from ..errors import Misuse, TwiceproofError, Waiting
from ..keys import validate_key
from ..keys.duration import seconds
from ..operations import block
from .doctor import NOWHERE
from .load import load_app
from .output import NotFound, counted, moment, report, show_json, show_moves, show_pairs, show_table, show_text
from .prompts import by_option, limit_option, login_name, note_option
from .target import LedgerTarget, command, json_option, no_store, opened, target_options, tenant_option

if TYPE_CHECKING:
    from ..app.app import App
    from ..reconcile.findings import FindingShape
    from ..reconcile.reconciliation import ReconciliationShape, RunReport

__all__ = ["reconcile"]

FAILED, FOUND, INCOMPLETE = 1, 3, 4  # exit codes of `run`
LONGEST_PAUSE = 60.0

LIST_EPILOG = """\b
Examples:
  twiceproof reconcile list shop:app
  twiceproof reconcile list shop:app --json
"""
HEAD = ("NAME", "EVERY", "LAST RUN", "LAST WHOLE RUN", "ROWS", "OPEN FINDINGS")


@click.command("list", epilog=LIST_EPILOG)
@click.argument("app", metavar="MODULE:APP")
@no_store
@tenant_option
@json_option
@click.pass_obj
def list_(target: LedgerTarget, app: str) -> None:
    """List reconciliations, their last runs and open findings."""
    with load_app(app) as found:
        rows = _listed(_of_tenant(target, found))
    if target.json:
        show_json({"reconciliations": rows})
    elif not rows:
        show_text("The app declares no reconciliation; write one with @app.reconcile.")
    else:
        show_table(HEAD, [_line(row) for row in rows])


def _of_tenant(target: LedgerTarget, app: App) -> App:
    return app.of(target.given_tenant) if target.given_tenant else app


def _listed(app: App) -> list[ReconciliationShape]:
    from ..reconcile.reconciliation import list_reconciliations

    return block(list_reconciliations(app.store, app.settings.tenant, app.reconciliations))


def _line(row: ReconciliationShape) -> Sequence[Any]:
    times = ["-" if at is None else moment(at) for at in (row.last_run_at, row.last_whole_run_at)]
    sizes = ", ".join(f"{name} {count:,}" for name, count in row.rows.items())
    return row.name, row.every, *times, sizes or "-", row.open


RUN_EPILOG = """\b
Examples:
  twiceproof reconcile run shop:app invoices --dry-run
  twiceproof reconcile run shop:app invoices --grace 0s --json
Exit codes: 0 nothing was found; 3 there are findings; 4 a source was not read
whole, or a suspect could not be looked at again; 1 an error.
"""


@click.command(epilog=RUN_EPILOG)
@click.argument("app", metavar="MODULE:APP")
@click.argument("name")
@click.option("--dry-run", is_flag=True, help="Compare and check again, but record nothing and do nothing.")
@click.option("--grace", metavar="TIME", help="Time to wait before the second look. Default: as declared.")
@no_store
@tenant_option
@json_option
@click.pass_context
def run(ctx: click.Context, app: str, name: str, dry_run: bool, grace: str | None) -> None:
    """Run a reconciliation now, and wait for its end."""
    target = ctx.ensure_object(LedgerTarget)
    try:
        with load_app(app) as found:
            target.given_store = found.settings.store or None  # for the commands that are suggested
            told = _run(_of_tenant(target, found), name, dry_run=dry_run, grace=grace)
    except TwiceproofError as error:
        report(error, url=target.url, as_json=target.json)
        ctx.exit(FAILED)
    if target.json:
        show_json(told)
    else:
        _show_report(target, told)
    if not told.complete:
        ctx.exit(INCOMPLETE)
    if told.findings:
        ctx.exit(FOUND)


def _run(app: App, name: str, *, dry_run: bool, grace: str | None) -> RunReport:
    """Run it to its end. During the grace time nothing is held, and a worker could continue the run, too."""
    tick = datetime.fromtimestamp(app.clock.now(), UTC)
    while True:
        try:
            told = app.reconcile_now(name, tick=tick, grace=grace, dry_run=dry_run)
        except Waiting as waiting:
            _wait(app, waiting)
        else:
            break
    if any(plan["over"] for plan in told.plans):
        app.worker(flows=[f"{name}.plan"]).run(until_idle=True)  # up to its approval, so that it is listed
    return told


def _wait(app: App, waiting: Waiting) -> None:
    until = waiting.data.get("until")
    if until is None:
        raise waiting
    click.echo(f"The second look is at {moment(until)}; waiting.", err=True)
    while (left := until - app.clock.now()) > 0:
        app.clock.sleep(min(left, LONGEST_PAUSE))


def _show_report(target: LedgerTarget, told: RunReport) -> None:
    for source in told.sources:
        show_text(
            f"{source.source}: {counted(source.rows, 'row')}{'' if source.whole else f', incomplete: {source.why}'}"
        )
    for check in told.checks:
        if check.skipped:
            show_text(f"{check.check}: not checked, because {check.skipped}")
    if told.findings:
        rows = [(id_, one.check, one.key, one.summary) for id_, one in zip(told.ids, told.findings, strict=True)]
        show_table(("FINDING", "CHECK", "KEY", "SUMMARY"), rows)
    else:
        show_text("Nothing was found.")
    for plan in told.plans:
        what = f"{counted(plan['actions'], 'action')} about {plan['check']}"
        show_text(f"{what}: needs an approval ({plan['over']})" if plan["over"] else f"{what}:")
    for outcome in told.outcomes:
        show_text(f"  {outcome.state}: {outcome.text}")
    if any(plan["over"] for plan in told.plans):
        show_text(f"To decide: {command(target, 'approvals', 'list', '--flow', f'{told.reconciliation}.plan')}")


# -- findings ------------------------------------------------------------------------------------

FINDINGS_EPILOG = """\b
Examples:
  twiceproof reconcile findings list
  twiceproof reconcile findings list --name invoices --state all --json
"""
STATES = ("open", "acknowledged", "suppressed", "acted", "resolved", "all")
FINDINGS_HEAD = ("FINDING", "RECONCILIATION", "CHECK", "KEY", "STATE", "SEEN", "SUMMARY")


@click.command("list", epilog=FINDINGS_EPILOG)
@click.option("--name", metavar="NAME", default="", help="Only findings of this reconciliation.")
@click.option("--state", type=click.Choice(STATES), help="Only findings in this state. Default: all but resolved.")
@limit_option(100)
@target_options
@click.pass_obj
def list_findings(target: LedgerTarget, name: str, state: str | None, limit: int) -> None:
    """List findings, those that were seen last first."""
    from ..reconcile import findings as kept

    states = kept.OPEN_STATES if state is None else kept.EVERY_STATE if state == "all" else (state,)
    tenant = validate_name("tenant", target.tenant)
    with opened(target) as store:
        found = block(kept.list_findings(store, tenant, name=name, states=states, limit=limit))
    if target.json:
        show_json({"findings": found})
    elif not found:
        show_text("No findings.")
    else:
        rows = [(f.id, f.reconciliation, f.check, f.key, f.state, f.seen, f.summary) for f in found]
        show_table(FINDINGS_HEAD, rows)
        show_text(f"To show one: {command(target, 'reconcile', 'findings', 'show', found[0].id)}")


MOVES = {
    "ack": "To leave it to a person: nothing more is done about it automatically",
    "suppress": "To hide it",
    "resolve": "If it has been corrected",
}
SHOW_EPILOG = """\b
Examples:
  twiceproof reconcile findings show fnd_w78eh9xz5ty3nw88t5va
"""


@click.command(epilog=SHOW_EPILOG)
@click.argument("finding")
@target_options
@click.pass_obj
def show(target: LedgerTarget, finding: str) -> None:
    """Show one finding: both records, what was done, and the commands to type next."""
    from ..reconcile.findings import next_words, shape_of

    with opened(target) as store:
        found = shape_of(_finding(target, store, finding))
    if target.json:
        show_json({"finding": found})
        return
    show_pairs(list(_pairs(found)))
    show_moves(
        [
            (f"{MOVES[word]}:", command(target, "reconcile", "findings", word, found.id))
            for word in next_words(found.state)
        ]
    )


def _finding(target: LedgerTarget, store: Any, finding: str) -> Any:
    from ..reconcile.findings import find_finding

    try:
        return block(find_finding(store, validate_name("tenant", target.tenant), finding))
    except Misuse as error:
        raise NotFound(str(error)) from None


def _pairs(found: FindingShape) -> list[tuple[str, Any]]:
    pairs: list[tuple[str, Any]] = [
        ("finding", found.id),
        ("reconciliation", found.reconciliation),
        ("check", found.check),
        ("key", found.key),
        ("state", found.state),
        ("summary", found.summary),
        ("opened", moment(found.opened_at)),
        ("last seen", f"{moment(found.last_seen_at)}, {counted(found.seen, 'run')}, reopened {found.reopened}"),
        ("records", msgspec.json.format(msgspec.json.encode(found.records), indent=2).decode()),
    ]
    if found.by:
        until = f", until {moment(found.until)}" if found.until is not None else ""
        pairs.append((found.state, f"by {found.by}{until}{found.note and ': ' + found.note}"))
    return [*pairs, ("outcome", found.outcome)] if found.outcome else pairs


def _change(
    target: LedgerTarget, finding: str, state: str, by: str | None, note: str, until: str | None = None
) -> None:
    from ..reconcile.findings import change_finding

    who = validate_key(by or login_name())
    with opened(target) as store:
        _finding(target, store, finding)
        end = store.read(NOWHERE).block().now + seconds(until, name="--until") if until else None
        changed = block(change_finding(store, target.tenant, finding, state, by=who, note=note, until=end))
    if target.json:
        show_json({"finding": changed})
    else:
        show_text(f"{changed.id} is {changed.state}.")


CHANGE_EPILOG = """\b
Examples:
  twiceproof reconcile findings {name} fnd_w78eh9xz5ty3nw88t5va {more}
"""


@click.command("ack", epilog=CHANGE_EPILOG.format(name="ack", more='--note "asked the customer"'))
@click.argument("finding")
@note_option("the finding")
@by_option
@target_options
@click.pass_obj
def acknowledge(target: LedgerTarget, finding: str, note: str, by: str | None) -> None:
    """Acknowledge a finding: nothing more is done about it automatically."""
    _change(target, finding, "acknowledged", by, note)


@click.command(epilog=CHANGE_EPILOG.format(name="suppress", more="--until 30d"))
@click.argument("finding")
@click.option("--until", metavar="TIME", help="Time from now after which it is reported again. Default: never.")
@note_option("the finding")
@by_option
@target_options
@click.pass_obj
def suppress(target: LedgerTarget, finding: str, until: str | None, note: str, by: str | None) -> None:
    """Suppress a finding, for a time or for ever."""
    _change(target, finding, "suppressed", by, note, until)


@click.command(epilog=CHANGE_EPILOG.format(name="resolve", more='--note "voided by hand"'))
@click.argument("finding")
@note_option("the finding")
@by_option
@target_options
@click.pass_obj
def resolve(target: LedgerTarget, finding: str, note: str, by: str | None) -> None:
    """Mark a finding as resolved; for a source that became smaller, accept its new size."""
    _change(target, finding, "resolved", by, note)


@click.group()
def findings() -> None:
    """List, show, acknowledge, suppress and resolve findings."""


for _command in (list_findings, show, acknowledge, suppress, resolve):
    findings.add_command(_command)


@click.group()
def reconcile() -> None:
    """Run reconciliations, and list and resolve their findings."""


for _one in (list_, run, findings):
    reconcile.add_command(_one)
