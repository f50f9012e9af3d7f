"""Twiceproof: its claims called directly, and the whole of `@app.once`."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from twiceproof import App
from twiceproof.claims.claim import Done, Held
from twiceproof.claims.manager import ClaimManager
from twiceproof.claims.results import pack
from twiceproof.claims.states import ClaimRequest, Lifetime, claim_for
from twiceproof.operations import Operation, await_, block
from twiceproof.records import Written

from ..callers import ONE, TASKS, THREADS, Callers, One, Tasks, Threads, count_in
from ..orders import RESULT, Asks, growing, numbered, order
from ..rounds import Contender

__all__ = ["completing", "completing_each", "finish", "once", "once_replaying", "replaying", "taking"]

LIFE = Lifetime()


def taking(app: App, callers: str) -> Contender:
    """`take`: the key is ours, durably."""
    asks = Asks(_name("take"), growing())
    return Contender("take", _driven(callers, lambda: _take(app.claims, asks())))


def completing(app: App, callers: str) -> Contender:
    """`take`, then `complete`: two durable writes, one after the other."""
    return completing_each(app, callers, Asks(_name("complete"), growing()))


def completing_each(app: App, callers: str, asks: Asks, name: str = "take + complete") -> Contender:
    return Contender(name, _driven(callers, lambda: _take_and_complete(app.claims, asks())))


def replaying(app: App, finished: int) -> list[Contender]:
    """`take` of keys whose work was done before: what every duplicate pays."""
    asks = Asks(_name("replay"), growing())
    turns = itertools.cycle(finish(app, asks, finished))
    operation = partial(_replay, app.claims, asks, turns)
    return [Contender("replay", _driven(callers, operation)) for callers in (ONE, TASKS, THREADS)]


def once(app: App, callers: str) -> Contender:
    """`@app.once`: key template, fingerprint, take, the function, complete, and the result decoded."""
    keys = growing()
    if callers.endswith("tasks"):
        ship = app.once(key="{order[id]}", name=_name("ship"))(_ship_async)
        return Contender("@app.once", Tasks(count_in(callers), lambda _: ship(order(keys()))))
    ship_now = app.once(key="{order[id]}", name=_name("ship"))(_ship)
    return Contender("@app.once", _blocking(callers, lambda _: ship_now(order(keys()))))


def once_replaying(app: App, finished: int) -> Contender:
    """`@app.once` called again with what it did before."""
    ship = app.once(key="{order[id]}", name=_name("ship"))(_ship)
    orders = [order(numbered(number)) for number in range(finished)]
    Threads(64, lambda caller: [ship(one) for one in orders[caller::64]]).time(1)
    turns = itertools.cycle(orders)
    return Contender("@app.once, replayed", One(lambda _: ship(next(turns))))


def finish(app: App, asks: Asks, count: int) -> list[str]:
    """Take and complete so many keys, and return them."""
    keys = [numbered(number) for number in range(count)]

    async def share(caller: int) -> None:
        for key in keys[caller::64]:
            await await_(_take_and_complete(app.claims, asks.of(key)))

    callers = Tasks(64, share)
    callers.time(1)
    callers.close()
    return keys


# -- the operations ------------------------------------------------------------------------------


def _take(claims: ClaimManager, ask: ClaimRequest) -> Operation[object]:
    outcome = yield from claims.take(ask)
    assert type(outcome) is Held, outcome
    return outcome


def _take_and_complete(claims: ClaimManager, ask: ClaimRequest) -> Operation[object]:
    held = yield from claims.take(ask)
    assert type(held) is Held, held
    written = yield from claims.complete(held, claim_for(ask, held.attempt), pack(RESULT, held), LIFE)
    assert type(written) is Written, written
    return written


def _replay(claims: ClaimManager, asks: Asks, keys: Iterator[str]) -> Operation[object]:
    outcome = yield from claims.take(asks.of(next(keys)))
    assert type(outcome) is Done, outcome
    return outcome


def _ship(order: dict[str, Any]) -> dict[str, Any]:
    return RESULT


async def _ship_async(order: dict[str, Any]) -> dict[str, Any]:
    return RESULT


def _name(stem: str) -> str:
    """A fresh operation each time: no contender meets another's keys."""
    return f"{stem}-{uuid.uuid4().hex[:8]}"


# -- the callers ---------------------------------------------------------------------------------


def _driven(callers: str, operation: Callable[[], Operation[object]]) -> Callers:
    if callers.endswith("tasks"):
        return Tasks(count_in(callers), lambda _: await_(operation()))
    return _blocking(callers, lambda _: block(operation()))


def _blocking(callers: str, act: Callable[[int], object]) -> Callers:
    return Threads(count_in(callers), act) if callers.endswith("threads") else One(act)
