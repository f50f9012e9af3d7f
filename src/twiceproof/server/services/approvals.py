"""Showing and deciding approvals; the HTML page."""

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
from ...inbound.signing import signer
from ...keys import validate_key
from ...operations import Operation
from ...records import Address
from ...safe_text import escape_invisible
from ...stores.base import Store

__all__ = [
    "VALID",
    "ApprovalAccess",
    "DecideBody",
    "Nonces",
    "Shown",
    "View",
    "by_id",
    "by_link",
    "decide_at",
    "draw_nonce",
    "is_nonce",
    "page_of_decision",
    "page_of_problem",
    "page_of_view",
    "shown_at",
]


VALID = 3_600.0  # seconds for which a page may lie open
NONCE = re.compile(r"([0-9a-f]{1,16})\.([0-9a-f]{16})\.([0-9a-f]{32})", re.ASCII)

View = tuple[str, str, str]  # which approval, the digest of what was shown, and how its viewer came in


def draw_nonce(store: Store, view: View, decision: str, now: float) -> Operation[str]:
    """Nothing is written: a page that is opened a thousand times leaves no trace."""
    stem = f"{int(now):x}.{secrets.token_hex(8)}"
    return f"{stem}.{(yield from signer(store)).sign('view', *view, decision, stem)}"


def is_nonce(store: Store, text: str, view: View, decision: str, now: float) -> Operation[bool]:
    """Of this view, for this decision, and not too old."""
    found = NONCE.fullmatch(text)
    if found is None:
        return False
    at, _, mark = found.groups()
    genuine = (yield from signer(store)).signed(mark, "view", *view, decision, text.rpartition(".")[0])
    return genuine and -VALID <= now - int(at, 16) <= VALID


class ApprovalAccess(Struct, frozen=True):
    approval: Approval
    by: str  # whose word it will be; "": they have to say
    way: str  # what a nonce is bound to, beside the approval: a view of one is no view of another, nor of a later start
    born: str = ""  # which start of the run asks
    sent: bool = False  # they came by a link

    @property
    def told(self) -> Approval:
        """Once it is decided. A link outlives its use in somebody's mailbox: it tells no more what was shown."""
        return structs.replace(self.approval, shown=None) if self.sent else self.approval


def by_id(store: Store, tenant: str, approval: str, by: str) -> Operation[ApprovalAccess | Reply]:
    try:
        at = own_approval(tenant, request_address(approval))
        found = yield from look_up(store, approval)
    except NoSuchWait:
        return _nothing()
    record = (yield from store.read(at)).record
    # Started anew under its key, a run asks the same thing again: a form that is sent twice must not answer both.
    if record is None:
        return _nothing()
    born = request_of(record).born
    return ApprovalAccess(found, by, f"id:{born}:{by}", born)


def by_link(store: Store, token: str) -> Operation[ApprovalAccess | Reply]:
    """The link must be for this very question: asked by the same start of the run, about the same thing."""
    link = yield from find_link(store, token)
    if link is None:
        return _nothing()
    at = Address(link.space, APPROVAL_KIND, link.name)
    record = (yield from store.read(at)).record
    if record is None:
        return _not_yet()
    request = request_of(record)
    if (request.born, request.digest) != (link.born, link.digest):
        return _other(link)
    try:
        found = yield from look_up(store, approval_id(at))
    except NoSuchWait:
        return _nothing()
    return ApprovalAccess(
        found, link.to, f"link:{sha256(token.encode(errors='replace')).hexdigest()}", link.born, sent=True
    )


def _nothing() -> Reply:
    return problem(
        404,
        "no-such-approval",
        "There is no such approval, or its time is over.",
        next_move="Ask whoever sent you here for a new link, or list what waits: twiceproof approvals list",
    )


def _not_yet() -> Reply:
    return problem(
        404,
        "not-asked-yet",
        "This has not been asked yet, or no longer is.",
        next_move="Open the link again in a minute.",
    )


def _other(link: ApprovalLink) -> Reply:
    return problem(
        422,
        "asked-anew",
        "What is asked now is not what this link was made for.",
        next_move="Ask for a new link, and look at it again.",
    )


LONGEST_NOTE = 2_000


class DecideBody(Struct, frozen=True, forbid_unknown_fields=True):
    """`nonce` and `shown` come from the view: this decision's nonce, and the digest of what was shown."""

    decision: Literal["approve", "reject"]
    nonce: str
    shown: str
    by: str = ""
    note: str = ""


class Nonces(Struct, frozen=True):
    """Which one is sent back is the decision."""

    approve: str
    reject: str


