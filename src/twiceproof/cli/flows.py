"""`twiceproof flows`, `ids show`, `workers list`; and `check`, which reads the source of an app's flows."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..claims.claim import RUN, address_of, validate_name
from ..claims.queries import resolve_run
from ..errors import Misuse
from ..flows.external_ids import IdLink, ids_of, runs_by_external_id
from ..flows.history.queries import Filter, FlowCount, all_runs, count_open
from ..flows.workers.presence import WorkerShape, list_workers, stranded
from ..operations import Operation, block
from ..stores.base import Store
from .doctor import NOWHERE
from .flow_files import lint, schema
from .flow_imports import import_, suggest
from .flow_promotion import agree, pause, promote, resume, rollback
from .flow_releases import diff, push, releases
from .flow_releases import show as show_release
from .flow_runs import migrate, run
from .flow_tests import test
from .output import NEGATIVE, OK, NotFound, counted, moment, show_json, show_table, show_text, span
from .target import LedgerTarget, command, json_option, opened, target_options

if TYPE_CHECKING:
    from ..app.app import App
    from ..prove.checklist import ChecklistFinding

__all__ = ["check", "flows", "ids", "list_", "show", "workers"]


FLOWS_HEAD = ("FLOW", "VERSION", "HELD", "QUEUED", "WAITING", "REVIEW", "SUPPORTED")
FLOWS_EPILOG = """\b
Examples:
  twiceproof flows list
  twiceproof flows list shop:app
With an app, SUPPORTED tells whether its code can run that version.
Exit codes: 1 if there are runs that the app does not support.
"""


@click.command("list", epilog=FLOWS_EPILOG)
@click.argument("app", required=False, metavar="[MODULE:APP]")
@target_options
@click.pass_obj
def list_(target: LedgerTarget, app: str | None) -> None:
    """Count unfinished runs by flow and version."""
    if app is None:
        with opened(target) as store:
            counts = _counts(store, target.tenant)
    else:
        from .load import load_app

        with load_app(app) as found:
            counts = _declared(found, _counts_of(target, found))
    _show_counts(target, counts)
    if any(count.here is False and count.open for count in counts):
        raise click.exceptions.Exit(NEGATIVE)


def _counts(store: Store, tenant: str) -> list[FlowCount]:
    return block(count_open(store, validate_name("tenant", tenant)))


def _counts_of(target: LedgerTarget, app: App) -> list[FlowCount]:
    """Count in the app's own store, unless --store names another."""
    tenant = target.given_tenant or app.settings.tenant
    if target.given_store is None:
        return _counts(app.store, tenant)
    with opened(target) as store:
        return _counts(store, tenant)


def _declared(app: App, counts: Sequence[FlowCount]) -> list[FlowCount]:
    here = {(flow.name, version) for flow in app.flows.values() for version in flow.versions}
    known = {(count.flow, count.version) for count in counts}
    idle = [FlowCount(flow, version, here=True) for flow, version in sorted(here - known)]
    return [count.with_here((count.flow, count.version) in here) for count in counts] + idle


def _show_counts(target: LedgerTarget, counts: Sequence[FlowCount]) -> None:
    if target.json:
        show_json({"flows": [_count_shape(count) for count in counts]})
        return
    if not counts:
        show_text("No unfinished runs.")
        return
    here = {True: "yes", False: "no", None: "-"}
    show_table(FLOWS_HEAD, [(c.flow, c.version, c.held, c.queued, c.waiting, c.review, here[c.here]) for c in counts])
    gone = [f"{count.flow}@{count.version}" for count in counts if count.here is False and count.open]
    if gone:
        show_text(
            f'The app does not support {", ".join(gone)}; declare accepts=("…",), or keep workers with the old code.'
        )


def _count_shape(count: FlowCount) -> dict[str, Any]:
    shape = count.shape()
    return {**{name: value for name, value in shape.items() if name != "here"}, "supported": count.here}


@click.group()
def flows() -> None:
    """Check, test and release flow files; count unfinished runs."""


for _command in (
    list_,
    lint,
    test,
    schema,
    import_,
    suggest,
    push,
    run,
    releases,
    show_release,
    diff,
    agree,
    promote,
    rollback,
    migrate,
    pause,
    resume,
):
    flows.add_command(_command)


IDS_HEAD = ("EXTERNAL ID", "FLOW", "KEY", "STEP", "STATE")
MOST = 100  # runs with one key: at most one per flow

IDS_EPILOG = """\b
Examples:
  twiceproof ids show billing:invoice:inv_5530     the run that created it
  twiceproof ids show sync_order/shop:order:10492  what that run created
  twiceproof ids show shop:order:10492             the same, for any flow
ID is an external id, a run id, FLOW/KEY, or a key.
"""


@click.command(epilog=IDS_EPILOG)
@click.argument("id")
@target_options
@click.pass_obj
def show(target: LedgerTarget, /, **given: str) -> None:
    """Show the runs of an external id, or the external ids of a run."""
    with opened(target) as store:
        links = block(_links(store, validate_name("tenant", target.tenant), given["id"]))
    if not links:
        runs = command(target, "runs", "list", "--state", "all")
        raise NotFound(
            "There is no such external id, and no run of this name that has one; steps declare them with external=. "
            f"List all runs: {runs}"
        )
    if target.json:
        show_json({"ids": links})
        return
    show_table(IDS_HEAD, [(link.external, link.flow, link.key, link.step, link.state) for link in links])
    show_text(f"To show a run: {command(target, 'runs', 'show', f'{links[0].flow}/{links[0].key}')}")


