"""Flows list; ids show."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from ..claims.claim import RUN, address_of, validate_name
from ..claims.run_index import resolve_run
from ..errors import Misuse
from ..flows.external_ids import IdLink, ids_of, runs_behind
from ..flows.history.queries import Filter, FlowCount, count_open, list_runs
from ..operations import Operation, block
from ..stores.base import Store
from .failures import NEGATIVE, NotFound
from .output import show_json, show_table, show_text
from .target import LedgerTarget, command, opened, target_options

if TYPE_CHECKING:
    from ..app.app import App

__all__ = ["flows", "ids", "list_", "show"]


FLOWS_HEAD = ("FLOW", "VERSION", "HELD", "QUEUED", "WAITING", "REVIEW", "HERE")
LIST_EPILOG = """\b
Examples:
  twiceproof flows list
  twiceproof flows list shop:app
With an app, HERE says whether its code carries out that version, and the exit
code is 1 if runs are under way that it does not.
"""


@click.command("list", epilog=LIST_EPILOG, short_help="Count the runs under way by flow and version.")
@click.argument("app", required=False, metavar="[MODULE:ATTR]")
@target_options
@click.pass_obj
def list_(target: LedgerTarget, app: str | None) -> None:
    """Count the runs under way by flow and version; with an app, say what it declares."""
    if app is None:
        with opened(target) as store:
            counts = _counts(store, target.tenant)
    else:
        from .load import load_app

        with load_app(app) as found:
            counts = _declared(found, _counts_of(target, found))
    _tell(target, counts)
    if any(count.here is False and count.open for count in counts):
        raise click.exceptions.Exit(NEGATIVE)


def _counts(store: Store, tenant: str) -> list[FlowCount]:
    return block(count_open(store, validate_name("tenant", tenant)))


def _counts_of(target: LedgerTarget, app: App) -> list[FlowCount]:
    """An app names its own store; another one only if it is named on the line."""
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


def _tell(target: LedgerTarget, counts: Sequence[FlowCount]) -> None:
    if target.json:
        show_json({"flows": [count.shape() for count in counts]})
        return
    if not counts:
        show_text("No runs under way.")
        return
    here = {True: "yes", False: "no", None: "-"}
    show_table(FLOWS_HEAD, [(c.flow, c.version, c.held, c.queued, c.waiting, c.review, here[c.here]) for c in counts])
    gone = [f"{count.flow}@{count.version}" for count in counts if count.here is False and count.open]
    if gone:
        show_text(f'The app does not carry out {", ".join(gone)}; accept it (accepts=("…",)), or keep old workers on.')


@click.group(short_help="Look at which versions of flows have runs under way.")
def flows() -> None:
    """Look at which flows have runs under way, and in which versions."""


flows.add_command(list_)


IDS_HEAD = ("ID", "FLOW", "KEY", "STEP", "RUN IS")
MOST = 100  # runs with one key: as many as there are flows

IDS_EPILOG = """\b
Examples:
  twiceproof ids show billing:invoice:inv_5530     which run made it
  twiceproof ids show sync_order/shop:order:10492  what that run made
  twiceproof ids show shop:order:10492             the same, whichever flow it was
"""


@click.command(epilog=IDS_EPILOG, short_help="Show what an id belongs to.")
@click.argument("id")
@target_options
@click.pass_obj
def show(target: LedgerTarget, /, **given: str) -> None:
    """Show what an id belongs to: a run's key or id, or an id that a step got outside."""
    with opened(target) as store:
        links = block(_links(store, validate_name("tenant", target.tenant), given["id"]))
    if not links:
        runs = command(target, "runs", "list", "--state", "all")
        raise NotFound(
            "No outside id is known here: neither is this one, nor of a run with this key. Steps declare theirs with "
            f"external=; list runs with: {runs}"
        )
    if target.json:
        show_json({"ids": links})
        return
    show_table(IDS_HEAD, [(link.external, link.flow, link.key, link.step, link.state) for link in links])
    show_text(f"Look at a run: {command(target, 'runs', 'show', f'{links[0].flow}/{links[0].key}')}")


def _links(store: Store, tenant: str, name: str) -> Operation[list[IdLink]]:
    """Outside ids have an index, and may look like a run's; a key without its flow has none and is looked for."""
    links = yield from runs_behind(store, tenant, name)
    if not links:
        with contextlib.suppress(Misuse):  # neither the id of a run, nor FLOW/KEY
            links = yield from ids_of(store, (yield from resolve_run(store, tenant, name)))
    if not links:
        for run in (yield from list_runs(store, Filter(tenant, key=name), limit=MOST)).runs:
            links += yield from ids_of(store, address_of(tenant, run.flow, run.key, RUN))
    return links


@click.group()
def ids() -> None:
    """From a run to the ids that it got outside, and back."""


ids.add_command(show)
