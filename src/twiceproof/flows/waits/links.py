"""Approval links: an address that lets one person decide about one thing. The store knows only its token's hash."""

from __future__ import annotations

import secrets
from hashlib import sha256

import msgspec
from msgspec import Struct

from ...claims.claim import SELF, body_of
from ...claims.states import EXPIRE
from ...drive import Operation
from ...errors import Misuse
from ...records import Address, Insert
from ...stores.base import Store

__all__ = ["KIND", "PATH", "Link", "draw_link", "find_link", "link_url"]

KIND = "link"
PATH = "/v1/approvals/link/"
TOKEN_BYTES = 24


class Link(Struct, frozen=True, omit_defaults=True):
    """Where a token leads: which approval of which start of which run, and what was to be shown there."""

    space: str
    name: str
    born: str
    digest: str
    to: str = ""  # whose word it will be; "": whoever has it says who they are


def draw_link(store: Store, link: Link, seconds: float) -> Operation[str]:
    """The token. It is told to nobody else: not to the store, not to a log, and not twice."""
    token = secrets.token_urlsafe(TOKEN_BYTES)
    yield from store.write(Insert(_address(token), body_of(link), queue=EXPIRE, due_in=seconds))
    return token


def find_link(store: Store, token: str) -> Operation[Link | None]:
    """None: there is no such link, or its time is over."""
    found = yield from store.read(_address(token))
    record = found.record
    if record is None or (record.due_at is not None and record.due_at <= found.now):
        return None
    return msgspec.json.decode(record.body, type=Link)


def link_url(base: str, token: str) -> str:
    if not base.startswith(("http://", "https://")):
        raise Misuse(
            'Nobody knows where a browser can reach this app; say App(url="https://hooks.example.com") or set '
            "TWICEPROOF_URL."
        )
    return f"{base.rstrip('/')}{PATH}{token}"


def _address(token: str) -> Address:
    """Found by its hash: how long a look-up takes tells nothing about any token."""
    hashed = sha256(token.encode(errors="replace")).hexdigest()
    return Address(f"links/{hashed}", KIND, SELF)
