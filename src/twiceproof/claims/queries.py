"""Evidence of late holders; the address of a run, found by its id or by FLOW/KEY."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

import msgspec
from msgspec import Raw, Struct

from ..errors import Misuse, StoreError
from ..keys import validate_key
from ..operations import Operation
from ..records import Address, Insert, Record, Replace, record_kind
from ..stores.base import Store, scan_all
from .claim import (
    INDEX,
    NO_RESULT,
    RUN,
    RUN_POINTER,
    Fault,
    Spill,
    address_of,
    body_of,
    index_address,
    is_short_id,
    run_address,
    space_of_run,
    validate_name,
)
from .states import EXPIRE, pointer_of, run_pointer

__all__ = [
    "NO_SUCH_RUN",
    "Evidence",
    "evidence_of",
    "evidence_write",
    "index_run",
    "read_evidence",
    "resolve_run",
]


EVIDENCE_KIND = record_kind("evidence", beside_run=True, expires=True)
KEEP = 365 * 86_400.0


class Evidence(Struct, frozen=True, omit_defaults=True):
    """What a holder reported after it had lost its claim."""

    owner: str
    fence: int
    result: Raw = NO_RESULT
    spill: Spill | None = None
    fault: Fault | None = None
    step: str = ""  # which step of a run; "": the whole work
    seen_at: float = 0.0


def evidence_write(space: str, evidence: Evidence) -> Insert:
    """Return the write of a piece of evidence. Its key is the fence, so that a report sent twice is stored once."""
    at = Address(space, EVIDENCE_KIND, f"{evidence.fence}:{evidence.step}" if evidence.step else str(evidence.fence))
    return Insert(at, body_of(evidence), queue=EXPIRE, due_in=KEEP)


def evidence_of(store: Store, space: str) -> Operation[list[Evidence]]:
    """Return all evidence of a space in the order of arrival. By its key, fence 10 would come before fence 9."""
    pieces = [read_evidence(record) for record in (yield from scan_all(store, EVIDENCE_KIND, space=space))]
    return sorted(pieces, key=lambda piece: (piece.seen_at, piece.fence))


def read_evidence(record: Record) -> Evidence:
    evidence = msgspec.json.decode(record.body, type=Evidence)
    return msgspec.structs.replace(evidence, seen_at=record.created_at)


NO_SUCH_RUN = "There is no such run here; list them with: twiceproof runs list --state all"
SEARCHED = Address(INDEX, RUN_POINTER, "searched")  # written when every run has been indexed
SEARCH_AGAIN = 3_600.0
PAGE = 100


def resolve_run(store: Store, tenant: str, name: str) -> Operation[Address]:
    """Return the address of a run by its id, long or short, or by FLOW/KEY: a flow's name has no slash.

    An id resolves to a run of any tenant: callers that may only see their own check with `require_own_run`.
    """
    flow, slash, key = name.partition("/")
    if slash:
        return address_of(validate_name("tenant", tenant), validate_name("flow", flow), validate_key(key), RUN)
    if not is_short_id(name):
        return run_address(space_of_run(name))
    record = (yield from store.read(index_address(name))).record
    space = (yield from _search(store, name)) if record is None else pointer_of(record).space
    if not space:
        raise Misuse(NO_SUCH_RUN)
    return run_address(space)


def index_run(store: Store, space: str) -> Operation[None]:
    """Write the index record of a run whose id is about to be shown, if it has none.

    A run has none if it began under an older release, or if only that write was lost. A store that cannot be written
    can still be read, so a failed write is ignored.
    """
    pointer = run_pointer(space)
    if (yield from store.read(pointer.at)).record is None:
        with contextlib.suppress(StoreError):
            yield from store.write(pointer)


def _search(store: Store, name: str) -> Operation[str]:
    """Return the space of a run that has no index record; "" if there is no such run.

    Lists also show short ids of runs that began under an older release. The first request for an id that is not in
    the index therefore indexes every run. That is repeated at most once an hour, however often unknown ids are
    requested: processes of an older release may have begun more runs since.
    """
    found = yield from store.read(SEARCHED)
    before = found.record
    if before is not None and found.now - before.updated_at < SEARCH_AGAIN:
        return ""
    wanted, space, after = index_address(name), "", None
    while True:
        page = yield from store.scan(RUN, after=after, limit=PAGE)
        pointers = {run_pointer(record.at.space).at: record.at.space for record in page.records}
        space = pointers.get(wanted, space)
        yield from _index(store, pointers)
        after = page.after
        if after is None:
            break
    mark = Insert(SEARCHED, "{}") if before is None else Replace(SEARCHED, None, version=before.version)
    with contextlib.suppress(StoreError):
        yield from store.write(mark)
    return space


def _index(store: Store, spaces: Mapping[Address, str]) -> Operation[None]:
    """Write the index records that are missing. Those that cannot be written are left to the next search."""
    found = yield from store.read_each(list(spaces))
    missing = [space for space, one in zip(spaces.values(), found, strict=True) if one.record is None]
    if missing:
        yield from store.write_each([[run_pointer(space)] for space in missing])
