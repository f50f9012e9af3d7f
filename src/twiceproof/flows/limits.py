"""Limits of flows: how many runs at once (slots), and how many in a time (rates)."""

from __future__ import annotations

import contextlib
import logging
import random
import re
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from inspect import Signature
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from ..claims.claim import Held, address_of, body_of, run_id
from ..claims.held_claim import INHERITED, ClaimScope, HeldClaim
from ..claims.states import ClaimRequest
from ..errors import Misuse, StoreError
from ..keys import KeyMaker
from ..keys.duration import seconds
from ..operations import Operation
from ..records import Address, Insert, Replace, Written, record_kind
from ..stores.base import Store
from .runtime import Runtime

__all__ = [
    "Entered",
    "FlowLimits",
    "Full",
    "Rate",
    "admit",
    "give_back",
    "holding",
    "is_held_around",
    "make_limits",
    "make_rate",
    "or_give_back",
    "take_slot",
]


KIND = record_kind("rate")
_TEXT = re.compile(r"([0-9]{1,9}) ?/ ?([0-9.]* ?[a-z]+)")


class Rate(Struct, frozen=True):
    """`count` in `span` seconds; all of them may come at once after a quiet time."""

    count: int
    span: float


class _Meter(Struct, frozen=True):
    """The time at which everything admitted so far would be done at an even pace."""

    until: float


def make_rate(text: str) -> Rate:
    """Parse a rate: `100/m`, `5/10s`."""
    found = _TEXT.fullmatch(text.strip()) if isinstance(text, str) else None
    if found is None or int(found[1]) == 0:
        raise Misuse(f'rate={text!r} is not a rate; write "100/m" or "5/10s".')
    unit = found[2] if found[2][0].isdigit() else "1" + found[2]
    return Rate(int(found[1]), seconds(unit, name="rate"))


def admit(store: Store, tenant: str, name: str, rate: Rate) -> Operation[float]:
    """Admit one run. Returns zero, or in how many seconds to try again; then nothing was counted."""
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


log = logging.getLogger("twiceproof")

R = TypeVar("R")

_around: ContextVar[frozenset[tuple[str, str, str]]] = ContextVar("twiceproof_slots", default=frozenset())


def take_slot(
    runtime: Runtime, name: str, group: str, size: int, lease: float, roll: Callable[[], float] = random.random
) -> Operation[HeldClaim | None]:
    """Take one of `size` slots, or return None: all are taken. A dead holder's slot lapses."""
    first = int(roll() * size)
    for i in range(size):
        at = address_of(runtime.tenant, f"{name}@slots", f"{group}:{(first + i) % size}")
        request = ClaimRequest(
            at=at,
            operation=f"{name}@slots",
            key=group,
            owner=runtime.owner(),
            lease=lease,
            tenant=runtime.tenant,
            run=run_id(at.space),
            repeat="safe",
        )
        slot = ClaimScope(runtime.claims, runtime.heartbeat, request)
        if isinstance((yield from slot.enter()), Held):
            yield from slot.begin(inside=False)
            return slot.hold
    return None


def holding(runtime: Runtime, holds: list[HeldClaim], work: Operation[R]) -> Operation[R]:
    """Do the work, then give the slots back, however it ended."""
    token = _around.set(_around.get() | {_group_of(hold) for hold in holds})
    try:
        answer = yield from or_give_back(runtime, holds, work)
    finally:
        with contextlib.suppress(ValueError):  # thrown away elsewhere than it was begun
            _around.reset(token)
    yield from give_back(runtime, holds)
    return answer


def is_held_around(runtime: Runtime, name: str, group: str) -> bool:
    """Return whether the caller is inside a run that has a slot of this group: waiting in place could deadlock."""
    return (runtime.tenant, f"{name}@slots", group) in _around.get()


def _group_of(hold: HeldClaim) -> tuple[str, str, str]:
    return hold.request.tenant, hold.request.operation, hold.request.key


