"""A rate: so many runs in a time, evenly let through, counted in the store for all workers together."""

from __future__ import annotations

import re

import msgspec
from msgspec import Struct

from ...claims.claim import body_of
from ...drive import Operation
from ...errors import Misuse
from ...keys.duration import seconds
from ...records import Address, Insert, Replace, Written
from ...stores.base import Store

__all__ = ["Rate", "admit", "make_rate"]

KIND = "rate"
_TEXT = re.compile(r"([0-9]{1,9}) ?/ ?([0-9.]* ?[a-z]+)")


class Rate(Struct, frozen=True):
    """`count` in `span` seconds; all of them may come at once after a quiet time."""

    count: int
    span: float


class _Meter(Struct, frozen=True):
    """When everything let through so far will have been worked off at an even pace."""

    until: float


def make_rate(text: str) -> Rate:
    """From how people write it: `100/m`, `5/10s`."""
    found = _TEXT.fullmatch(text.strip()) if isinstance(text, str) else None
    if found is None or int(found[1]) == 0:
        raise Misuse(f'rate={text!r} is not a rate; write "100/m" or "5/10s".')
    unit = found[2] if found[2][0].isdigit() else "1" + found[2]
    return Rate(int(found[1]), seconds(unit, name="rate"))


def admit(store: Store, tenant: str, name: str, rate: Rate) -> Operation[float]:
    """Zero: go on. Otherwise in how many seconds to ask again; then nothing was counted."""
    at = Address(f"{tenant}/{name}@rate/", KIND, "self")
    while True:
        found = yield from store.read(at)
        until = msgspec.json.decode(found.record.body, type=_Meter).until if found.record else 0.0
        if found.record is not None and until > found.now + rate.span + 1e-3:  # the store's clock was ahead
            full = Replace(at, body_of(_Meter(found.now + rate.span)), version=found.record.version)
            yield from store.write(full)
            continue
        after = max(found.now, until) + rate.span / rate.count
        wait = after - rate.span - found.now
        if wait > 1e-9:
            return wait
        body = body_of(_Meter(after))
        write = Replace(at, body, version=found.record.version) if found.record else Insert(at, body)
        if isinstance((yield from store.write(write)), Written):
            return 0.0
