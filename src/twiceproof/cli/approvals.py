"""`twiceproof approvals list|show|approve|reject|decide|link`."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import click
import msgspec

from ..claims.claim import RUN_ID, validate_name
from ..claims.queries import resolve_run
from ..errors import Misuse
from ..flows.waits.approvals import ApprovalLink, create_link, link_url, look_up, open_approvals
from ..flows.waits.approvals import decide as decide_approval
from ..flows.waits.records import APPROVAL_KIND, OPEN, Approval, Decided, approval_id, request_address, request_of
from ..keys import validate_key
from ..keys.duration import seconds
from ..operations import Operation, block
from ..settings import from_environment
from ..stores.base import Store
from .output import NEGATIVE, NotFound, moment, show_json, show_moves, show_pairs, show_table, show_text
from .prompts import by_option, limit_option, login_name, note_option
from .target import LedgerTarget, command, opened, target_options

__all__ = [
    "APPROVAL_HELP",
    "approvals",
    "approve",
    "decide",
    "decision_text",
    "link",
    "list_",
    "named_approval",
    "reject",
    "show",
]


APPROVAL_HELP = "APPROVAL is an approval id, or a run id or FLOW/KEY of a run with one pending approval."
MOST = 100
F = TypeVar("F", bound=Callable[..., Any])


def named_approval(target: LedgerTarget, store: Store, name: str) -> str:
    """Return the id of an approval. A pending one is preferred: a run may have had others before."""
    if "/" not in name and not name.startswith(RUN_ID):
        return name
    at = block(resolve_run(store, target.tenant, name))
    found = store.scan(APPROVAL_KIND, space=at.space, limit=MOST).block().records
    candidates = [record for record in found if record.state == OPEN] or found
    if not candidates:
        listed = command(target, "approvals", "list")
        raise NotFound(f"{name} has no approvals; list pending approvals: {listed}")
    if len(candidates) > 1:
        several = ", ".join(f"{approval_id(record.at)} ({record.at.key})" for record in candidates)
        raise Misuse(f"{name} has several approvals; name one by its id: {several}")
    return approval_id(candidates[0].at)


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
    """Show one approval, its data, and the commands to decide it."""
    with opened(target) as store:
        found = block(look_up(store, named_approval(target, store, approval)))
    moves = list(_next_moves(target, found))
    if target.json:
        show_json({"approval": found, "next": [move for _, move in moves]})
        return
    show_pairs(list(_pairs(found)))
    show_moves(moves)


def _pairs(found: Approval) -> Iterator[tuple[str, Any]]:
    yield "flow", found.flow
    yield "key", found.key
    yield "name", found.name
    yield "run", found.run
    yield "state", found.state
    yield "requested", moment(found.asked_at) + (f", by {found.requester}" if found.requester else "")
    yield "expires", "never" if found.until is None else moment(found.until)
    yield "data", msgspec.json.format(msgspec.json.encode(found.shown), indent=2).decode()
    yield "digest", found.digest
    if found.decision is not None:
        yield "decision", decision_text(found)


def decision_text(found: Approval) -> str:
    if found.decision is None:
        return "timed out without a decision"
    decision = "approved" if found.decision.approved else "rejected"
    by = f" by {found.decision.by}" if found.decision.by else ""
    text = f"{decision}{by}, {moment(found.decision.at)}"
    return f"{text}: {found.decision.note}" if found.decision.note else text


def _next_moves(target: LedgerTarget, found: Approval) -> Iterator[tuple[str, str]]:
    """Yield the commands to decide. The digest makes sure that the decision is about the data that was shown."""
    if found.state != OPEN:
        return
    yield "To approve:", command(target, "approvals", "approve", found.id, "--digest", found.digest)
    yield "To reject:", command(target, "approvals", "reject", found.id, "--digest", found.digest, "--note", "REASON")


DIGEST_HELP = "Refuse the decision unless the data has this digest, as `show` prints it."
FIRST_DECISION = "The first decision counts: if it was a different one, the exit code is 1."

ONE_DECISION_EPILOG = """\b
Examples:
  twiceproof approvals {name} sync_order/shop:order:17
  twiceproof approvals {name} apr_ZGVmYXVsd… --digest 1:9f86d0… --note "asked the customer"
{help}
{first}
"""

DECIDE_EPILOG = f"""\b
Examples:
  twiceproof approvals decide sync_order/shop:order:17 reject --note "too much"
  twiceproof approvals decide apr_ZGVmYXVsd… approve --digest 1:9f86d0…
{APPROVAL_HELP}
{FIRST_DECISION}
"""


def _decision_options(function: F) -> F:
    """Add what each command that decides takes."""
    digest = click.option("--digest", metavar="DIGEST", default="", help=DIGEST_HELP)
    return target_options(by_option(note_option("the decision")(digest(function))))


def _one_decision_epilog(name: str) -> str:
    return ONE_DECISION_EPILOG.format(name=name, help=APPROVAL_HELP, first=FIRST_DECISION)


@click.command(epilog=_one_decision_epilog("approve"))
@click.argument("approval")
@_decision_options
@click.pass_obj
def approve(target: LedgerTarget, approval: str, by: str | None, note: str, digest: str) -> None:
    """Approve, so that the run continues."""
    _decide(target, approval, approved=True, by=by, note=note, shown=digest)


@click.command(epilog=_one_decision_epilog("reject"))
@click.argument("approval")
@_decision_options
@click.pass_obj
def reject(target: LedgerTarget, approval: str, by: str | None, note: str, digest: str) -> None:
    """Reject, so that the run undoes its completed steps.

    A flow that catches Rejected continues another way instead.
    """
    _decide(target, approval, approved=False, by=by, note=note, shown=digest)


@click.command(epilog=DECIDE_EPILOG)
@click.argument("approval")
@click.argument("decision", type=click.Choice(["approve", "reject"]))
@_decision_options
@click.pass_obj
def decide(target: LedgerTarget, approval: str, decision: str, by: str | None, note: str, digest: str) -> None:
    """Approve or reject, with the decision as an argument, for scripts."""
    _decide(target, approval, approved=decision == "approve", by=by, note=note, shown=digest)


def _decide(target: LedgerTarget, approval: str, *, approved: bool, by: str | None, note: str, shown: str) -> None:
    given = {"approved": approved, "by": validate_key(by or login_name()), "note": note, "shown": shown}
    with opened(target) as store:
        decided, found = block(_decide_and_look(store, named_approval(target, store, approval), given))
    agreed = decided.decision is not None and decided.decision.approved is approved
    if target.json:
        show_json({"first": decided.first, "approval": found})
    else:
        before = "" if decided.first else "already "
        show_text(f"{found.flow} {found.key}, {found.name}: {before}{decision_text(found)}")
    if not agreed:
        raise click.exceptions.Exit(NEGATIVE)


def _decide_and_look(store: Store, approval: str, given: dict[str, Any]) -> Operation[tuple[Decided, Approval]]:
    decided = yield from decide_approval(store, approval, mark=secrets.token_hex(8), **given)
    found = yield from look_up(store, approval)
    return decided, found


LINK_EPILOG = f"""\b
Examples:
  twiceproof approvals link charge_order/order:2 --to ann@example.com
  twiceproof approvals link apr_ZGVmYXVsd… --expires 2h --url https://hooks.example.com
{APPROVAL_HELP}
Anyone who has the link can decide: send it to one person. It is printed once;
only its hash is stored.
"""


@click.command(epilog=LINK_EPILOG)
@click.argument("approval")
@click.option("--to", default="", metavar="NAME", help="Name recorded as the decider. Default: the page asks for it.")
@click.option("--expires", default="7d", show_default=True, metavar="TIME", help="Lifetime of the link.")
@click.option("--url", metavar="URL", help="Public URL of the server. Default: TWICEPROOF_URL.")
@target_options
@click.pass_obj
def link(target: LedgerTarget, approval: str, to: str, expires: str, url: str | None) -> None:
    """Create a link to a web page where one person can decide."""
    base = from_environment(os.environ).url if url is None else url
    lifetime, name = seconds(expires, name="expires"), to and validate_key(to)
    if not base.startswith(("http://", "https://")):  # checked before a token is created that could not be printed
        raise Misuse("The public URL of the server is not known; use --url https://… or set TWICEPROOF_URL.")
    with opened(target) as store:
        token = block(_new_link(target, store, named_approval(target, store, approval), name, lifetime))
    if target.json:
        show_json({"url": link_url(base, token), "to": name, "expires_in": lifetime})
    else:
        show_text(link_url(base, token))


def _new_link(target: LedgerTarget, store: Store, approval: str, to: str, lifetime: float) -> Operation[str]:
    """Create a link for the data as it is now: if the run requests something else later, the link is refused."""
    at = request_address(approval)
    record = (yield from store.read(at)).record
    if record is None or record.state != OPEN:
        listed = command(target, "approvals", "list")
        raise Misuse(f"This approval is not pending; list pending approvals: {listed}")
    request = request_of(record)
    return (
        yield from create_link(store, ApprovalLink(at.space, at.key, request.start_id, request.digest, to), lifetime)
    )


HEAD = ("FLOW", "KEY", "NAME", "REQUESTED", "EXPIRES")

LIST_EPILOG = """\b
Examples:
  twiceproof approvals list
  twiceproof approvals list --flow sync_order --json
"""


@click.command("list", epilog=LIST_EPILOG)
@click.option("--flow", metavar="NAME", help="Only approvals of this flow.")
@limit_option()
@target_options
@click.pass_obj
def list_(target: LedgerTarget, flow: str | None, limit: int) -> None:
    """List pending approvals."""
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
        show_text("No pending approvals.")
        return
    shown = found[:limit]
    show_table(HEAD, [(a.flow, a.key, a.name, moment(a.asked_at), moment(a.until)) for a in shown])
    if len(found) > limit:
        show_text(f"To list more: {command(target, 'approvals', 'list', '--limit', str(limit * 10))}")
    show_text(f"To show one: {command(target, 'approvals', 'show', f'{shown[0].flow}/{shown[0].key}')}")


EPILOG = """\b
Examples:
  twiceproof approvals list
  twiceproof approvals show charge_order/order:2
  twiceproof approvals approve charge_order/order:2
"""


@click.group(epilog=EPILOG)
def approvals() -> None:
    """List pending approvals and decide them."""


for _command in (list_, show, approve, reject, decide, link):
    approvals.add_command(_command)