def or_give_back(runtime: Runtime, holds: list[HeldClaim], work: Operation[R]) -> Operation[R]:
    """Do the work; if it fails, give the slots back: the heartbeat would keep them while the process lives."""
    try:
        return (yield from work)
    except GeneratorExit:  # closed, and cannot wait: the slots lapse
        for hold in holds:
            runtime.heartbeat.drop(hold)
        raise
    except BaseException:
        yield from give_back(runtime, holds)
        raise


def give_back(runtime: Runtime, holds: list[HeldClaim]) -> Operation[None]:
    """Release all slots. A store error is only logged, because the slots lapse: the work's own outcome matters more."""
    for hold in holds:
        runtime.heartbeat.drop(hold)
    for hold in holds:
        if hold.lost is INHERITED:
            continue
        try:
            yield from runtime.claims.release(hold.held)
        except StoreError as error:
            log.warning("could not give back %s, it lapses: %s", hold.request.at.space, error)


FULL_PAUSE = 0.5


class Entered(Struct, frozen=True):
    """The run may begin. The slots are given back when it has ended."""

    holds: list[HeldClaim]


class Full(Struct, frozen=True):
    """Not now: ask again in so many seconds."""

    seconds: float
    ours: bool = False  # a run that the caller is inside of has one of the slots


class FlowLimits:
    """What a flow declares with limit=, limit_per= and rate=."""

    def __init__(
        self, name: str, lease: float, limit: int | None, per: list[tuple[KeyMaker, int]], rate: Rate | None
    ) -> None:
        self._name = name
        self._lease = lease
        self._limit = limit
        self._per = per
        self._rate = rate
        self._turned_away = 0  # since the last run was let in: the more runs wait, the less often each of them asks

    def enter(self, runtime: Runtime, arguments: Mapping[str, Any], *, begins: bool) -> Operation[Entered | Full]:
        """Everything or nothing. A rate counts runs that begin, not those that go on after a wait."""
        holds: list[HeldClaim] = []
        rate = self._rate if begins else None
        return (yield from or_give_back(runtime, holds, self._enter(runtime, arguments, holds, rate)))

    def _enter(
        self, runtime: Runtime, arguments: Mapping[str, Any], holds: list[HeldClaim], rate: Rate | None
    ) -> Operation[Entered | Full]:
        for group, size in self.groups(arguments):
            hold = yield from take_slot(runtime, self._name, group, size, self._lease)
            if hold is None:
                yield from give_back(runtime, holds)
                self._turned_away += 1
                return Full(FULL_PAUSE + self._turned_away / 100, is_held_around(runtime, self._name, group))
            holds.append(hold)
        wait = (yield from admit(runtime.store, runtime.tenant, self._name, rate)) if rate else 0.0
        if wait > 0:
            yield from give_back(runtime, holds)
            return Full(wait)
        self._turned_away = 0
        return Entered(holds)

    @property
    def by_key(self) -> bool:
        """Whether it takes a run's arguments to tell which slots it needs."""
        return bool(self._per)

    def groups(self, arguments: Mapping[str, Any]) -> list[tuple[str, int]]:
        """The narrow ones first: a slot of the whole flow is not held while waiting for one key."""
        groups = [(f"per {index}:{maker.make(arguments)}", size) for index, (maker, size) in enumerate(self._per)]
        return groups if self._limit is None else [*groups, ("all", self._limit)]


def make_limits(
    name: str, lease: float, signature: Signature, limit: int | None, per: Mapping[str, int] | None, rate: str | None
) -> FlowLimits | None:
    if limit is None and not per and rate is None:
        return None
    for what, size in (("limit", limit), *(("limit_per", size) for size in (per or {}).values())):
        if size is not None and (isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= 10_000):
            raise Misuse(f"{what}={size!r} is not a number of runs; give 1 to 10,000.")
    makers = [(KeyMaker(template, signature), size) for template, size in (per or {}).items()]
    return FlowLimits(name, lease, limit, makers, make_rate(rate) if rate is not None else None)
