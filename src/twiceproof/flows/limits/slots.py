"""Slots: leased claims that a run takes before it begins, so that only so many are under way at once."""

from __future__ import annotations

import contextlib
import logging
import random
from collections.abc import Callable
from contextvars import ContextVar
from typing import TypeVar

from ...claims.claim import address_of, run_id
from ...claims.hold import INHERITED, Hold
from ...claims.outcomes import Held
from ...claims.states import Ask
from ...drive import Operation
from ...errors import StoreError
from ..parts import Parts

__all__ = ["give_back", "holding", "is_held_around", "or_give_back", "take_slot"]

log = logging.getLogger("twiceproof")

R = TypeVar("R")

_around: ContextVar[frozenset[tuple[str, str, str]]] = ContextVar("twiceproof_slots", default=frozenset())


def take_slot(
    parts: Parts, name: str, group: str, size: int, lease: float, roll: Callable[[], float] = random.random
) -> Operation[Hold | None]:  # fmt: skip
    """One of `size` slots, or None: all are taken. A slot whose holder died is free when its lease is over."""
    first = int(roll() * size)
    for i in range(size):
        at = address_of(parts.tenant, f"{name}@slots", f"{group}:{(first + i) % size}")
        owner = parts.owner()
        ask = Ask(at, f"{name}@slots", group, owner, lease, parts.tenant, run=run_id(at.space), repeat="safe")
        outcome = yield from parts.claims.take(ask)
        if isinstance(outcome, Held):
            hold = Hold(ask, outcome)
            parts.heartbeat.keep(hold)
            return hold
    return None


def holding(parts: Parts, holds: list[Hold], work: Operation[R]) -> Operation[R]:
    """Do the work, then give the slots back, however it ended."""
    token = _around.set(_around.get() | {_group_of(hold) for hold in holds})
    try:
        answer = yield from or_give_back(parts, holds, work)
    finally:
        with contextlib.suppress(ValueError):  # thrown away elsewhere than it was begun
            _around.reset(token)
    yield from give_back(parts, holds)
    return answer


def is_held_around(parts: Parts, name: str, group: str) -> bool:
    """Whether the caller is inside a run that has a slot of this group: if it waits in place, none may ever be free."""
    return (parts.tenant, f"{name}@slots", group) in _around.get()


def _group_of(hold: Hold) -> tuple[str, str, str]:
    return hold.ask.tenant, hold.ask.operation, hold.ask.key


def or_give_back(parts: Parts, holds: list[Hold], work: Operation[R]) -> Operation[R]:
    """Work that ends with an error keeps no slots: the heartbeat would hold them for as long as the process lives."""
    try:
        return (yield from work)
    except GeneratorExit:  # thrown away, and can wait for nothing: the slots lapse
        for hold in holds:
            parts.heartbeat.drop(hold)
        raise
    except BaseException:
        yield from give_back(parts, holds)
        raise


def give_back(parts: Parts, holds: list[Hold]) -> Operation[None]:
    """All are let go, even if the store does not answer: then they lapse. The work's own end counts for more."""
    for hold in holds:
        parts.heartbeat.drop(hold)
    for hold in holds:
        if hold.lost is INHERITED:
            continue
        try:
            yield from parts.claims.release(hold.held)
        except StoreError as error:
            log.warning("could not give back %s, it lapses: %s", hold.ask.at.space, error)