class Shown(Struct, frozen=True):
    """`nonces` is null where there is nothing to decide any more."""

    approval: Approval
    nonces: Nonces | None


def shown_at(store: Store, seat: ApprovalAccess, now: float) -> Operation[Shown]:
    if seat.approval.state != OPEN:
        return Shown(seat.told, None)
    view = _view(seat, seat.approval.digest)
    yes = yield from draw_nonce(store, view, "approve", now)
    no = yield from draw_nonce(store, view, "reject", now)
    return Shown(seat.approval, Nonces(yes, no))


def decide_at(
    store: Store, seat: ApprovalAccess, body: DecideBody, now: float, *, mark: str
) -> Operation[Decided | Reply]:
    """What it came to: the first word counts, and whoever comes second is told what it was."""
    if seat.by and body.by and body.by != seat.by:
        return _refused(403, "not-you", f"Here only {seat.by} decides.", "Leave out `by`.")
    if not (seat.by or body.by.strip()):
        return _refused(400, "nameless", "Nobody knows whose word this is.", "Say who you are (`by`).")
    if not (yield from is_nonce(store, body.nonce, _view(seat, body.shown), body.decision, now)):
        why = "This does not come from a page that was opened lately."
        return _refused(403, "stale-view", why, "Open it again, look, and decide.")
    return (yield from _decide(store, seat, body, mark))


def _decide(store: Store, seat: ApprovalAccess, body: DecideBody, mark: str) -> Operation[Decided | Reply]:
    words: dict[str, Any] = {
        "approved": body.decision == "approve",
        "note": body.note[:LONGEST_NOTE],
        "shown": body.shown,
        "born": seat.born,
    }
    by = seat.by or validate_key(body.by.strip())
    try:
        return (yield from decide(store, seat.approval.id, by=by, mark=mark, **words))
    except PayloadMismatch:
        return _refused(422, "asked-anew", "What is asked has changed since you looked.", "Look at it again.")
    except OwnRequest as error:
        return _refused(403, "own-request", str(error), "Have somebody else decide.")
    except NoSuchWait as error:
        return _refused(410, "no-longer-asked", str(error), "Nothing is to be done here.")


def _view(seat: ApprovalAccess, digest: str) -> View:
    return seat.approval.id, digest, seat.way


def _refused(status: int, kind: str, detail: str, move: str) -> Reply:
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


def page_of_view(shown: Shown, by: str, referrer: str = "no-referrer") -> Reply:
    """What is asked, and the form that decides. What is decided already is told, without what was shown."""
    approval = shown.approval
    if shown.nonces is None:
        return _page(200, approval.name, _ended(approval.decision))
    form = _form(shown.nonces, approval.digest, by)
    return _page(
        200, approval.name, f"{_asked(approval)}<h2>What it is about</h2>{_table(approval.shown)}{form}", referrer
    )


def page_of_decision(approval: Approval, told: Decided, status: int) -> Reply:
    before = "" if told.first else "<p>Somebody decided before.</p>"
    return _page(status, approval.name, before + _ended(told.decision))


def page_of_problem(reply: Reply) -> Reply:
    """An error for people: the same words as for programs."""
    fields = msgspec.json.decode(reply.body)
    return _page(reply.status, fields["title"], f"<p>{_text(fields['detail'])}</p><p>{_text(fields['next'])}</p>")


def _asked(approval: Approval) -> str:
    until = "" if approval.until is None else f" Until {_moment(approval.until)}."
    asked = f" Asked for by {_text(approval.requester)}." if approval.requester else ""
    return f"<p><b>{_text(approval.flow)}</b> for <b>{_text(approval.key)}</b>.{asked}{until}</p>"


def _form(nonces: Nonces, digest: str, by: str) -> str:
    """No answer is chosen beforehand: whatever presses buttons without reading has decided nothing."""
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
        '<label>Why (may stay empty) <input type="text" name="note" maxlength="2000" autocomplete="off"></label>'
        "<button>Send</button></form>"
        '<p class="small">Opening this page decides nothing. A decision counts once.</p>'
    )


def _ended(decision: Decision | None) -> str:
    if decision is None:
        return "<p>Nobody decided in time. There is nothing left to decide.</p>"
    word = "Approved" if decision.approved else "Rejected"
    note = f"<p>{_text(decision.note)}</p>" if decision.note else ""
    return f"<p><b>{word}</b> by {_text(decision.by or 'nobody')}, {_moment(decision.at)}.</p>{note}"


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
    """What cannot be seen is written out: what is read must be what is approved."""
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
