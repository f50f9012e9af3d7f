"""Letters: deliveries that were believed but could not be taken in. Kept aside for people, until they are replayed."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256

import msgspec
from msgspec import Struct

from ..claims.claim import body_of, space_of
from ..claims.states import EXPIRE
from ..drive import Operation
from ..errors import Misuse
from ..records import Address, Insert, Record, Remove
from ..stores.base import Store
from .envelope import Envelope

__all__ = ["Letter", "find_letter", "keep_letter", "letters", "remove_letter"]

KIND = "letter"
KEEP = 30 * 86_400.0
LARGEST = 256 * 1024
HEADERS = frozenset({"content-type", "user-agent", "content-encoding"})  # others may hold secrets
PAGE = 200


class Letter(Struct, frozen=True, omit_defaults=True):
    """One delivery. `id` names it; its body is base64, and empty where it was too large or held declared secrets."""

    id: str
    hook: str
    reason: str
    body: str = ""
    digest: str = ""
    size: int = 0
    headers: dict[str, str] = {}
    event: str = ""  # the id of the one event in it that could not be taken in; "": all of it
    received_at: float = 0.0
    tenant: str = "default"


def keep_letter(
    store: Store, hook: str, envelope: Envelope, reason: str, *, allowed: Sequence[str] = (), event: str = "",
    bare: bool = False,
) -> Operation[Letter]:  # fmt: skip
    """Once per body and event: a sender that insists does not fill the store. `bare` leaves the body out."""
    digest = sha256(envelope.body).hexdigest()
    name = f"ltr_{sha256(f'{hook} {digest} {event}'.encode()).hexdigest()[:24]}"
    fits = not bare and len(envelope.body) <= LARGEST
    letter = Letter(
        name, hook, reason[:500], b64encode(envelope.body).decode() if fits else "", digest, len(envelope.body),
        _allowed(envelope.headers, tuple(allowed)),
        event, envelope.received_at, envelope.tenant,
    )  # fmt: skip
    yield from store.write(Insert(_address(envelope.tenant, name), body_of(letter), "kept", queue=EXPIRE, due_in=KEEP))
    return letter


def letters(store: Store, tenant: str, hook: str = "") -> Operation[list[Letter]]:
    """The newest first."""
    found: list[Letter] = []
    after: str | None = None
    while True:
        page = yield from store.scan(KIND, after=after, limit=PAGE)
        kept = [_letter_of(record) for record in page.records]
        found += [letter for letter in kept if letter.tenant == tenant and hook in ("", letter.hook)]
        after = page.after
        if after is None:
            return sorted(found, key=lambda letter: -letter.received_at)


def find_letter(store: Store, tenant: str, name: str) -> Operation[Letter]:
    record = (yield from store.read(_address(tenant, name))).record
    if record is None:
        raise Misuse(f"There is no letter {name[:80]!r}, or it was replayed; list them with: twiceproof hooks letters")
    return _letter_of(record)


def remove_letter(store: Store, letter: Letter) -> Operation[None]:
    """It was taken in after all."""
    record = (yield from store.read(_address(letter.tenant, letter.id))).record
    if record is not None:
        yield from store.write(Remove(record.at, version=record.version))


def _allowed(headers: dict[str, str], beginnings: tuple[str, ...]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name in HEADERS or name.startswith(beginnings)}


def _address(tenant: str, name: str) -> Address:
    return Address(space_of(tenant, "hook@letters", name), KIND, "self")


def _letter_of(record: Record) -> Letter:
    return msgspec.json.decode(record.body, type=Letter)
