"""`twiceproof workers list`: the workers of a ledger, and due runs that none of them can run."""

from __future__ import annotations

from collections.abc import Sequence

import click

from ..flows.workers.presence import WorkerShape, list_workers, stranded
from ..operations import block
from .doctor import NOWHERE
from .failures import NEGATIVE
from .output import counted, moment, show_json, show_table, show_text, span
from .target import LedgerTarget, opened, target_options

__all__ = ["workers"]


HEAD = ("WORKER", "STATE", "STARTED", "LAST HEARTBEAT", "CONCURRENCY", "RELEASE", "FLOWS")
EPILOG = """\b
Examples:
  twiceproof workers list
  twiceproof workers list --json
"""
LIST_EPILOG = f"{EPILOG}Exit codes: 1 if runs are due that no live worker supports.\n"


@click.group(epilog=EPILOG)
def workers() -> None:
    """List workers, and due runs that none of them supports."""


@workers.command("list", epilog=LIST_EPILOG)
@target_options
@click.pass_obj
def list_(target: LedgerTarget) -> None:
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
        _show(found, now)
        for name, count in left.items():
            show_text(f"No live worker for {counted(count, 'due run')} of {name}; start one that declares this flow.")
    if left:
        raise click.exceptions.Exit(NEGATIVE)


def _show(found: Sequence[WorkerShape], now: float) -> None:
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
    show_table(HEAD, rows)
