"""A simulation on one thread: a seeded scheduler steps many callers, request by request, and injects faults."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from random import Random
from typing import Protocol

from tests.faults.histories.call import Call
from tests.faults.histories.tries import Tries
from twiceproof.clock import Clock
from twiceproof.stores.base import SPACE_BUSY, Disconnected
from twiceproof.stores.grouped import GroupedStore
from twiceproof.stores.memory import MemoryEngine

SECOND = 1024  # ticks: a power of two, so that no duration is rounded
PATIENCE = 48 / SECOND
PAUSE = (20, 160)  # ticks: longer than most leases
LOST_REPLY, LOST_REQUEST, REFUSED, HELD_ELSEWHERE = 0.03, 0.045, 0.055, 0.07
CRASH, SLEEP, BLACKOUT = 0.003, 0.03, 0.02


class Caller(Protocol):
    def begin(self, tick: int) -> Call: ...
    def end(self, call: Call, tick: int) -> None: ...
    def die(self, call: Call) -> None: ...


class Seat:
    """A simulated process, with a store of its own on the shared engine."""

    reads_first = True
    batch_limit, group_limit = MemoryEngine.batch_limit, MemoryEngine.group_limit
    best_effort = one_per_space = False
    newest_first = MemoryEngine.newest_first

    def __init__(self, nth: int, store: type[GroupedStore]) -> None:
        self.nth = nth
        self.reads_first = nth % 2 == 0
        self.clock = Clock(self._now, self._now, lambda seconds: self.world.meanwhile(self))
        self.tries = Tries(self)
        self.store = store(self.tries, clock=self.clock, ids=lambda: self.world.next_nonce(), patience=PATIENCE)

    def enter(self, world: World) -> None:
        self.world = world
        self.caller: Caller | None = None
        self.call: Call | None = None
        self.busy = False  # in the middle of a request, deeper in the stack
        self.wakes_at = 0
        self.blackout = False

    def _now(self) -> float:
        return self.world.tick / SECOND

    # -- the engine, as this process reaches it --------------------------------------------------

    def commit(self, batches):
        world = self.world
        world.pass_time(2)
        draw = world.rng.random() * (LOST_REQUEST if self.blackout else 1.0)
        if draw < LOST_REPLY:
            world.engine.commit(batches)
        if draw < LOST_REQUEST:
            raise Disconnected(OSError("no reply"), sent=True)
        if draw < REFUSED:
            raise Disconnected(OSError("refused"), sent=False)
        if draw < HELD_ELSEWHERE:
            return [SPACE_BUSY] * len(batches)
        return world.engine.commit(batches)

    def fetch(self, addresses):
        self.world.pass_time(2)
        if self.blackout or self.world.rng.random() < 0.01:
            raise Disconnected(OSError("no reply"), sent=True)
        return self.world.engine.fetch(addresses)

    def scan(self, *asked):
        return self.world.engine.scan(*asked)

    def due(self, *asked):
        return self.world.engine.due(*asked)

    def close(self) -> None: ...

    def abandon(self) -> None: ...


class World:
    """`run` continues until `operations` calls have begun and all of them have ended, or their callers have died."""

    def __init__(self, rng: Random, seats: list[Seat], engine: Callable[[Clock], MemoryEngine]) -> None:
        self.rng = rng
        self.seats = seats
        self.tick = 1
        self.nonces = 0
        self.deaths = 0
        self.engine = engine(Clock(now=lambda: self.tick / SECOND))
        for seat in seats:
            seat.enter(self)

    def run(self, make_caller: Callable[[Seat, int], Caller], operations: int) -> None:
        self.make_caller = make_caller
        self.left = operations
        for seat in self.seats:
            seat.caller = make_caller(seat, 0)
        while self._step():
            pass

    def pass_time(self, most: int) -> None:
        self.tick += 1 + int(self.rng.random() * most)

    def next_nonce(self) -> str:
        self.nonces += 1
        return f"n{self.nonces}"

    def meanwhile(self, seat: Seat) -> None:
        """Let the others continue while one waits in the middle of a request."""
        self.pass_time(20)
        for _ in range(self.rng.choice((0, 0, 1, 2, 6))):
            self._step()

    def _step(self) -> bool:
        able = [seat for seat in self.seats if not seat.busy and (seat.call or self.left > 0)]
        if not able:
            return False
        awake = [seat for seat in able if seat.wakes_at <= self.tick]
        if not awake:
            self.tick = min(seat.wakes_at for seat in able)
            return True
        self._play(self.rng.choice(awake))
        return True

    def _play(self, seat: Seat) -> None:
        self.pass_time(3)
        if seat.call is None:
            self.left -= 1
            seat.blackout = self.rng.random() < BLACKOUT
            seat.call = seat.caller.begin(self.tick)
        elif self.rng.random() < CRASH:
            self._replace(seat)
        else:
            self._answer(seat, seat.call)
        if self.rng.random() < SLEEP:
            seat.wakes_at = self.tick + self.rng.randint(*PAUSE)

    def _answer(self, seat: Seat, call: Call) -> None:
        seat.busy = True
        call.answer_request()
        seat.busy = False
        self.pass_time(2)
        if call.request is None:
            seat.caller.end(call, self.tick)
            seat.call = None

    def _replace(self, seat: Seat) -> None:
        """End a caller for ever: before its next request, or after one whose answer it never saw."""
        if self.rng.random() < 0.5:
            seat.busy = True
            with contextlib.suppress(Exception):  # there is no caller for that answer either
                seat.call.reach_store()
            seat.busy = False
        seat.caller.die(seat.call)
        self.deaths += 1
        seat.call = None
        seat.caller = self.make_caller(seat, self.deaths)
