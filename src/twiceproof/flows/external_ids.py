"""Ids that the outside gave, both ways: from a run to what it made outside, and from there back to the run."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from msgspec import Struct, structs

from ..claims.claim import claim_of, run_address
from ..claims.retention import EXTERNAL, Pointer, pointer_of, pointer_write
from ..claims.run_ids import shown_id
from ..claims.states import is_expired
from ..operations import Operation
from ..records import Address, Insert
from ..stores.base import Store
from .engine.ledger import STEP_DONE, Entry, entries_in

if TYPE_CHECKING:
    from .engine.session import Session
    from .step import StepCall

__all__ = ["IdLink", "catch_up", "ids_of", "point_back", "runs_behind"]


class IdLink(Struct, frozen=True):
    """One step of one run, and the id that the outside gave it."""

    external: str
    flow: str
    key: str
    run: str
    step: str
    state: str  # the run's


def place_of(tenant: str, external: str) -> str:
    """A space of its own: many runs may meet at one id."""
    return f"{tenant}/external/{external}"


# -- writing -------------------------------------------------------------------------------------


def point_back(session: Session, step: str) -> Operation[None]:
    """From the outside's id to this step: an extra write, only where an id is declared."""
    note = session.ledger.entries[step].note
    if note.external:
        yield from session.parts.store.write(_pointer(session, step, note.external))


def catch_up(session: Session, calling: StepCall, value: Any) -> Operation[None]:
    """For a step that is done: a holder that stopped may not have pointed back, and a person's word has no id yet."""
    maker = calling.step.external
    if maker is None or session.claim.attempt == 1:
        return
    entry = session.ledger.entries[calling.name]
    if entry.note.settled is not None and not entry.note.external:
        external = maker({**calling.arguments, "result": value})
        entry = structs.replace(entry, note=structs.replace(entry.note, external=external))
        session.ledger.note(entry)
    if entry.note.external:
        write = _pointer(session, entry.name, entry.note.external)
        if (yield from session.parts.store.read(write.at)).record is None:
            yield from session.parts.store.write(write)


def _pointer(session: Session, step: str, external: str) -> Insert:
    """Addressed by what it points to: written twice, it is one pointer."""
    claim = session.claim
    mark = blake2b(f"{session.space}\0{step}".encode(), digest_size=16).hexdigest()
    at = Address(place_of(claim.tenant, external), EXTERNAL, mark)
    return pointer_write(at, Pointer(session.space, step, claim.key, claim.operation))


# -- asking --------------------------------------------------------------------------------------


def runs_behind(store: Store, tenant: str, external: str) -> Operation[list[IdLink]]:
    """From an id of the outside to the runs that got it. What has been forgotten since is left out."""
    links: list[IdLink] = []
    after: str | None = None
    while True:
        page = yield from store.scan(EXTERNAL, space=place_of(tenant, external), after=after)
        for pointer in map(pointer_of, page.records):
            known = yield from ids_of(store, run_address(pointer.space))
            links += [link for link in known if (link.step, link.external) == (pointer.step, external)]
        if page.after is None:
            return links
        after = page.after


def ids_of(store: Store, at: Address) -> Operation[list[IdLink]]:
    """From a run to the ids that its steps were given outside."""
    found = yield from store.read(at)
    if found.record is None or is_expired(found.record, found.now):
        return []
    claim = claim_of(found.record)
    return [
        IdLink(entry.note.external, claim.operation, claim.key, shown_id(at), entry.name, found.record.state)
        for entry in _done((yield from entries_in(store, at.space)))
    ]


def _done(entries: Iterable[Entry]) -> list[Entry]:
    return [entry for entry in entries if entry.state == STEP_DONE and entry.note.external]
