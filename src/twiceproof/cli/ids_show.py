"""`twiceproof ids show`: external ids, both ways."""

from __future__ import annotations

import contextlib

import click

from ..claims.claim import validate_name
from ..drive import Operation, block
from ..errors import Misuse
from ..flows.history.runs import Filter, address_of_run, list_runs
from ..flows.ids import IdLink, ids_of, runs_behind
from ..stores.base import Store
from .failures import NotFound
from .ledger import opened
from .output import show_json, show_table, show_text
from .shell import command
from .target import Target, target_options

__all__ = ["show"]

HEAD = ("ID", "FLOW", "KEY", "STEP", "RUN IS")
MOST = 100  # runs with one key: as many as there are flows

EPILOG = """\b
Examples:
  twiceproof ids show billing:invoice:inv_5530     which run made it
  twiceproof ids show sync_order/shop:order:10492  what that run made
  twiceproof ids show shop:order:10492             the same, whichever flow it was
"""


@click.command(epilog=EPILOG, short_help="Show what an id belongs to.")
@click.argument("id")
@target_options
@click.pass_obj
def show(target: Target, /, **given: str) -> None:
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
    show_table(HEAD, [(link.external, link.flow, link.key, link.step, link.state) for link in links])
    show_text(f"Look at a run: {command(target, 'runs', 'show', f'{links[0].flow}/{links[0].key}')}")


def _links(store: Store, tenant: str, name: str) -> Operation[list[IdLink]]:
    """Outside ids have an index, and may look like a run's; a key without its flow has none and is looked for."""
    links = yield from runs_behind(store, tenant, name)
    if not links:
        with contextlib.suppress(Misuse):  # neither the id of a run, nor FLOW/KEY
            links = yield from ids_of(store, address_of_run(tenant, name))
    if not links:
        for run in (yield from list_runs(store, Filter(tenant, key=name), limit=MOST)).runs:
            links += yield from ids_of(store, address_of_run(tenant, run.run))
    return links
