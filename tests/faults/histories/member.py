"""One process of a crew: a thread for each lane plays its part in that lane's histories on one store.

A part comes in as a line. Each operation is reported by two lines, before and after it: what a killed process was about
to do is then known, and that it has no answer.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
import time
import traceback
from queue import SimpleQueue
from random import Random
from typing import Any

from msgspec import Struct, json

from tests.acceptance.wrappers import FenceBlind
from tests.faults.histories.claimant import Claimant, Pace
from tests.faults.histories.lossy import Lossy
from tests.faults.histories.tries import Tries
from tests.faults.linearizability import Operation
from twiceproof.claims.manager import ClaimManager
from twiceproof.errors import StoreUnavailable
from twiceproof.stores.base import Engine
from twiceproof.stores.grouped import GroupedStore
from twiceproof.stores.open import open_store

MILLISECOND = 1_000_000
PACE = Pace(1000 * MILLISECOND, lease=(20 * MILLISECOND, 80 * MILLISECOND), keep=(40 * MILLISECOND, 200 * MILLISECOND))
PATIENCE = 0.25
PAUSE = 0.06  # at most, in seconds: longer than many leases
SILENCE = 45.0  # seconds after which a member that has said nothing shows what its threads are doing


class Part(Struct, frozen=True):
    """What one caller does in one history."""

    lane: int
    seed: int
    keys: list[str]
    operations: int


class Line(Struct, frozen=True):
    """`begun`: about to do this. `ended`: the outcome. `broke`: an unexpected error. None of them: the part is over."""

    lane: int
    begun: Operation | None = None
    ended: list[Operation] | None = None
    broke: str = ""


class Member:
    def __init__(self, engine: Engine, name: str) -> None:
        self.name = name
        self.tries = Tries(engine)
        self.claims = ClaimManager(GroupedStore(self.tries, patience=PATIENCE))

    def play(self, part: Part) -> None:
        rng = Random(f"{part.seed} {self.name}")
        history: list[Operation] = []
        caller = Claimant(self.name, self.claims, self.tries, part.keys, PACE, rng, history)
        for _ in range(part.operations):
            if rng.random() < 0.12:
                time.sleep(rng.random() * PAUSE)
            history.clear()
            call = caller.begin(time.monotonic_ns())
            if caller.act is not None:  # or it sweeps, which has no key
                say(Line(part.lane, begun=Operation(self.name, caller.key, caller.act, None, call.invoked)))
            caller.end(call.run(), time.monotonic_ns())
            say(Line(part.lane, ended=history))
        say(Line(part.lane))


def say(line: Line) -> None:
    """Write a line at once: lines of several threads must not mix."""
    os.write(1, json.encode(line) + b"\n")
    faulthandler.dump_traceback_later(SILENCE)


def play_lane(member: Member, parts: SimpleQueue[Part]) -> None:
    while True:
        part = parts.get()
        try:
            member.play(part)
        except Exception:  # noqa: BLE001 - the others would wait for this lane for ever
            say(Line(part.lane, broke=traceback.format_exc()))
            return


def open_engine(url: str, seed: int, *, blind: bool) -> Engine:
    engine: Any = _persist(url)
    if url.startswith("sqlite"):
        engine = Lossy(engine, Random(seed))
    return FenceBlind(engine) if blind else engine


def _persist(url: str) -> Engine:
    """Open the store, again if need be: it may be out of reach when a process starts."""
    while True:
        try:
            return open_store(url).engine
        except StoreUnavailable:
            time.sleep(0.01)


def main(url: str, name: str, seed: str, lanes: str, blind: str = "") -> None:
    member = Member(open_engine(url, int(seed), blind=bool(blind)), name)
    queues: list[SimpleQueue[Part]] = [SimpleQueue() for _ in range(int(lanes))]
    for parts in queues:
        threading.Thread(target=play_lane, args=(member, parts), daemon=True).start()
    say(Line(-1))  # ready
    for line in sys.stdin.buffer:
        part = json.decode(line, type=Part)
        queues[part.lane].put(part)
    os._exit(0)