def _links(store: Store, tenant: str, name: str) -> Operation[list[IdLink]]:
    """Look up external ids first: they have an index, and may look like a run's name. A bare key needs a scan."""
    links = yield from runs_by_external_id(store, tenant, name)
    if not links:
        with contextlib.suppress(Misuse):  # neither the id of a run, nor FLOW/KEY
            links = yield from ids_of(store, (yield from resolve_run(store, tenant, name)))
    if not links:
        for run in (yield from all_runs(store, Filter(tenant, key=name), limit=MOST)):
            links += yield from ids_of(store, address_of(tenant, run.flow, run.key, RUN))
    return links


@click.group()
def ids() -> None:
    """Look up external ids by run, and runs by external id."""


ids.add_command(show)


WORKERS_HEAD = ("WORKER", "STATE", "STARTED", "LAST HEARTBEAT", "CONCURRENCY", "RELEASE", "FLOWS")
WORKERS_EPILOG = """\b
Examples:
  twiceproof workers list
  twiceproof workers list --json
"""
WORKERS_LIST_EPILOG = f"{WORKERS_EPILOG}Exit codes: 1 if runs are due that no live worker supports.\n"


@click.group(epilog=WORKERS_EPILOG)
def workers() -> None:
    """List workers, and due runs that none of them supports."""


@workers.command("list", epilog=WORKERS_LIST_EPILOG)
@target_options
@click.pass_obj
def list_workers_(target: LedgerTarget) -> None:
    """List workers, and due runs that none of them supports.

    Lists the workers of all tenants. A worker that has stopped is removed from the list; one that has crashed is
    listed as gone for a day. Workers started with --until-idle are not listed.
    """
    with opened(target) as store:
        found, left = block(list_workers(store)), block(stranded(store))
        now = store.read(NOWHERE).block().now
    if target.json:
        show_json({"workers": [worker.shape() for worker in found], "stranded": left})
    else:
        _show_workers(found, now)
        for name, count in left.items():
            show_text(f"No live worker for {counted(count, 'due run')} of {name}; start one that declares this flow.")
    if left:
        raise click.exceptions.Exit(NEGATIVE)


def _show_workers(found: Sequence[WorkerShape], now: float) -> None:
    if not found:
        show_text("No workers. Start one with: twiceproof work MODULE:APP")
        return
    rows = [
        (
            worker.name,
            "gone" if worker.gone else "alive",
            moment(worker.since),
            f"{span(max(0.0, now - worker.last_heartbeat))} ago",
            worker.concurrency,
            worker.release,
            " ".join(worker.flows) or "-",
        )
        for worker in found
    ]
    show_table(WORKERS_HEAD, rows)


CHECK_EPILOG = """\b
Examples:
  twiceproof check shop:app
  twiceproof check shop:app --json
  twiceproof check shop:app --steps
To accept a line as it is, add: # twiceproof: allow missing-undo
Exit codes: 0 no findings, 1 findings.
"""


@click.command(epilog=CHECK_EPILOG)
@click.argument("app", metavar="MODULE:APP")
@click.option("--steps", is_flag=True, help="Also list how each declared step and effect may be repeated.")
@json_option
@click.pass_context
def check(ctx: click.Context, app: str, steps: bool) -> None:
    """Check the source of flows for what is unsafe to repeat.

    The rules are about keys, steps, their order, undo and retention. The module is imported, as a worker imports it;
    no flow and no step is called.
    """
    from ..prove.checklist import check_app, repeats_of  # a late import: `check --help` does not need it
    from .load import load_app

    with load_app(app) as found:
        findings = check_app(found)
        flows, guarded = len(found.flows), len(found.operations)
        repeats = repeats_of(found) if steps else []
    if ctx.ensure_object(LedgerTarget).json:
        listed = {"steps": repeats} if steps else {}
        show_json({"app": app, "flows": flows, "guarded_functions": guarded, **listed, "findings": findings})
    else:
        if repeats:
            rows = [(one.step, one.repeat or "as its effect says", one.undo or "-") for one in repeats]
            show_table(("STEP", "REPEAT", "UNDO"), rows)
            show_text("")
        _show_findings(
            findings, counted(flows, "flow") + (f" and {counted(guarded, 'guarded function')}" if guarded else "")
        )
    ctx.exit(NEGATIVE if findings else OK)


def _show_findings(findings: Sequence[ChecklistFinding], read: str) -> None:
    for one in findings:
        show_text(f"{_near(one.file)}:{one.line}: {one.rule}: {one.where}: {one.found}")
        show_text(f"    Why: {one.why}\n    Instead: {one.instead}\n")
    show_text(f"Checked {read}: {counted(len(findings), 'finding') if findings else 'no findings'}.")


def _near(file: str) -> str:
    """Return the path relative to the current directory, if the file is below it."""
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else file
