"""`twiceproof callbacks deliver`: what came in some other way, by a person's hand."""

from __future__ import annotations

import secrets

import click
from msgspec import Raw

from ..drive import block
from ..flows.entry import KIND as STEP
from ..flows.waits.arrivals import KIND, Delivered
from ..flows.waits.arrivals import deliver as deliver_arrival
from ..flows.waits.waiting import wait_name
from ..records import Address
from .failures import NEGATIVE
from .ledger import opened
from .output import show_json, show_text
from .run_named import named_run
from .shell import command
from .target import Target, target_options
from .word import read_result

__all__ = ["deliver"]

WORDS = {
    "arrived": "was delivered before: what came first counts.",
    "timeout": "came too late: the wait had timed out.",
    "ended": "was not waited for: the run is done.",
}

EPILOG = """\b
Examples:
  twiceproof callbacks deliver take_payment/order:10492 paid --payload '{"amount": 70}'
  twiceproof callbacks deliver take_payment/order:10492 paid --payload @payment.json
RUN is a run's id, FLOW/KEY, or a KEY that only one run has.
NAME is what the flow waits for. If something
else came first, or its time was over, that is told and the exit code is 1.
"""


@click.command(epilog=EPILOG)
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
def deliver(target: Target, run: str, name: str, payload: str) -> None:
    """End a wait, once: as if its callback had come."""
    raw: Raw = read_result(payload, "--payload")
    with opened(target) as store:
        at = Address(named_run(target, store, run).space, KIND, wait_name(name))
        told: Delivered = block(deliver_arrival(store, at, raw, mark=secrets.token_hex(8)))
        awaited = store.read(Address(at.space, STEP, at.key)).block().record is not None
    if target.json:
        show_json({
            "run": run, "name": name, "first": told.first, "state": told.state, "answer": told.answer,
            "awaited": awaited,
        })  # fmt: skip
    else:
        show_text(f"{run}, {name}: {_came_to(target, run, awaited) if told.first else WORDS[told.state]}")
    if not told.first:
        raise click.exceptions.Exit(NEGATIVE)


def _came_to(target: Target, run: str, awaited: bool) -> str:
    """What comes early answers the wait at once; a name that was mistyped is never asked for."""
    if awaited:
        return "delivered; the run goes on."
    look = command(target, "runs", "show", about=(run,))
    return f"kept; the run does not wait for it yet. See what it waits for: {look}"
