"""Poison at claims and at flows: kept and replayed as it is, or refused before anything is written; nothing between."""

from __future__ import annotations

import logging
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from tests.acceptance.places import Place
from tests.prove.faults.poison import DISTINCT, KEPT, KEYS, REFUSED, REFUSED_KEYS, TWINS, VALUES, inside
from tests.prove.trial import Trial
from twiceproof import App, KeyRefused, PayloadMismatch, PriorFailure, ResultNotKept, TwiceproofError, ValueRefused

__all__ = ["ClaimsDoor", "FlowsDoor"]

ENDED = {"done", "failed", "review"}


class Door:
    """What both doors count and how they say what went wrong."""

    name = ""

    def __init__(self, trial: Trial, store: str, place: Place, app: App) -> None:
        warnings.simplefilter("ignore")
        logging.disable(logging.ERROR)  # each refusal is said there too
        self.dice = trial.dice("poison", store, self.name)
        self.place = place
        self.app = app
        self.tried: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.written: set[str] = set()  # keys that may be in the ledger; all others must not

    def say(self, kind: str, number: object, what: str) -> None:
        self.wrong.append(f"{self.name}: {kind}, number {number}: {what}")

    def value(self, number: int) -> tuple[str, Any]:
        kind = list(VALUES)[number % len(VALUES)]
        self.tried[f"{self.name}: {kind}"] += 1
        return kind, inside(self.dice, VALUES[kind](self.dice))

    def effects(self) -> Counter[str]:
        return Counter(self.place.effects())

    def check_ledger(self, operations: set[str]) -> None:
        """Every claim is ended and belongs to something that was taken in; nothing else is there."""
        for record in everything(self.app, "claim"):
            _, operation, key = record.at.space.split("/", 2)
            if operation in operations and f"{operation}/{key}" not in self.written:
                self.say("half-written", key[:60], f"{operation} was refused, and its claim is {record.state}")
            elif operation in operations and record.state not in ENDED:
                self.say("half-written", key[:60], f"{operation} is {record.state}, and nobody is at work")


def everything(app: App, kind: str) -> Iterator[Any]:
    after: str | None = None
    while True:
        page = app.store.scan(kind, after=after, limit=200).block()
        yield from page.records
        if (after := page.after) is None:
            return


def attempt(call: Callable[[], Any]) -> Any:
    """What came of it: the JSON of what it returned, or the error."""
    try:
        return same_text(call())
    except Exception as error:  # noqa: BLE001 - judged by the caller
        return error


def same_text(value: Any) -> Any:
    try:
        return msgspec.json.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return "no text"


class ClaimsDoor(Door):
    name = "claims"

    def run(self, times: int) -> None:
        ways = (self.argument, self.result, self.error, self.key, self.pair)
        guarded = self.declare()
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
        if done != 1 or (kept and first != second) or (not kept and kind in KEPT) or isinstance(first, Exception):
            self.say(
                kind, number, f"result: expected one effect and a replay, seen {done}, {first!r:.80}, {second!r:.80}"
            )

    def error(self, guarded: dict[str, Any], number: int) -> None:
        kind, self.box = self.value(number)
        self.written.add(f"burst/value:{number}")
        first, second = (attempt(lambda: guarded["burst"](number)) for _ in range(2))
        done = self.effects()[f"burst {number}"]
        if done != 1 or type(first) is not ValueError or not isinstance(second, PriorFailure):
            self.say(
                kind, number, f"error: expected once, then PriorFailure; seen {done}, {first!r:.80}, {second!r:.80}"
            )

    def key(self, guarded: dict[str, Any], number: int) -> None:
        kind = list(KEYS)[number % len(KEYS)]
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
        """Two ways to write one key are one; two keys that look alike are two."""
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
        """After poison, the next one is served."""
        heard = attempt(lambda: self.declare()["named"](f"well {number}", -number))
        self.written.add(f"named/well {number}")
        if heard != str(-number).encode():
            self.say("wedged", number, f"a harmless call is answered {heard!r:.200}")


class FlowsDoor(Door):
    """Runs are left to a worker, poison and harmless ones in turn: the queue is always empty in the end."""

    name = "flows"
    QUEUE = 60

    def run(self, times: int) -> None:
        self.values: dict[int, Any] = {}
        flows = self.declare()
        for first in range(0, times, self.QUEUE):
            self.queue(flows, range(first, min(first + self.QUEUE, times)))
        self.check_ledger({"carry", "fetch", "fall", "well"})

    def declare(self) -> dict[str, Any]:
        app, do, values = self.app, self.place.do, self.values

        @app.step(repeat="never")
        def work(number: int, way: str) -> Any:
            do(f"{way} {number}")
            if way == "fall":
                raise ValueError(values[number])
            return values[number] if way == "fetch" else number

        @app.flow(key="value:{number}")
        def carry(number: int, value: Any) -> Any:
            work(number, "carry")
            return value

        @app.flow(key="value:{number}")
        def fetch(number: int) -> Any:
            return work(number, "fetch")

        @app.flow(key="value:{number}")
        def fall(number: int) -> None:
            work(number, "fall")

        @app.flow(key="value:{number}")
        def well(number: int) -> int:
            return number

        return {"carry": carry, "fetch": fetch, "fall": fall, "well": well}

    def queue(self, flows: dict[str, Any], numbers: range) -> None:
        begun: list[tuple[str, int, str]] = []
        for number in numbers:
            way = ("carry", "fetch", "fall")[number // len(VALUES) % 3]
            kind, self.values[number] = self.value(number)
            given = (number, self.values[number]) if way == "carry" else (number,)
            begun += self.start(flows, way, kind, number, given)
        flows["well"].start(numbers[0])
        self.written.add(f"well/value:{numbers[0]}")
        self.app.worker(concurrency=4).run(until_idle=True)
        effects = self.effects()
        for way, number, kind in begun:
            self.judge(flows, way, kind, number, effects[f"{way} {number}"])
        if attempt(lambda: flows["well"](numbers[0])) != str(numbers[0]).encode():
            self.say("wedged", numbers[0], "a harmless run is not done")

    def start(self, flows: dict[str, Any], way: str, kind: str, number: int, given: Any) -> list[tuple[str, int, str]]:
        heard = attempt(lambda: flows[way].start(*given))
        if not isinstance(heard, Exception):
            self.written.add(f"{way}/value:{number}")
            if way == "carry" and kind in REFUSED:
                self.say(kind, number, "input: expected to be refused, seen a run")
            return [(way, number, kind)]
        if not isinstance(heard, ValueRefused) or kind in KEPT:
            self.say(kind, number, f"input: expected a run, or to be refused; seen {heard!r:.120}")
        return []

    def judge(self, flows: dict[str, Any], way: str, kind: str, number: int, done: int) -> None:
        given = (number, self.values[number]) if way == "carry" else (number,)
        first, second = (attempt(lambda: flows[way](*given)) for _ in range(2))
        if done != 1 or type(first) is not type(second) or (isinstance(first, bytes) and first != second):
            self.say(
                kind, number, f"{way}: expected one effect and a replay, seen {done}, {first!r:.80}, {second!r:.80}"
            )
        if way != "fall" and kind in KEPT and not isinstance(first, bytes):
            self.say(kind, number, f"{way}: expected to be kept, seen {first!r:.120}")
        if way == "fall" and not isinstance(first, PriorFailure):
            self.say(kind, number, f"{way}: expected PriorFailure, seen {first!r:.120}")
