"""Callback URLs: an unguessable token that leads to one wait of one run. The store knows only the token's hash."""

from __future__ import annotations

import secrets
from hashlib import sha256

import msgspec
from msgspec import Raw

from ...claims.claim import SELF
from ...claims.pointer import Pointer, pointer_write
from ...drive import Operation
from ...errors import Misuse, NoSuchWait
from ...records import Address
from ...stores.base import Store
from ..entry import DONE, Note
from ..session import Session
from .arrivals import KIND as ARRIVAL
from .arrivals import Delivered, deliver
from .waiting import wait_name

__all__ = ["KIND", "PATH", "Callback", "callback_url", "deliver_by_token"]

KIND = "callback"
PATH = "/v1/callbacks/"
TOKEN_BYTES = 24


class Callback(Pointer, frozen=True, omit_defaults=True):
    """Where a token leads: which wait, of which start of which run."""

    born: str = ""


def callback_url(session: Session, name: str) -> Operation[str]:
    """The URL of a wait, the same in a replay. It leads somewhere before anybody is told of it."""
    session.refuse_if_stopped()
    entry_name = f"callback:{wait_name(name).partition(':')[2]}"
    entry = session.visit(entry_name, "")
    if entry is None:
        session.refuse_unvisited(entry_name)
        base, token = _base_of(session), secrets.token_urlsafe(TOKEN_BYTES)
        yield from _index(session, token, name)
        # The whole URL: an app that has moved meanwhile must not make a replay differ from what was handed out.
        entry = session.finished(entry_name, DONE, Note(result=Raw(msgspec.json.encode(f"{base}{PATH}{token}"))))
    return msgspec.json.decode(entry.note.result, type=str)


def _base_of(session: Session) -> str:
    base = session.parts.url
    if not base.startswith(("http://", "https://")):
        raise Misuse(
            'Nobody knows where callbacks can reach this app; say App(url="https://hooks.example.com") or set '
            "TWICEPROOF_URL."
        )
    return base.rstrip("/")


def _index(session: Session, token: str, name: str) -> Operation[None]:
    """A space of its own: a token is looked up before it is known whose it is."""
    claim = session.claim
    leads = Callback(session.space, wait_name(name), claim.key, claim.operation, session.work.born)
    yield from session.parts.store.write(pointer_write(_address(token), leads))


def _address(token: str) -> Address:
    hashed = sha256(token.encode(errors="replace")).hexdigest()
    return Address(f"callbacks/{hashed}", KIND, SELF)


def deliver_by_token(store: Store, token: str, payload: Raw, *, mark: str) -> Operation[Delivered]:
    """What came in at a callback URL. The token is never repeated in an answer or a log."""
    found = (yield from store.read(_address(token))).record
    if found is None:
        raise NoSuchWait("There is no such callback, or its time is over; check the URL that the run handed out.")
    leads = msgspec.json.decode(found.body, type=Callback)
    at = Address(leads.space, ARRIVAL, leads.step)
    return (yield from deliver(store, at, payload, mark=mark, born=leads.born))
