"""The nine things that happen to a network, each with dice of its own."""

from __future__ import annotations

import random
from collections.abc import Callable

from tests.servers.proxy import FaultProxy
from tests.servers.toxics import Clog, Drip, HalfOpen, Jitter, Late, Latency, OneWay, Reset, Toxic

__all__ = ["ANSWER", "LOST_ACK", "NINE", "Bite", "arm"]

ANSWER = 0.3  # seconds a client of ours waits here for an answer; by default they wait for 5 and 10
LOST_ACK = "lost acknowledgement"

# Each is given dice, and how many new connections it may harm.
MAKERS: dict[str, Callable[[random.Random, int], Toxic]] = {
    "latency": lambda dice, fresh: Latency(2.0 * dice.random() ** 3),
    "jitter": lambda dice, fresh: Jitter(dice, 0.04),
    "reset": lambda dice, fresh: Reset(dice.choice(("request", "reply")), dice.randrange(150), fresh=fresh),
    "half-open": lambda dice, fresh: HalfOpen(fresh=fresh),
    "one-way drop": lambda dice, fresh: OneWay(dice.choice(("request", "reply")), fresh=fresh),
    "slow drip": lambda dice, fresh: Drip(dice, 0.004),
    "late duplicate": lambda dice, fresh: Late(ANSWER * (1.0 + dice.random()), fresh=fresh),
    "swizzle-clog": lambda dice, fresh: Clog(dice, 0.02, dice.random() * 1.5 * ANSWER, fresh=fresh),
}
NINE = (*MAKERS, LOST_ACK)

Bite = Callable[[], int]


def arm(proxy: FaultProxy, name: str, dice: random.Random, fresh: int, commit: bytes, skips: int) -> Bite:
    """Begin the fault; return a function that counts its effects."""
    if name == LOST_ACK:
        before = proxy.counters.replies_dropped
        proxy.drop_next_reply(match=commit, skip=dice.randrange(skips))
        return lambda: proxy.counters.replies_dropped - before
    toxic = MAKERS[name](dice, fresh)
    proxy.arm(toxic)
    return lambda: toxic.bites
