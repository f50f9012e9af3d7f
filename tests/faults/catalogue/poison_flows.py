"""Poison at flows: refused when a run is started, or finished by a worker whose queue never stops."""

from __future__ import annotations

from typing import Any

from tests.acceptance.later import pass_time
from tests.faults.catalogue.poison import KEPT, NOT_KEPT, REFUSED, VALUES
from tests.faults.catalogue.poison_door import Door, attempt
from twiceproof import NeedsReview, ValueRefused
from twiceproof.flows.engine import exits as leaving

__all__ = ["FlowsDoor"]


class Interrupt(BaseException):
    """What no `except Exception` stops."""


class FlowsDoor(Door):
    """Runs are left to a worker, poison and harmless ones in turn: at the end the queue must be empty."""

    name = "flows"
    QUEUE = 60

    def run(self, times: int) -> None:
        self.values: dict[int, Any] = {}
        flows = self.declare()
        for first in range(0, times, self.QUEUE):
            self.queue(flows, range(first, min(first + self.QUEUE, times)))
        self.dead_letter(max(1, times // len(VALUES)))
        self.check_ledger({"carry", "fetch", "fall", "well", "interrupt"})

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

    def dead_letter(self, times: int) -> None:
        """A run that stops its worker each time goes to review after a number of starts, which is lowered here."""
        leaving.MOST_CRASHES = leaving.FREE_INTERRUPTS + 1

        @self.app.flow(key="value:{number}")
        def interrupt(number: int) -> None:
            self.place.do(f"interrupt {number}")
            raise Interrupt

        handles = [interrupt.start(number) for number in range(times)]
        for _ in range(3):
            self.app.worker().run(until_idle=True)
            pass_time(self.place, leaving.EXIT_PAUSE + 1)
        effects = self.effects()
        for number, handle in enumerate(handles):
            self.tried["flows: interrupts its worker"] += 1
            self.written.add(f"interrupt/value:{number}")
            begun = effects[f"interrupt {number}"]
            if handle.state != "review" or begun != leaving.MOST_CRASHES + 1:
                self.say("interrupts its worker", number, f"expected review, seen {handle.state} after {begun} starts")

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
        if way == "fetch" and kind in NOT_KEPT and isinstance(first, bytes):
            self.say(kind, number, f"{way}: expected to be told that it is not kept, seen {first!r:.120}")
        if way == "fall" and not isinstance(first, NeedsReview):
            self.say(kind, number, f"{way}: expected review, seen {first!r:.120}")
