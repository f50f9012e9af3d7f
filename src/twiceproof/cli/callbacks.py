"""`twiceproof callbacks list|deliver`."""

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
from .output import NEGATIVE, moment, show_json, show_table, show_text
from .prompts import limit_option, read_result, result_option
from .runs import RUN_HELP, named_run
from .target import LedgerTarget, command, opened, target_options

__all__ = ["callbacks", "deliver", "list_"]


REFUSED_DELIVERIES = {
    "arrived": "was already delivered; the first payload counts.",
    "timeout": "is too late; the wait has timed out.",
    "ended": "is not awaited; the run has ended.",
}

DELIVER_EPILOG = f"""\b
Examples:
  twiceproof callbacks deliver take_payment/order:10492 paid --payload '{{"amount": 70}}'
  twiceproof callbacks deliver take_payment/order:10492 paid --payload @payment.json
{RUN_HELP}
NAME is the name that the flow waits for.
Exit codes: 1 if it was already delivered, or the wait has timed out.
"""


@click.command(epilog=DELIVER_EPILOG)
@click.argument("run")
@click.argument("name")
@result_option("--payload", "The payload", default="null", show_default=True)
@target_options
@click.pass_obj
def deliver(target: LedgerTarget, run: str, name: str, payload: str) -> None:
    """Deliver a callback by hand, to end the wait of a run."""
    raw: Raw = read_result(payload, "--payload")
    with opened(target) as store:
        at = Address(named_run(target, store, run).space, ARRIVAL_KIND, wait_name(name))
        delivered: Delivered = block(deliver_arrival(store, at, raw, mark=secrets.token_hex(8)))
        awaited = store.read(Address(at.space, STEP, at.key)).block().record is not None
    if target.json:
        outcome = {"first": delivered.first, "state": delivered.state, "answer": delivered.answer}
        show_json({"run": run, "name": name, **outcome, "awaited": awaited})
    else:
        accepted = _accepted(target, run, awaited=awaited)
        show_text(f"{run}, {name}: {accepted if delivered.first else REFUSED_DELIVERIES[delivered.state]}")
    if not delivered.first:
        raise click.exceptions.Exit(NEGATIVE)


def _accepted(target: LedgerTarget, run: str, *, awaited: bool) -> str:
    """An early payload ends the wait as soon as it begins; under a mistyped name it would never be used."""
    if awaited:
        return "delivered; the run continues."
    show = command(target, "runs", "show", about=(run,))
    return f"stored; the run does not wait for it yet. To see what it waits for: {show}"


HEAD = ("FLOW", "KEY", "NAME", "STATE", "CREATED")

LIST_EPILOG = """\b
Examples:
  twiceproof callbacks list
  twiceproof callbacks list --flow take_payment --all --json
"""


@click.command("list", epilog=LIST_EPILOG)
@click.option("--flow", default="", metavar="NAME", help="Only callbacks of this flow.")
@click.option("--all", "ended", is_flag=True, help="Also list callbacks that arrived or timed out.")
@limit_option()
@target_options
@click.pass_obj
def list_(target: LedgerTarget, flow: str, ended: bool, limit: int) -> None:
    """List the callback URLs that runs wait for, without their tokens."""
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
        show_text(f"No pending callbacks. To list runs that wait for something else: {waiting}")
        return
    shown = found[:limit]
    show_table(HEAD, [(c.flow, c.key, c.name, c.state, moment(c.handed_out_at)) for c in shown])
    if len(found) > limit:
        show_text(f"To list more: {command(target, 'callbacks', 'list', '--limit', str(limit * 10))}")
    by_hand = command(target, "callbacks", "deliver", f"{shown[0].flow}/{shown[0].key}", shown[0].name)
    show_text(f"To deliver one by hand: {by_hand} --payload JSON")


EPILOG = """\b
Examples:
  twiceproof callbacks list
  twiceproof callbacks deliver take_payment/order:10492 paid --payload '{"amount": 70}'
"""


@click.group(epilog=EPILOG)
def callbacks() -> None:
    """List pending callbacks, and deliver one by hand."""


for _command in (list_, deliver):
    callbacks.add_command(_command)
