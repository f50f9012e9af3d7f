"""External ids, both ways: from a run to the ids it received, and from an external id to its runs."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from msgspec import Struct, structs

from ..claims.claim import RUN, Claim, address_of, claim_of, run_address, shown_id
from ..claims.states import Pointer, is_expired, pointer_of, pointer_write
from ..errors import Misuse
from ..keys import validate_key
from ..operations import Operation
from ..records import Address, Insert, record_kind
from ..stores.base import Store, scan_all
from .engine.ledger import STEP_DONE, Entry, entries_in
from .runtime import own_run

if TYPE_CHECKING:
    from .engine.session import Session
    from .step import StepCall

__all__ = [
    "IdLink",
    "ids_named",
    "ids_of",
    "pointer_to",
    "runs_by_external_id",
    "write_missing_pointers",
    "write_pointer",
]

EXTERNAL = record_kind("external", expires=True, points_to_run=True)  # an id given by an external system


class IdLink(Struct, frozen=True):
    """One step of one run, and the external id it received."""

    external: str
    flow: str
    key: str
    run: str
    step: str
    state: str  # the run's key


def id_space(tenant: str, external: str) -> str:
    """A space of its own: many runs may share one external id."""
    return f"{tenant}/external/{external}"


# -- writing -------------------------------------------------------------------------------------


def write_pointer(session: Session, step: str) -> Operation[None]:
    """Write the pointer from an external id to this step: an extra write, only where an id is declared."""
    note = session.ledger.entries[step].note
    if note.external:
        yield from session.runtime.store.write(_pointer(session, step, note.external))


def write_missing_pointers(session: Session, calling: StepCall, value: Any) -> Operation[None]:
    """For a step that is done:

    its holder may have stopped before it wrote the pointer, and a settled step has none yet.
    """
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
        if (yield from session.runtime.store.read(write.at)).record is None:
            yield from session.runtime.store.write(write)


def _pointer(session: Session, step: str, external: str) -> Insert:
    return pointer_to(session.space, session.claim, step, external)


def pointer_to(space: str, claim: Claim, step: str, external: str) -> Insert:
    """Return the pointer from an external id to a run's step. Addressed by what it points to: written twice, it is one
    pointer."""
    mark = blake2b(f"{space}\0{step}".encode(), digest_size=16).hexdigest()
    at = Address(id_space(claim.tenant, external), EXTERNAL, mark)
    return pointer_write(at, Pointer(space, step, claim.key, claim.operation))


# -- asking --------------------------------------------------------------------------------------


def runs_by_external_id(store: Store, tenant: str, external: str) -> Operation[list[IdLink]]:
    """The runs that received an external id. Forgotten runs are left out."""
    links: list[IdLink] = []
    for pointer in map(pointer_of, (yield from scan_all(store, EXTERNAL, space=id_space(tenant, external)))):
        known = yield from ids_of(store, run_address(pointer.space))
        links += [link for link in known if (link.step, link.external) == (pointer.step, external)]
    return links


def ids_of(store: Store, at: Address) -> Operation[list[IdLink]]:
    """The external ids that the steps of a run received."""
    found = yield from store.read(at)
    if found.record is None or is_expired(found.record, found.now):
        return []
    claim = claim_of(found.record)
    return [
        IdLink(entry.note.external, claim.operation, claim.key, shown_id(at), entry.name, found.record.state)
        for entry in _done((yield from entries_in(store, at.space)))
    ]


def ids_named(store: Store, tenant: str, name: str, flows: Iterable[str]) -> Operation[list[IdLink]]:
    """The external ids that the steps of a run received, or the runs behind such an id.

    Args:
        store: The store.
        tenant: Whose runs.
        name: A run's id, FLOW/KEY, a key, or the external id.
        flows: In which flows a key is looked for, one read each.
    """
    links = yield from runs_by_external_id(store, tenant, name)
    with suppress(Misuse):  # an id of another system may look like a run's, and be none
        links += yield from ids_of(store, (yield from own_run(store, tenant, name)))
    for flow in flows:
        links += yield from ids_of(store, address_of(tenant, flow, validate_key(name), RUN))
    return list(dict.fromkeys(links))


def _done(entries: Iterable[Entry]) -> list[Entry]:
    return [entry for entry in entries if entry.state == STEP_DONE and entry.note.external]
