"""`twiceproof flows list` and `twiceproof ids show`."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from ..claims.claim import RUN, address_of, validate_name
from ..claims.run_index import resolve_run
from ..errors import Misuse
from ..flows.external_ids import IdLink, ids_of, runs_by_external_id
from ..flows.history.queries import Filter, FlowCount, count_open, list_runs
from ..operations import Operation, block
from ..stores.base import Store
from .failures import NEGATIVE, NotFound
from .output import show_json, show_table, show_text
from .target import LedgerTarget, command, opened, target_options

if TYPE_CHECKING:
    from ..app.app import App

__all__ = ["flows", "ids", "list_", "show"]


FLOWS_HEAD = ("FLOW", "VERSION", "HELD", "QUEUED", "WAITING", "REVIEW", "SUPPORTED")
LIST_EPILOG = """\b
Examples:
  twiceproof flows list
  twiceproof flows list shop:app
With an app, SUPPORTED tells whether its code can run that version.
Exit codes: 1 if there are runs that the app does not support.
"""


@click.command("list", epilog=LIST_EPILOG)
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
    """Count unfinished runs by flow and version."""


flows.add_command(list_)


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
        for run in (yield from list_runs(store, Filter(tenant, key=name), limit=MOST)).runs:
            links += yield from ids_of(store, address_of(tenant, run.flow, run.key, RUN))
    return links


@click.group()
def ids() -> None:
    """Look up external ids by run, and runs by external id."""


ids.add_command(show)
