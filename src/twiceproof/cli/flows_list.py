"""`twiceproof flows list`: which versions of which flows have runs under way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from ..claims.claim import validate_name
from ..drive import block
from ..flows.history.census import FlowCount, count_open
from ..stores.base import Store
from .failures import NEGATIVE
from .ledger import opened
from .output import show_json, show_table, show_text
from .target import Target, target_options

if TYPE_CHECKING:
    from ..app import App

__all__ = ["list_"]

HEAD = ("FLOW", "VERSION", "HELD", "QUEUED", "WAITING", "REVIEW", "HERE")
EPILOG = """\b
Examples:
  twiceproof flows list
  twiceproof flows list shop:app
With an app, HERE says whether its code carries out that version, and the exit
code is 1 if runs are under way that it does not.
"""


@click.command("list", epilog=EPILOG, short_help="Count the runs under way by flow and version.")
@click.argument("app", required=False, metavar="[MODULE:ATTR]")
@target_options
@click.pass_obj
def list_(target: Target, app: str | None) -> None:
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


def _counts_of(target: Target, app: App) -> list[FlowCount]:
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


def _tell(target: Target, counts: Sequence[FlowCount]) -> None:
    if target.json:
        show_json({"flows": [count.shape() for count in counts]})
        return
    if not counts:
        show_text("No runs under way.")
        return
    here = {True: "yes", False: "no", None: "-"}
    show_table(HEAD, [(c.flow, c.version, c.held, c.queued, c.waiting, c.review, here[c.here]) for c in counts])
    gone = [f"{count.flow}@{count.version}" for count in counts if count.here is False and count.open]
    if gone:
        show_text(f'The app does not carry out {", ".join(gone)}; accept it (accepts=("…",)), or keep old workers on.')
