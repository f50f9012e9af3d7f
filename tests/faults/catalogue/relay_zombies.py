"""Relays that are stopped with SIGSTOP after they have published, and wake up when another one has parked the messages.

Also a sender that races the removal of its lane: a message that is added while its lane is emptied must not be left
behind.
"""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.acceptance.children import Child
from tests.acceptance.places import Place
from tests.faults.catalogue.relay_stage import LONG_AFTER, apart
from twiceproof import App, Retry
from twiceproof.brokers.base import Confirmed, OutgoingMessage, Publication, Refused
from twiceproof.outbox.message import message_of
from twiceproof.outbox.relay import TargetRelay
from twiceproof.records import Record

__all__ = ["LaneRaces", "RelayZombies"]

BOTH = {"alone": None, "ordered": "o"}  # the messages of a tenant, and their order keys
STUCK = 30.0  # seconds without a message: the rest will not come
NO_QUEUE = Refused("no such queue", final=True)


class OneAnswer:
    """A broker that answers the same about every message, after `then`."""

    dedupe = 0.0

    def __init__(self, answer: Publication, then: Callable[[], None]) -> None:
        self._answer, self._then = answer, then

    def publish(self, messages: Sequence[OutgoingMessage], patience: float) -> list[Publication]:
        self._then()
        return [self._answer] * len(messages)

    def close(self) -> None:
        """There is nothing to close."""


class RelayZombies:
    """One store, and a tenant for each zombie."""

    def __init__(self, place: Place, plant: Callable[[], None] = lambda: None) -> None:
        self._place = place
        self._plant = plant

    def play(self, count: int) -> list[str]:
        """Stop so many relays, let another one park their messages, wake them up; return what is wrong."""
        tenants = [f"z{number}" for number in range(count)]
        if apart(lambda: self._send(tenants)):
            return ["sending broke off"]
        zombies = [Child(lambda child, tenant=tenant: self._publish(child, tenant)) for tenant in tenants]
        wrong = [
            f"{one}: it did not publish" for one, zombie in zip(tenants, zombies, strict=True) if not zombie.hear()
        ]
        for zombie in zombies:
            zombie.send(signal.SIGSTOP)
        self._place.advance(LONG_AFTER)
        if apart(lambda: self._park(tenants)):
            return [*wrong, "the other relay broke off"]
        for zombie in zombies:
            zombie.send(signal.SIGCONT)
            zombie.go()
            zombie.end()
        looking = Child(lambda child: child.tell(self._states()))
        states = looking.hear()
        looking.end()
        expected = {f"{tenant}-{name}": "parked" for tenant in tenants for name in BOTH}
        return [*wrong, *(f"{key} is {states.get(key)}" for key in expected if states.get(key) != "parked")]

    # -- in processes of their own ---------------------------------------------------------------

    def _app(self, answer: Publication = NO_QUEUE, then: Callable[[], None] = lambda: None) -> App:
        app = self._place.app()
        app.broker("main", OneAnswer(answer, then), retry=Retry(attempts=50, first=1.0))
        app.route("t", to="main")
        return app

    def _send(self, tenants: Sequence[str]) -> None:
        with self._app() as app:
            for tenant in tenants:
                for name, order in BOTH.items():
                    app.of(tenant).send("t", {}, key=f"{tenant}-{name}", order=order)

    def _publish(self, child: Child, tenant: str) -> None:
        def published() -> None:
            child.tell("published")
            child.wait_for_go()

        self._plant()
        app = self._app(Confirmed(), published)
        _relay(app, [tenant]).run_once()

    def _park(self, tenants: Sequence[str]) -> None:
        with self._app() as app:
            relay = _relay(app, tenants)
            while relay.run_once() <= 0:
                pass
            relay.close()

    def _states(self) -> dict[str, str]:
        with self._app() as app:
            found = [one for state in ("parked", "sent", "pending") for one in _all_in(app, state)]
            return {message_of(record).key: record.state for record in found}


class LaneRaces:
    """A sender and a relay on one order key: the relay empties the lane again and again while it is sent to."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._log = Path(place.directory / "raced")

    def play(self, count: int) -> list[str]:
        self._log.touch()
        sender = Child(lambda _: self._send(count))
        relay = Child(lambda child: self._relay(child, count))
        emptied = relay.hear()
        ended = [relay.end(), sender.end()]
        keys = self._log.read_text().splitlines()
        wrong = [] if not any(ended) else [f"relay and sender ended with {ended}"]
        if keys != [str(number) for number in range(count)]:
            again = [key for key, times in Counter(keys).items() if times > 1]
            wrong.append(f"{count} messages were published as {len(keys)}, {len(again)} of them again")
        if not emptied or emptied < count / 100:
            wrong.append(f"the lane was emptied only {emptied} times: nothing raced")
        return wrong

    def _app(self) -> App:
        app = self._place.app()
        app.broker("main", Logging(self._log))
        app.route("t", to="main")
        return app

    def _send(self, count: int) -> None:
        with self._app() as app:
            for number in range(count):
                app.send("t", {}, key=str(number), order="o")

    def _relay(self, child: Child, count: int) -> None:
        emptied = 0
        with self._app() as app:
            relay = _relay(app, ["default"])
            idle = time.monotonic()
            while relay.counts["published"] < count and time.monotonic() - idle < STUCK:
                before = relay.counts["published"]
                relay.run_once()
                if relay.counts["published"] > before:
                    idle, emptied = time.monotonic(), emptied + 1
            relay.close()
        child.tell(emptied)


class Logging(OneAnswer):
    """One line for each message."""

    def __init__(self, file: Path) -> None:
        super().__init__(Confirmed(), lambda: None)
        self._file = file

    def publish(self, messages: Sequence[OutgoingMessage], patience: float) -> list[Publication]:
        with self._file.open("a") as file:
            file.writelines(f"{message.key}\n" for message in messages)
        return super().publish(messages, patience)


def _relay(app: App, tenants: Sequence[str]) -> TargetRelay:
    target = app.routing.targets["main"]
    return TargetRelay(app.store, target, lambda: tenants, clock=app.clock, roll=lambda: 0.5)


def _all_in(app: App, state: str) -> list[Record]:
    return list(app.store.scan("message", state=state, limit=1_000).block().records)
