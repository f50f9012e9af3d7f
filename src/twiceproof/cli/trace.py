"""`twiceproof trace KEY`: the chain from an event to its run, effects, messages and their consumers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import click
import msgspec

from ..claims.claim import validate_name
from ..inbound.trace import TraceLink
from ..inbound.trace import trace as trace_key
from ..safe_text import shown_url
from .output import NotFound, moment, show_json, show_table, show_text
from .target import LedgerTarget, opened, target_options

__all__ = ["trace"]


HEAD = ("LINK", "ID", "WHAT", "STATE", "AT")
EPILOG = """\b
Examples:
  twiceproof trace evt_1042
  twiceproof trace order:17:paid --also sqlite:///billing.db
  twiceproof trace run_3f8…  --json
KEY is an event's id, a run's id or key, FLOW/KEY, an effect key, an external id,
a message's key, or a correlation id. The chain is followed in both
directions: to its causes and to its consequences. --also names the ledgers of
other apps that sent or consumed the messages. Ledgers are scanned completely.
Exit codes: 1 if nothing has this key.
"""


@click.command(epilog=EPILOG, short_help="Follow a key from its event to runs, effects and messages.")
@click.argument("key")
@click.option("--also", metavar="URL", multiple=True, help="Another ledger to follow messages to; or @FILE.")
@target_options
@click.pass_obj
def trace(target: LedgerTarget, key: str, also: tuple[str, ...]) -> None:
    """Show the chain of a key: event, run, effects, messages, consumers."""
    targets = [target, *(_other(target, url) for url in also)]
    with ExitStack() as stack:
        stores = [stack.enter_context(opened(one)) for one in targets]
        links = trace_key(stores, validate_name("tenant", target.tenant), key)
    if not links:
        raise NotFound(
            f"Nothing has the key {key!r}: no event, run, effect or message. If it belongs to another app, name its "
            "ledger: --also URL"
        )
    if target.json:
        ledgers = [shown_url(one.url) for one in targets]
        show_json({"key": key, "ledgers": ledgers, "links": [msgspec.to_builtins(link) for link in links]})
        return
    _show(links, [shown_url(one.url) for one in targets])


def _other(target: LedgerTarget, url: str) -> LedgerTarget:
    other = LedgerTarget()
    other.point(url)
    other.given_tenant = target.given_tenant
    return other


def _show(links: list[TraceLink], ledgers: list[str]) -> None:
    several = len(ledgers) > 1
    head = (*HEAD, "LEDGER") if several else HEAD
    show_table(head, [(*_row(link), str(link.ledger)) if several else _row(link) for link in links])
    for text in _below(links, ledgers if several else []):
        show_text(text)


def _row(link: TraceLink) -> tuple[Any, ...]:
    what = f"{link.name}, {link.external}" if link.external else link.name or "-"
    return "  " * link.depth + link.kind, link.id, what, link.state, moment(link.at)


def _below(links: list[TraceLink], ledgers: list[str]) -> Iterator[str]:
    known = sorted({link.correlation for link in links if link.correlation})
    if known:
        yield f"Correlation id in logs and headers: {', '.join(known)}"
    for number, url in enumerate(ledgers, 1):
        yield f"Ledger {number}: {url}"
