"""Poison at claims: stored and replayed unchanged, or refused before anything is written."""

from __future__ import annotations

import itertools
from typing import Any

from tests.faults.catalogue.poison import DISTINCT, KEPT, KEYS, NOT_KEPT, REFUSED, REFUSED_KEYS, TWINS, VALUES
from tests.faults.catalogue.poison_door import Door, attempt
from twiceproof import KeyRefused, NeedsReview, PayloadMismatch, ResultNotKept, TwiceproofError, ValueRefused

__all__ = ["ClaimsDoor"]


class ClaimsDoor(Door):
    name = "claims"

    def run(self, times: int) -> None:
        ways = (self.argument, self.result, self.error, self.key, self.pair)
        guarded = self.declare()
        self.keys_tried = itertools.count()
        for number in range(times):
            ways[number // len(VALUES) % len(ways)](guarded, number)
            if number % 50 == 49:
                self.well(number)
        self.check_ledger({"take", "give", "burst", "named"})

    def declare(self) -> dict[str, Any]:
        app, do = self.app, self.place.do

        @app.once(key="value:{number}")
        def take(number: int, value: Any) -> int:
            do(f"take {number}")
            return number

        @app.once(key="value:{number}")
        def give(number: int, box: Any) -> Any:
            do(f"give {number}")
            return self.box

        @app.once(key="value:{number}")
        def burst(number: int) -> None:
            do(f"burst {number}")
            raise ValueError(self.box)

        @app.once(key=lambda key, number: key, ignore=("number", "key"))
        def named(key: Any, number: int) -> int:
            do(f"named {number}")
            return number

        return {"take": take, "give": give, "burst": burst, "named": named}

    # -- one of each -----------------------------------------------------------------------------

    def argument(self, guarded: dict[str, Any], number: int) -> None:
        kind, value = self.value(number)
        heard = [attempt(lambda: guarded["take"](number, value)) for _ in range(2)]
        done = self.effects()[f"take {number}"]
        refused = isinstance(heard[0], TwiceproofError)
        if not refused:
            self.written.add(f"take/value:{number}")
            other = attempt(lambda: guarded["take"](number, ["another", number]))
            if not isinstance(other, PayloadMismatch):
                self.say(kind, number, f"another payload expected to be refused, seen {other!r:.80}")
        expected = ValueRefused if kind in REFUSED else None if kind in KEPT else (ValueRefused if refused else None)
        if expected is None and (heard != [str(number).encode()] * 2 or done != 1):
            self.say(kind, number, f"expected to be taken in once, seen {heard!r:.200} and {done} effects")
        if expected is not None and (not all(isinstance(one, expected) for one in heard) or done):
            self.say(kind, number, f"expected to be refused twice, seen {heard!r:.200} and {done} effects")

    def result(self, guarded: dict[str, Any], number: int) -> None:
        kind, self.box = self.value(number)
        self.written.add(f"give/value:{number}")
        first, second = (attempt(lambda: guarded["give"](number, 1)) for _ in range(2))
        done = self.effects()[f"give {number}"]
        kept = not isinstance(second, ResultNotKept)
        honest = kept if kind in KEPT else not kept if kind in NOT_KEPT else True
        if done != 1 or (kept and first != second) or not honest or isinstance(first, Exception):
            self.say(
                kind, number, f"result: expected one effect and a replay, seen {done}, {first!r:.80}, {second!r:.80}"
            )

    def error(self, guarded: dict[str, Any], number: int) -> None:
        kind, self.box = self.value(number)
        self.written.add(f"burst/value:{number}")
        first, second = (attempt(lambda: guarded["burst"](number)) for _ in range(2))
        done = self.effects()[f"burst {number}"]
        parked = isinstance(first, NeedsReview) and isinstance(second, NeedsReview)
        if done != 1 or not parked or type(first.__cause__) is not ValueError:
            self.say(kind, number, f"error: expected once, and review; seen {done}, {first!r:.80}, {second!r:.80}")

    def key(self, guarded: dict[str, Any], number: int) -> None:
        kind = list(KEYS)[next(self.keys_tried) % len(KEYS)]
        self.tried[f"keys: {kind}"] += 1
        key = KEYS[kind](self.dice)
        if isinstance(key, str) and kind not in REFUSED_KEYS:
            key = f"{key}{number}"[-1_024:]
            self.written.add(f"named/{key}")
        heard = [attempt(lambda: guarded["named"](key, number)) for _ in range(2)]
        done = self.effects()[f"named {number}"]
        if kind in REFUSED_KEYS and (done or not all(isinstance(one, KeyRefused) for one in heard)):
            self.say(kind, number, f"key: expected to be refused, seen {heard!r:.120} and {done} effects")
        if kind not in REFUSED_KEYS and (done != 1 or heard != [str(number).encode()] * 2):
            self.say(kind, number, f"key: expected one effect and a replay, seen {heard!r:.120} and {done} effects")

    def pair(self, guarded: dict[str, Any], number: int) -> None:
        """Two encodings of one key are the same key; two keys that look alike are different."""
        alike = number % 2 == 0
        pairs = TWINS if alike else DISTINCT
        self.tried["keys: twins" if alike else "keys: not twins"] += 1
        for key in pairs[number // 2 % len(pairs)]:
            attempt(lambda key=key: guarded["named"](f"{key}{number}", number))
        self.written.update(f"named/{key}{number}" for pair in pairs for key in pair)
        done = self.effects()[f"named {number}"]
        if done != (1 if alike else 2):
            self.say(
                "twins",
                number,
                f"{pairs[number // 2 % len(pairs)]!a}: expected {1 if alike else 2}, seen {done} effects",
            )

    def well(self, number: int) -> None:
        """Check that after poison the next caller is served."""
        heard = attempt(lambda: self.declare()["named"](f"well {number}", -number))
        self.written.add(f"named/well {number}")
        if heard != str(-number).encode():
            self.say("wedged", number, f"a harmless call is answered {heard!r:.200}")
