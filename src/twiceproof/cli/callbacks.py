"""Callbacks list|deliver."""

from __future__ import annotations

import secrets

import click
from msgspec import Raw

from ..claims.claim import validate_name
from ..flows.engine.ledger import STEP_KIND as STEP
from ..flows.waits.callbacks import CallbackView, list_callbacks
from ..flows.waits.records import ARRIVAL_KIND, Delivered
from ..flows.waits.records import deliver as deliver_arrival
from ..flows.waits.waiting import wait_name
from ..operations import block
from ..records import Address
from .failures import NEGATIVE
from .output import moment, show_json, show_table, show_text
from .prompts import read_result
from .runs import named_run
from .target import LedgerTarget, command, opened, target_options

__all__ = ["callbacks", "deliver", "list_"]


WORDS = {
    "arrived": "was delivered before: what came first counts.",
    "timeout": "came too late: the wait had timed out.",
    "ended": "was not waited for: the run is done.",
}

DELIVER_EPILOG = """\b
Examples:
  twiceproof callbacks deliver take_payment/order:10492 paid --payload '{"amount": 70}'
  twiceproof callbacks deliver take_payment/order:10492 paid --payload @payment.json
RUN is a run's id, FLOW/KEY, or a KEY that only one run has.
NAME is what the flow waits for. If something
else came first, or its time was over, that is told and the exit code is 1.
"""


@click.command(epilog=DELIVER_EPILOG)
@click.argument("run")
@click.argument("name")
@click.option(
    "--payload",
    metavar="JSON|@FILE|-",
    default="null",
    show_default=True,
    help="What arrived; @FILE reads it from a file, `-` from stdin.",
)
@target_options
@click.pass_obj
def deliver(target: LedgerTarget, run: str, name: str, payload: str) -> None:
    """End a wait, once: as if its callback had come."""
    raw: Raw = read_result(payload, "--payload")
    with opened(target) as store:
        at = Address(named_run(target, store, run).space, ARRIVAL_KIND, wait_name(name))
        told: Delivered = block(deliver_arrival(store, at, raw, mark=secrets.token_hex(8)))
        awaited = store.read(Address(at.space, STEP, at.key)).block().record is not None
    if target.json:
        show_json(
            {
                "run": run,
                "name": name,
                "first": told.first,
                "state": told.state,
                "answer": told.answer,
                "awaited": awaited,
            }
        )
    else:
        show_text(f"{run}, {name}: {_came_to(target, run, awaited) if told.first else WORDS[told.state]}")
    if not told.first:
        raise click.exceptions.Exit(NEGATIVE)


def _came_to(target: LedgerTarget, run: str, awaited: bool) -> str:
    """What comes early answers the wait at once; a name that was mistyped is never asked for."""
    if awaited:
        return "delivered; the run goes on."
    look = command(target, "runs", "show", about=(run,))
    return f"kept; the run does not wait for it yet. See what it waits for: {look}"


HEAD = ("FLOW", "KEY", "NAME", "STATE", "HANDED OUT")

LIST_EPILOG = """\b
Examples:
  twiceproof callbacks list
  twiceproof callbacks list --flow take_payment --all --json
"""


@click.command("list", epilog=LIST_EPILOG)
@click.option("--flow", default="", metavar="NAME", help="Only callbacks of this flow.")
@click.option("--all", "ended", is_flag=True, help="Also those that arrived, or came too late.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="At most so many.")
@target_options
@click.pass_obj
def list_(target: LedgerTarget, flow: str, ended: bool, limit: int) -> None:
    """List the callbacks that runs have handed out. Their tokens are known to nobody but who was given them."""
    tenant, name = validate_name("tenant", target.tenant), flow and validate_name("flow", flow)
    with opened(target) as store:
        found = block(list_callbacks(store, tenant, flow=name, ended=ended, limit=limit + 1))
    if target.json:
        show_json({"callbacks": found[:limit], "more": len(found) > limit})
    else:
        _show(target, found, limit)


def _show(target: LedgerTarget, found: list[CallbackView], limit: int) -> None:
    if not found:
        waiting = command(target, "runs", "list", "--state", "waiting")
        show_text(f"No callback that was handed out is waited for. Runs that wait for something else: {waiting}")
        return
    shown = found[:limit]
    show_table(HEAD, [(c.flow, c.key, c.name, c.state, moment(c.handed_out_at)) for c in shown])
    if len(found) > limit:
        show_text(f"There is more: {command(target, 'callbacks', 'list', '--limit', str(limit * 10))}")
    by_hand = command(target, "callbacks", "deliver", f"{shown[0].flow}/{shown[0].key}", shown[0].name)
    show_text(f"Deliver one by hand: {by_hand} --payload JSON")


EPILOG = """\b
Examples:
  twiceproof callbacks list
  twiceproof callbacks deliver take_payment/order:10492 paid --payload '{"amount": 70}'
"""


@click.group(epilog=EPILOG, short_help="Look at callbacks that runs wait for, and deliver one.")
def callbacks() -> None:
    """Look at the callbacks that runs wait for, and deliver one by hand."""


for _command in (list_, deliver):
    callbacks.add_command(_command)
