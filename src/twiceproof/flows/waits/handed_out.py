"""The callbacks that runs have handed out, for people who look for one that never came."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from ...claims.claim import run_id
from ...drive import Operation
from ...errors import NoSuchWait
from ...records import Address, Record
from ...stores.base import Store
from .arrivals import KIND as ARRIVAL
from .arrivals import WAIT, is_of, standing_run
from .callbacks import KIND, Callback

__all__ = ["WAITED", "HandedOut", "handed_out"]

PAGE = 200
WAITED = "waited for"


class HandedOut(Struct, frozen=True):
    """One callback URL, without its token: nobody knows that but who was given it."""

    flow: str
    key: str
    name: str
    run: str
    state: str  # waited for, arrived, timeout
    handed_out_at: float


def handed_out(
    store: Store, tenant: str, *, flow: str = "", ended: bool = False, limit: int
) -> Operation[list[HandedOut]]:
    """Those that are still waited for; with `ended`, the others too. Not those of runs that are forgotten."""
    found: list[HandedOut] = []
    after: str | None = None
    prefix = f"{tenant}/{flow}/" if flow else f"{tenant}/"
    while True:
        page = yield from store.scan(KIND, after=after, limit=PAGE)
        for record in page.records:
            shape = yield from _shape(store, record, prefix)
            if shape is not None and (ended or shape.state == WAITED):
                found.append(shape)
        after = page.after
        if after is None or len(found) >= limit:
            return found[:limit]


def _shape(store: Store, record: Record, prefix: str) -> Operation[HandedOut | None]:
    leads = msgspec.json.decode(record.body, type=Callback)
    if not leads.space.startswith(prefix):
        return None
    try:
        run = yield from standing_run(store, leads.space, leads.born)
    except NoSuchWait:
        return None
    arrival = (yield from store.read(Address(leads.space, ARRIVAL, leads.step))).record
    state = arrival.state if arrival is not None and is_of(arrival, run) else WAITED
    name = leads.step.removeprefix(WAIT)
    return HandedOut(leads.flow, leads.key, name, run_id(leads.space), state, record.created_at)
