"""Arrivals: what ends a wait. Claimed: the first one counts, and whoever comes second is told what the first said."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw, Struct

from ...claims.claim import DONE, NO_RESULT, WAITING, body_of, claim_of, run_address
from ...claims.results import json_of
from ...claims.states import is_expired
from ...drive import Operation
from ...errors import NoSuchWait, ValueRefused
from ...records import Address, Check, Insert, Record, Replace, Write, Written
from ...stores.base import Store
from ..work import work_of

__all__ = ["ARRIVED", "ENDED", "KIND", "TIMEOUT", "WAIT", "Arrival", "Delivered", "arrival_of", "deliver", "is_of",
           "landing", "packed", "standing_run"]  # fmt: skip

KIND = "arrival"
WAIT = "wait:"  # how the ledger names a wait for one
ARRIVED, TIMEOUT = "arrived", "timeout"
ENDED = "ended"  # never stored: its run is done, and nobody will ask for it
MOST = 256 * 1024


class Arrival(Struct, frozen=True, omit_defaults=True):
    """The body of an arrival's record; its key is the ledger's name for the wait."""

    born: str  # which start of its run: what came for an earlier one must not answer this one
    payload: Raw = NO_RESULT
    mark: str = ""  # which delivery wrote it: one whose acknowledgement was lost knows itself again


class Delivered(Struct, frozen=True):
    """What a delivery came to. `answer` is the payload that counts: the first one's."""

    first: bool
    answer: Any = None
    state: str = ARRIVED  # timeout: it came too late; ended: its run is done and did not wait for it


_decode = msgspec.json.Decoder(Arrival).decode


def arrival_of(record: Record) -> Arrival:
    return _decode(record.body)


def packed(value: Any, what: str) -> Raw:
    """A value on its way into the ledger. What cannot be kept is refused before anything is claimed."""
    try:
        encoded = json_of(value)
    except ValueError as error:
        raise ValueRefused(f"{what} has no JSON form ({error}); pass plain data.") from None
    if len(encoded) > MOST:
        raise ValueRefused(f"{what} has {len(encoded):,} bytes, more than {MOST:,}; pass a reference instead.")
    return Raw(encoded)


def standing_run(store: Store, space: str, born: str | None = None) -> Operation[Record]:
    """The run that is meant. One that was forgotten, or begun anew under the same key, is another."""
    found = yield from store.read(run_address(space))
    run = found.record
    gone = run is None or is_expired(run, found.now)
    if run is None or gone or (born is not None and born_of(run) != born):
        raise NoSuchWait("There is no such run, or its time is over; list what waits with: twiceproof runs list")
    return run


def born_of(run: Record) -> str:
    return work_of(claim_of(run)).born


def is_of(record: Record | None, run: Record) -> bool:
    """Whether this arrival is there, and for this very run."""
    return record is not None and arrival_of(record).born == born_of(run)


def landing(run: Record, prior: Record | None, at: Address, state: str, arrival: Arrival) -> tuple[Write, Write]:
    """Claims the arrival and wakes its run, together. `prior` is what an earlier run of the key left behind."""
    body = body_of(arrival)
    claimed: Write = Insert(at, body, state)
    if prior is not None:
        claimed = Replace(at, body, state, version=prior.version)
    return claimed, _woken(run)


def _woken(run: Record) -> Write:
    """One that is at work finds the arrival itself, unless it lies down meanwhile: that draws a fence."""
    if run.state != WAITING:
        return Check(run.at, fence=run.fence)
    return Replace(run.at, None, WAITING, version=run.version, queue=run.queue, due_in=0.0)


def deliver(store: Store, at: Address, payload: Raw, *, mark: str, born: str | None = None) -> Operation[Delivered]:
    """End a wait, once. What comes before anybody waits is kept, and answers the wait at once."""
    while True:
        run = yield from standing_run(store, at.space, born)
        prior = (yield from store.read(at)).record
        if prior is not None and is_of(prior, run):
            return _told(prior, mark)
        if run.state == DONE:
            return Delivered(False, None, ENDED)
        arrival = Arrival(born_of(run), payload, mark)
        written = yield from store.write(*landing(run, prior, at, ARRIVED, arrival))
        if isinstance(written, Written):
            return Delivered(True, msgspec.json.decode(payload))


def _told(prior: Record, mark: str) -> Delivered:
    arrival = arrival_of(prior)
    if prior.state == TIMEOUT:
        return Delivered(False, None, TIMEOUT)
    return Delivered(arrival.mark == mark, msgspec.json.decode(arrival.payload))
