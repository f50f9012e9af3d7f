"""Many order keys, relays that are killed while they publish, and a broker that refuses: the order that receivers see.

Each order key has one sender, so that the order of its commits is known. The broker's memory is a file.
"""

from __future__ import annotations

import itertools
import logging
import os
import random
import signal
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.acceptance.children import Child
from tests.acceptance.places import Place
from twiceproof import App, Retry
from twiceproof.brokers.base import Confirmed, OutgoingMessage, Publication, Refused, Unconfirmed
from twiceproof.brokers.publishing import AFTER_UNCONFIRMED
from twiceproof.outbox.relay import TargetRelay

__all__ = ["OrderStage"]

RELAYS, SENDERS = 8, 4
FROM_RUNS = 8  # one in so many messages is sent by a run
LEASE, PATIENCE = 2.0, 0.5  # seconds
OFTEN = Retry(attempts=100_000, first=0.005, most=0.02, within="2d")
EACH = 0.15  # seconds between two kills
STUCK = 60.0  # seconds without a message: the rest will not come


class FileBroker:
    """One line for each message that it took, in order. It refuses some and leaves some without an answer."""

    dedupe = 0.0

    def __init__(self, file: Path) -> None:
        self._file = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._dice = random.Random()

    def publish(self, messages: Sequence[OutgoingMessage], patience: float) -> list[Publication]:
        stopped: set[str] = set()
        answers: list[Publication] = []
        for message in messages:
            answer = AFTER_UNCONFIRMED if message.order in stopped else self._take(message)
            answers.append(answer)
            if message.order and not isinstance(answer, Confirmed):
                stopped.add(message.order)
        return answers

    def _take(self, message: OutgoingMessage) -> Publication:
        chance = self._dice.random()
        if chance < 0.03:
            return Refused("not yet")
        os.write(self._file, f"{message.key}\n".encode())
        return Unconfirmed("no answer") if chance < 0.06 else Confirmed()

    def close(self) -> None:
        """The process ends soon."""


class OrderStage:
    """`lanes`: False for the control, in which the messages have no order key."""

    def __init__(self, place: Place, dice: random.Random, keys: int, *, lanes: bool = True) -> None:
        self._place = place
        self._dice = dice
        self._orders = [f"o{number}" for number in range(keys)]
        self._lanes = lanes
        self._log = place.directory / "broker"
        self._log.touch()
        self.kills = 0

    def play(self, each: int) -> list[str]:
        """Send so many messages for each order key, and kill relays until all are taken; return what is wrong."""
        senders = [Child(_quietly(self._sending(number, each))) for number in range(SENDERS)]
        relays = [Child(_quietly(self._relay)) for _ in range(RELAYS)]
        self._kill_until(each * len(self._orders), relays)
        for relay in relays:
            self._kill(relay)
        ended = [sender.end() for sender in senders]
        return [f"senders ended with {ended}"] if any(ended) else self._judged(each)

    # -- in processes of their own ---------------------------------------------------------------

    def _app(self) -> App:
        app = self._place.app()
        app.broker("main", FileBroker(self._log), retry=OFTEN, patience=PATIENCE)
        app.route("t", to="main")
        return app

    def _sending(self, number: int, each: int) -> Callable[[], None]:
        def send() -> None:
            mine = self._orders[number::SENDERS]
            with self._app() as app:

                @app.flow(key="{key}")
                def run(key: str, order: str) -> None:
                    app.send("t", {}, key=key, order=order or None)

                for n in range(each):
                    for order in mine:
                        key, lane = f"{order}-{n}", order if self._lanes else ""
                        run(key, lane) if n % FROM_RUNS == 0 else app.send("t", {}, key=key, order=lane or None)

        return send

    def _relay(self) -> None:
        app = self._app()
        target = app.routing.targets["main"]
        one = TargetRelay(app.store, target, lambda: ["default"], clock=app.clock, roll=random.random, lease=LEASE)
        one.run()

    # -- outside ---------------------------------------------------------------------------------

    def _kill_until(self, expected: int, relays: list[Child]) -> None:
        pause = threading.Event()
        seen, since = 0, time.monotonic()
        while (taken := len(set(self._taken()))) < expected:
            if taken > seen:
                seen, since = taken, time.monotonic()
            elif time.monotonic() - since > STUCK:
                return
            pause.wait(EACH)
            at = self._dice.randrange(RELAYS)
            self._kill(relays[at])
            relays[at] = Child(_quietly(self._relay))
            self.kills += 1

    def _kill(self, relay: Child) -> None:
        relay.send(signal.SIGKILL)
        relay.end()

    def _taken(self) -> list[str]:
        return self._log.read_text().splitlines()

    def _judged(self, each: int) -> list[str]:
        first: dict[str, list[int]] = {order: [] for order in self._orders}
        for key in dict.fromkeys(self._taken()):
            order, _, number = key.partition("-")
            first[order].append(int(number))
        wrong = []
        for order, numbers in first.items():
            if lost := each - len(numbers):
                wrong.append(f"{order}: {lost} of {each} messages were never published")
            if numbers != sorted(numbers):
                at = next(n for n, (one, more) in enumerate(itertools.pairwise(numbers)) if one > more)
                wrong.append(f"{order}: out of order: {numbers[max(0, at - 2) : at + 4]}")
        return wrong


def _quietly(work: Callable[[], None]) -> Callable[[Child], None]:
    def quiet(child: Child) -> None:
        logging.disable(logging.CRITICAL)
        warnings.simplefilter("ignore")
        work()

    return quiet
