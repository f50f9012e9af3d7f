"""`twiceproof approvals link`: a page for somebody who has no command line."""

from __future__ import annotations

import os

import click

from ..drive import Operation, block
from ..errors import Misuse
from ..flows.waits.approval import OPEN, request_address, request_of
from ..flows.waits.links import Link, draw_link, link_url
from ..keys import validate_key
from ..keys.duration import seconds
from ..settings import from_environment
from ..stores.base import Store
from .approval_named import APPROVAL_HELP, named_approval
from .ledger import opened
from .output import show_json, show_text
from .target import Target, target_options

__all__ = ["link"]

EPILOG = f"""\b
Examples:
  twiceproof approvals link charge_order/order:2 --to ann@example.com
  twiceproof approvals link apr_ZGVmYXVsd… --valid 2h --url https://hooks.example.com
{APPROVAL_HELP}
Whoever has the link can decide: send it to one person. It is shown once, and
only its hash is kept.
"""


@click.command(epilog=EPILOG)
@click.argument("approval")
@click.option("--to", default="", metavar="NAME", help="Whose decision it will be. Default: they say who they are.")
@click.option("--valid", default="7d", show_default=True, metavar="TIME", help="How long it can be used.")
@click.option("--url", metavar="URL", help="Where the server is reached. Default: TWICEPROOF_URL.")
@target_options
@click.pass_obj
def link(target: Target, approval: str, to: str, valid: str, url: str | None) -> None:
    """Make a link to a page where one person can decide."""
    base = from_environment(os.environ).url if url is None else url
    span, who = seconds(valid, name="valid"), to and validate_key(to)
    if not base.startswith(("http://", "https://")):  # before a token is drawn that nobody would get
        raise Misuse("Nobody knows where a browser can reach the server; say --url https://… or set TWICEPROOF_URL.")
    with opened(target) as store:
        token = block(_drawn(store, named_approval(target, store, approval), who, span))
    if target.json:
        show_json({"url": link_url(base, token), "to": who, "valid": span})
    else:
        show_text(link_url(base, token))


def _drawn(store: Store, approval: str, to: str, span: float) -> Operation[str]:
    """About what is asked now: if the run asks for something else later, the link no longer fits."""
    at = request_address(approval)
    record = (yield from store.read(at)).record
    if record is None or record.state != OPEN:
        raise Misuse("Nobody is asked about this any more; see what waits: twiceproof approvals list")
    request = request_of(record)
    return (yield from draw_link(store, Link(at.space, at.key, request.born, request.digest, to), span))
