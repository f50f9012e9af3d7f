"""Showing and deciding approvals over HTTP, with their HTML page."""

from __future__ import annotations

import re
import secrets
from base64 import b64encode
from datetime import UTC, datetime
from hashlib import sha256
from html import escape
from typing import Any, Literal

import msgspec
from msgspec import Struct, structs

from ...errors import NoSuchWait, OwnRequest, PayloadMismatch
from ...flows.runtime import own_approval
from ...flows.waits.approvals import ApprovalLink, decide, find_link, look_up
from ...flows.waits.records import (
    APPROVAL_KIND,
    OPEN,
    Approval,
    Decided,
    Decision,
    approval_id,
    request_address,
    request_of,
)
from ...inbound.reply import Reply, problem
from ...keys import validate_key
from ...operations import Operation
from ...records import Address
from ...safe_text import escape_invisible
from ...stores.base import Store
from ..tokens import signer

__all__ = [
    "VALID",
    "ApprovalAccess",
    "ApprovalView",
    "DecideBody",
    "Nonces",
    "View",
    "by_id",
    "by_link",
    "create_nonce",
    "decide_at",
    "is_valid_nonce",
    "page_of_decision",
    "page_of_problem",
    "page_of_view",
    "view_at",
]


VALID = 3_600.0  # seconds for which a page may stay open
NONCE = re.compile(r"([0-9a-f]{1,16})\.([0-9a-f]{16})\.([0-9a-f]{32})", re.ASCII)

View = tuple[str, str, str]  # the approval, the digest of what was shown, and the access path


def create_nonce(store: Store, view: View, decision: str, now: float) -> Operation[str]:
    """Create a nonce. Nothing is stored, however often a page is opened."""
    stem = f"{int(now):x}.{secrets.token_hex(8)}"
    return f"{stem}.{(yield from signer(store)).sign('view', *view, decision, stem)}"


def is_valid_nonce(store: Store, text: str, view: View, decision: str, now: float) -> Operation[bool]:
    """Whether the nonce belongs to this view and decision, and is not too old."""
    found = NONCE.fullmatch(text)
    if found is None:
        return False
    at, _, mark = found.groups()
    genuine = (yield from signer(store)).signed(mark, "view", *view, decision, text.rpartition(".")[0])
    return genuine and -VALID <= now - int(at, 16) <= VALID


class ApprovalAccess(Struct, frozen=True):
    approval: Approval
    by: str  # who decides; "": the request must say
    way: str  # binds a nonce to this link or person, and to this start of the run
    start_id: str = ""  # the start of the run that asks
    sent: bool = False  # by a link

    @property
    def after_decision(self) -> Approval:
        """The approval once it is decided. A link stays in mailboxes, so it no longer shows the contents."""
        return structs.replace(self.approval, shown=None) if self.sent else self.approval


def by_id(store: Store, tenant: str, approval: str, by: str) -> Operation[ApprovalAccess | Reply]:
    try:
        at = own_approval(tenant, request_address(approval))
        found = yield from look_up(store, approval)
    except NoSuchWait:
        return _no_such_approval()
    record = (yield from store.read(at)).record
    # A run restarted under the same key asks the same again: a form sent twice must not answer both.
    if record is None:
        return _no_such_approval()
    start_id = request_of(record).start_id
    return ApprovalAccess(found, by, f"id:{start_id}:{by}", start_id)


def by_link(store: Store, token: str) -> Operation[ApprovalAccess | Reply]:
    """Find the approval of a link, which must be for the same start of the run and the same contents."""
    link = yield from find_link(store, token)
    if link is None:
        return _no_such_approval()
    at = Address(link.space, APPROVAL_KIND, link.name)
    record = (yield from store.read(at)).record
    if record is None:
        return _not_open_yet()
    request = request_of(record)
    if (request.start_id, request.digest) != (link.start_id, link.digest):
        return _changed(link)
    try:
        found = yield from look_up(store, approval_id(at))
    except NoSuchWait:
        return _no_such_approval()
    return ApprovalAccess(
        found, link.to, f"link:{sha256(token.encode(errors='replace')).hexdigest()}", link.start_id, sent=True
    )


