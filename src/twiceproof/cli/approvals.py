"""Approvals list|show|approve|reject|link."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from typing import Any

import click
import msgspec

from ..claims.claim import RUN_ID, validate_name
from ..claims.run_index import resolve_run
from ..errors import Misuse
from ..flows.waits.approvals import ApprovalLink, draw_link, link_url, look_up, open_approvals
from ..flows.waits.approvals import decide as decide_approval
from ..flows.waits.records import APPROVAL_KIND, OPEN, Approval, Decided, approval_id, request_address, request_of
from ..keys import validate_key
from ..keys.duration import seconds
from ..operations import Operation, block
from ..settings import from_environment
from ..stores.base import Store
from .failures import NEGATIVE, NotFound
from .output import moment, show_json, show_pairs, show_table, show_text
from .prompts import login_name
from .target import LedgerTarget, command, opened, target_options

__all__ = [
    "APPROVAL_HELP",
    "approvals",
    "approve",
    "decide",
    "decision_words",
    "link",
    "list_",
    "named_approval",
    "reject",
    "show",
]


APPROVAL_HELP = "APPROVAL is an approval's id, or a run's id or FLOW/KEY where that run asks for one thing."
MOST = 100


def named_approval(target: LedgerTarget, store: Store, name: str) -> str:
    """Its id. What is still open comes first: a run may have asked for other things before."""
    if "/" not in name and not name.startswith(RUN_ID):
        return name
    at = block(resolve_run(store, target.tenant, name))
    asked = store.scan(APPROVAL_KIND, space=at.space, limit=MOST).block().records
    meant = [record for record in asked if record.state == OPEN] or asked
    if not meant:
        listed = command(target, "approvals", "list")
        raise NotFound(f"{name} has asked for no approval; list what waits for one with: {listed}")
    if len(meant) > 1:
        several = ", ".join(f"{approval_id(record.at)} ({record.at.key})" for record in meant)
        raise Misuse(f"{name} asks for several things; name one by its id: {several}")
    return approval_id(meant[0].at)


SHOW_EPILOG = f"""\b
Examples:
  twiceproof approvals show sync_order/shop:order:17
  twiceproof approvals show apr_ZGVmYXVsd… --json
{APPROVAL_HELP}
"""


@click.command(epilog=SHOW_EPILOG)
@click.argument("approval")
@target_options
@click.pass_obj
def show(target: LedgerTarget, approval: str) -> None:
    """Show what is asked, what is shown, and how to decide."""
    with opened(target) as store:
        found = block(look_up(store, named_approval(target, store, approval)))
    moves = list(_next_moves(target, found))
    if target.json:
        show_json({"approval": found, "next": [move for _, move in moves]})
        return
    show_pairs(list(_pairs(found)))
    for why, move in moves:
        show_text(f"\n{why}\n  {move}")


def _pairs(found: Approval) -> Iterator[tuple[str, Any]]:
    yield "flow", found.flow
    yield "key", found.key
    yield "name", found.name
    yield "run", found.run
    yield "state", found.state
    yield "asked", moment(found.asked_at) + (f", by {found.requester}" if found.requester else "")
    yield "until", moment(found.until)
    yield "shown", msgspec.json.format(msgspec.json.encode(found.shown), indent=2).decode()
    yield "digest", found.digest
    if found.decision is not None:
        yield "decision", decision_words(found)


def decision_words(found: Approval) -> str:
    if found.decision is None:
        return "nobody decided in time"
    word = "approved" if found.decision.approved else "rejected"
    who = f"{word}, by {found.decision.by or 'nobody'}, {moment(found.decision.at)}"
    return f"{who}: {found.decision.note}" if found.decision.note else who


def _next_moves(target: LedgerTarget, found: Approval) -> Iterator[tuple[str, str]]:
    """Why, and what to type. The digest makes sure that the decision is about what was looked at."""
    if found.state != OPEN:
        return
    yield "To say yes:", command(target, "approvals", "approve", found.id, "--shown", found.digest)
    yield "To say no:", command(target, "approvals", "reject", found.id, "--shown", found.digest, "--note", "WHY")


SHOWN_HELP = "Only if this is the digest of what is asked, as `show` tells it; another is refused."

DECIDE_EPILOG = """\b
Examples:
  twiceproof approvals {word} sync_order/shop:order:17
  twiceproof approvals {word} apr_ZGVmYXVsd… --shown 1:9f86d0… --note "asked the customer"
{help}
If somebody decided otherwise before, that stands, and the exit code is 1.
"""

DECIDE_EPILOG = """\b
Examples:
  twiceproof approvals decide sync_order/shop:order:17 reject --note "too much"
  twiceproof approvals decide apr_ZGVmYXVsd… approve --shown 1:9f86d0…
{help}
If somebody decided otherwise before, that stands, and the exit code is 1.
"""


def _deciding(function: Callable[..., None]) -> Callable[..., None]:
    """What both commands take."""
    for option in (
        click.option("--shown", metavar="DIGEST", default="", help=SHOWN_HELP),
        click.option("--note", default="", metavar="TEXT", help="Why: kept with the decision."),
        click.option("--by", metavar="NAME", help="Whose word this is. Default: your login name."),
        click.argument("approval"),
    ):
        function = option(function)
    return target_options(function)


@click.command(epilog=DECIDE_EPILOG.format(word="approve", help=APPROVAL_HELP))
@_deciding
@click.pass_obj
def approve(target: LedgerTarget, approval: str, by: str | None, note: str, shown: str) -> None:
    """Say yes: the run goes on."""
    _decide(target, approval, approved=True, by=by, note=note, shown=shown)


@click.command(
    epilog=DECIDE_EPILOG.format(word="reject", help=APPROVAL_HELP), short_help="Say no: the run undoes what it did."
)
@_deciding
@click.pass_obj
def reject(target: LedgerTarget, approval: str, by: str | None, note: str, shown: str) -> None:
    """Say no: the run undoes what it did, unless its flow takes another way."""
    _decide(target, approval, approved=False, by=by, note=note, shown=shown)


@click.command(epilog=DECIDE_EPILOG.format(help=APPROVAL_HELP))
@click.argument("approval")
@click.argument("word", type=click.Choice(["approve", "reject"]))
@click.option("--shown", metavar="DIGEST", default="", help=SHOWN_HELP)
@click.option("--note", default="", metavar="TEXT", help="Why: kept with the decision.")
@click.option("--by", metavar="NAME", help="Whose word this is. Default: your login name.")
@target_options
@click.pass_obj
def decide(target: LedgerTarget, approval: str, word: str, by: str | None, note: str, shown: str) -> None:
    """Say yes or no, in one command: for scripts."""
    _decide(target, approval, approved=word == "approve", by=by, note=note, shown=shown)


def _decide(target: LedgerTarget, approval: str, *, approved: bool, by: str | None, note: str, shown: str) -> None:
    words = {"approved": approved, "by": validate_key(by or login_name()), "note": note, "shown": shown}
    with opened(target) as store:
        told, found = block(_decide_and_look(store, named_approval(target, store, approval), words))
    agreed = told.decision is not None and told.decision.approved is approved
    if target.json:
        show_json({"first": told.first, "approval": found})
    else:
        before = "" if told.first else "too late, "
        show_text(f"{found.flow} {found.key}, {found.name}: {before}{decision_words(found)}")
    if not agreed:
        raise click.exceptions.Exit(NEGATIVE)


def _decide_and_look(store: Store, approval: str, words: dict[str, Any]) -> Operation[tuple[Decided, Approval]]:
    told = yield from decide_approval(store, approval, mark=secrets.token_hex(8), **words)
    found = yield from look_up(store, approval)
    return told, found


LINK_EPILOG = f"""\b
Examples:
  twiceproof approvals link charge_order/order:2 --to ann@example.com
  twiceproof approvals link apr_ZGVmYXVsd… --valid 2h --url https://hooks.example.com
{APPROVAL_HELP}
Whoever has the link can decide: send it to one person. It is shown once, and
only its hash is kept.
"""


@click.command(epilog=LINK_EPILOG)
@click.argument("approval")
@click.option("--to", default="", metavar="NAME", help="Whose decision it will be. Default: they say who they are.")
@click.option("--valid", default="7d", show_default=True, metavar="TIME", help="How long it can be used.")
@click.option("--url", metavar="URL", help="Where the server is reached. Default: TWICEPROOF_URL.")
@target_options
@click.pass_obj
def link(target: LedgerTarget, approval: str, to: str, valid: str, url: str | None) -> None:
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
    return (yield from draw_link(store, ApprovalLink(at.space, at.key, request.born, request.digest, to), span))


HEAD = ("FLOW", "KEY", "NAME", "ASKED", "UNTIL")

LIST_EPILOG = """\b
Examples:
  twiceproof approvals list
  twiceproof approvals list --flow sync_order --json
