"""The page: plain HTML that works without scripts and runs none. Whatever was sent to us stands on it as text."""

from __future__ import annotations

from base64 import b64encode
from datetime import UTC, datetime
from hashlib import sha256
from html import escape
from typing import Any

import msgspec

from ...flows.waits.approval import Approval, Decided, Decision
from ...unseen import written_out
from ..reply import Reply
from .deciding import Nonces, Shown

__all__ = ["page_of_decision", "page_of_problem", "page_of_view"]

STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:42rem;margin:2rem auto;padding:0 1rem}"
    "table{border-collapse:collapse;width:100%}td,th{border:1px solid #bbb;padding:.4rem .6rem;text-align:left;"
    "vertical-align:top;overflow-wrap:anywhere}pre{white-space:pre-wrap;margin:0}label{display:block;margin:.6rem 0}"
    "input[type=text]{font:inherit;width:100%}button{font:inherit;padding:.5rem 1.5rem}.small{color:#666}"
)
_HASH = b64encode(sha256(STYLE.encode()).digest()).decode()
HEADERS = (
    ("content-type", "text/html; charset=utf-8"),
    ("content-security-policy",
     f"default-src 'none'; style-src 'sha256-{_HASH}'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    ("cache-control", "no-store"),
)  # fmt: skip


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
    who = f"<p>You decide as <b>{_text(by)}</b>.</p>" if by else (
        '<label>Your name <input type="text" name="by" required maxlength="200" autocomplete="name"></label>'
    )  # fmt: skip
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
    return escape(written_out(text, but="\t\n"))


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