def _no_such_approval() -> Reply:
    return problem(
        404,
        "no-such-approval",
        "There is no such approval, or it has expired.",
        next_move="Ask the sender for a new link, or list pending approvals: twiceproof approvals list",
    )


def _not_open_yet() -> Reply:
    return problem(
        404,
        "approval-not-open",
        "This approval is not open yet, or no longer open.",
        next_move="Open the link again in a minute.",
    )


def _changed(link: ApprovalLink) -> Reply:
    return problem(
        422,
        "approval-changed",
        "What is to be decided has changed since this link was created.",
        next_move="Ask for a new link, and review it again.",
    )


LONGEST_NOTE = 2_000


class DecideBody(Struct, frozen=True, forbid_unknown_fields=True):
    """`nonce` and `shown` come from the view: the nonce of this decision, and the digest of what was shown."""

    decision: Literal["approve", "reject"]
    nonce: str
    shown: str
    by: str = ""
    note: str = ""


class Nonces(Struct, frozen=True):
    """One nonce per decision; the one sent back must match the decision."""

    approve: str
    reject: str


class ApprovalView(Struct, frozen=True):
    """An approval as shown. `nonces` is null if it is decided or closed."""

    approval: Approval
    nonces: Nonces | None


def view_at(store: Store, access: ApprovalAccess, now: float) -> Operation[ApprovalView]:
    if access.approval.state != OPEN:
        return ApprovalView(access.after_decision, None)
    view = _view(access, access.approval.digest)
    yes = yield from create_nonce(store, view, "approve", now)
    no = yield from create_nonce(store, view, "reject", now)
    return ApprovalView(access.approval, Nonces(yes, no))


def decide_at(
    store: Store, access: ApprovalAccess, body: DecideBody, now: float, *, mark: str
) -> Operation[Decided | Reply]:
    """Decide an approval. The first decision counts, and later requests get it."""
    if access.by and body.by and body.by != access.by:
        return _problem(403, "wrong-approver", f"Only {access.by} may decide this.", "Leave out `by`.")
    if not (access.by or body.by.strip()):
        return _problem(400, "name-missing", "The request does not say who decides.", "Send your name as `by`.")
    if not (yield from is_valid_nonce(store, body.nonce, _view(access, body.shown), body.decision, now)):
        why = "This does not come from a recently opened page."
        return _problem(403, "stale-view", why, "Open it again, review it, and decide.")
    return (yield from _decide(store, access, body, mark))


def _decide(store: Store, access: ApprovalAccess, body: DecideBody, mark: str) -> Operation[Decided | Reply]:
    fields: dict[str, Any] = {
        "approved": body.decision == "approve",
        "note": body.note[:LONGEST_NOTE],
        "shown": body.shown,
        "start_id": access.start_id,
    }
    by = access.by or validate_key(body.by.strip())
    try:
        return (yield from decide(store, access.approval.id, by=by, mark=mark, **fields))
    except PayloadMismatch:
        return _problem(
            422, "approval-changed", "What is to be decided has changed since you opened it.", "Open it again."
        )
    except OwnRequest as error:
        return _problem(403, "own-request", str(error), "Have another person decide.")
    except NoSuchWait as error:
        return _problem(410, "approval-closed", str(error), "No decision is needed any more.")


def _view(access: ApprovalAccess, digest: str) -> View:
    return access.approval.id, digest, access.way


def _problem(status: int, kind: str, detail: str, move: str) -> Reply:
    return problem(status, kind, detail, next_move=move)


STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:42rem;margin:2rem auto;padding:0 1rem}"
    "table{border-collapse:collapse;width:100%}td,th{border:1px solid #bbb;padding:.4rem .6rem;text-align:left;"
    "vertical-align:top;overflow-wrap:anywhere}pre{white-space:pre-wrap;margin:0}label{display:block;margin:.6rem 0}"
    "input[type=text]{font:inherit;width:100%}button{font:inherit;padding:.5rem 1.5rem}.small{color:#666}"
)
_HASH = b64encode(sha256(STYLE.encode()).digest()).decode()
HEADERS = (
    ("content-type", "text/html; charset=utf-8"),
    (
        "content-security-policy",
        f"default-src 'none'; style-src 'sha256-{_HASH}'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    ),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    ("cache-control", "no-store"),
)


def page_of_view(shown: ApprovalView, by: str, referrer: str = "no-referrer") -> Reply:
    """The page with the contents and the form; for a decided approval only the decision."""
    approval = shown.approval
    if shown.nonces is None:
        return _page(200, approval.name, _ended(approval.decision))
    form = _form(shown.nonces, approval.digest, by)
    return _page(200, approval.name, f"{_request(approval)}<h2>Details</h2>{_table(approval.shown)}{form}", referrer)


def page_of_decision(approval: Approval, decided: Decided, status: int) -> Reply:
    before = "" if decided.first else "<p>This was already decided.</p>"
    return _page(status, approval.name, before + _ended(decided.decision))


def page_of_problem(reply: Reply) -> Reply:
    """A problem as a page, with the same text."""
    fields = msgspec.json.decode(reply.body)
    return _page(reply.status, fields["title"], f"<p>{_text(fields['detail'])}</p><p>{_text(fields['next'])}</p>")


def _request(approval: Approval) -> str:
    until = "" if approval.until is None else f" Until {_moment(approval.until)}."
    requester = f" Requested by {_text(approval.requester)}." if approval.requester else ""
    return f"<p><b>{_text(approval.flow)}</b> for <b>{_text(approval.key)}</b>.{requester}{until}</p>"


def _form(nonces: Nonces, digest: str, by: str) -> str:
    """The form. Nothing is preselected, so that a program pressing the button decides nothing."""
    who = (
        f"<p>You decide as <b>{_text(by)}</b>.</p>"
        if by
        else ('<label>Your name <input type="text" name="by" required maxlength="200" autocomplete="name"></label>')
    )
    return (
        f'<form method="post"><h2>Your decision</h2>{who}'
        f'<input type="hidden" name="shown" value="{escape(digest)}">'
        f'<label><input type="radio" name="choice" value="approve:{escape(nonces.approve)}" required> Approve</label>'
        f'<label><input type="radio" name="choice" value="reject:{escape(nonces.reject)}" required> Reject</label>'
        '<label>Reason (optional) <input type="text" name="note" maxlength="2000" autocomplete="off"></label>'
        "<button>Send</button></form>"
        '<p class="small">Opening this page decides nothing. A decision counts once.</p>'
    )


def _ended(decision: Decision | None) -> str:
    if decision is None:
        return "<p>This was not decided in time, and is closed.</p>"
    verdict = "Approved" if decision.approved else "Rejected"
    note = f"<p>{_text(decision.note)}</p>" if decision.note else ""
    return f"<p><b>{verdict}</b> by {_text(decision.by or 'nobody')}, {_moment(decision.at)}.</p>{note}"


def _table(shown: Any) -> str:
    if not isinstance(shown, dict) or not shown:
        return f"<pre>{_value(shown)}</pre>"
    rows = (f"<tr><th>{_text(name)}</th><td><pre>{_value(value)}</pre></td></tr>" for name, value in shown.items())
    return f"<table>{''.join(rows)}</table>"


def _value(value: Any) -> str:
    if isinstance(value, str):
        return _text(value)
    return _text(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def _text(text: str) -> str:
    """Escape the text, including invisible characters: what is read must be what is approved."""
    return escape(escape_invisible(text, but="\t\n"))


def _moment(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _page(status: int, title: str, body: str, referrer: str = "no-referrer") -> Reply:
    shown = _text(title)
    text = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{shown}</title>'
        '<meta name="viewport" content="width=device-width"><meta name="robots" content="noindex">'
        f"<style>{STYLE}</style></head><body><h1>{shown}</h1>{body}</body></html>"
    )
    return Reply(status, (*HEADERS, ("referrer-policy", referrer)), text.encode(errors="replace"))