"""


@click.command("list", epilog=LIST_EPILOG)
@click.option("--flow", metavar="NAME", help="Only approvals of this flow.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="At most so many.")
@target_options
@click.pass_obj
def list_(target: LedgerTarget, flow: str | None, limit: int) -> None:
    """List what waits for somebody's word."""
    prefix = f"{validate_name('tenant', target.tenant)}/"
    if flow is not None:
        prefix += f"{validate_name('flow', flow)}/"
    with opened(target) as store:
        found = block(open_approvals(store, prefix, limit + 1))
    if target.json:
        show_json({"approvals": found[:limit], "more": len(found) > limit})
    else:
        _show(target, found, limit)


def _show(target: LedgerTarget, found: list[Approval], limit: int) -> None:
    if not found:
        show_text("Nothing waits for approval.")
        return
    shown = found[:limit]
    show_table(HEAD, [(a.flow, a.key, a.name, moment(a.asked_at), moment(a.until)) for a in shown])
    if len(found) > limit:
        show_text(f"There is more: {command(target, 'approvals', 'list', '--limit', str(limit * 10))}")
    show_text(f"See what one is about: {command(target, 'approvals', 'show', f'{shown[0].flow}/{shown[0].key}')}")


EPILOG = """\b
Examples:
  twiceproof approvals list                      what waits for somebody's word
  twiceproof approvals show charge_order/order:2  what it is about, and how to decide
"""


@click.group(epilog=EPILOG)
def approvals() -> None:
    """Look at what waits for somebody's word, and give it."""


for _command in (list_, show, approve, reject, decide, link):
    approvals.add_command(_command)
