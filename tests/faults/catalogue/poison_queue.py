"""Poison in queues: each delivery is work or a dead letter, the queue moves on, and the next message is served."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from tests.faults.catalogue.poison import KEYS
from tests.faults.catalogue.poison_bytes import BODIES
from tests.faults.catalogue.poison_door import Door
from tests.unit.inbound.queues.post_office import PostOffice

__all__ = ["QueueDoor"]

PLACES = ("runs", "calls")
TAKEN, REFUSED = {"new", "duplicate"}, {"poison", "mismatch"}


class QueueDoor(Door):
    """One consumer starts runs by a key of the body, the other calls a function under a key of a header."""

    name = "queue"

    def run(self, times: int) -> None:
        office = PostOffice(self.app)

        @self.app.flow(key="{order[order]}", name="sync")
        def sync(order: dict[str, Any]) -> None:
            self.place.do(f"run {order['order']}")

        self.app.consume("main/runs", start=sync)
        self.app.consume("main/calls", key="{headers[x-key]}", inline=True)(lambda body: self.place.do("call"))
        self.readers = {place: office.reader(f"main/{place}") for place in PLACES}
        for number in range(times):
            kind, body = self._body(number)
            self._deliver(office, PLACES[number % 2], number, kind, body, self._key(number))
            if number % 10 == 9:
                ordinary = b'{"order": "fine %d"}' % number
                self._deliver(office, PLACES[number % 2], f"after {number}", "ordinary", ordinary, f"k{number}", "new")
        office.close()

    def _body(self, number: int) -> tuple[str, bytes]:
        kind = list(BODIES)[number // 2 % len(BODIES)]
        self.tried[f"{self.name}: {kind}"] += 1
        return kind, BODIES[kind](self.dice)

    def _key(self, number: int) -> str:
        kinds = [kind for kind in KEYS if kind != "no text"]
        return str(KEYS[kinds[number % len(kinds)]](self.dice)) if number % 3 == 0 else f"n{number}"

    def _deliver(
        self, office: PostOffice, place: str, number: object, kind: str, body: bytes, key: str, expected: str = ""
    ) -> None:
        reader = self.readers[place]
        before, letters = reader.outcomes.copy(), len(office.letters())
        office.post(body, f"{self.name}-{number}", place=place)
        stored = office.queues.queues[place][-1]  # a sender of another kind is not held to what our headers may be
        stored.message = structs.replace(stored.message, headers={"x-key": key})
        office.drain(reader)
        outcomes = reader.outcomes - before
        (outcome,) = outcomes if outcomes.total() == 1 else ("none",)
        if outcome not in ({expected} if expected else TAKEN | REFUSED):
            self.say(
                kind, number, f"{key[:20]!r}: expected {expected or 'work or a dead letter'}, was {dict(outcomes)}"
            )
        if office.queues.queues[place]:
            self.say(kind, number, "it is still in the queue")
            office.queues.queues[place].clear()
        if outcome in REFUSED and len(office.letters()) != letters + 1:
            self.say(kind, number, "it was refused, and there is no dead letter of it")
