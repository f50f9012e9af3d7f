"""One of the demo's workers: takes deliveries on stdin, one JSON line each, and answers on stdout."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec
from msgspec import Struct

from twiceproof import App, ClaimLost, InProgress, NeedsReview

from .demo_world import Parcel, World

__all__ = ["OPERATION", "Answer", "Delivery"]

OPERATION = "ship"
LEASE = 1.5  # seconds: short, so that the demo need not wait long for a dead worker's claim to lapse
TENANT = "default"


class Delivery(Struct, frozen=True):
    """An order, delivered once more. `stop_at` is where the parent wants to catch the worker and kill it."""

    id: int
    order: int
    stop_at: str = ""


class Answer(Struct, frozen=True):
    """`done`, `replayed`, `in_progress`, `review`, `lost`; or `stopped`: here I am, in the middle of it."""

    id: int
    answer: str
    parcel: Parcel | None = None
    retry_after: float = 0.0


class Worker:
    """The user's program: a function guarded with `@app.once`, called for every delivery."""

    def __init__(self, store: str, world: World) -> None:
        self.app = App(store, tenant=TENANT)
        self.world = world
        self.delivery = Delivery(0, 0)
        self.worked = False
        self.ship = self.app.once(key="order:{order}", name=OPERATION, lease=LEASE)(self._ship)

    def _ship(self, order: int) -> Parcel:
        self.worked = True
        self._pass("before_effect")
        parcel = self.world.ship(order)
        self._pass("after_effect")
        return parcel

    def handle(self, delivery: Delivery) -> Answer:
        self.delivery, self.worked = delivery, False
        try:
            parcel = self.ship(delivery.order)
        except InProgress as busy:
            return Answer(delivery.id, "in_progress", retry_after=busy.retry_after)
        except NeedsReview:
            return Answer(delivery.id, "review")
        except ClaimLost:
            return Answer(delivery.id, "lost")
        if self.worked:
            self._pass("after_record")
        return Answer(delivery.id, "done" if self.worked else "replayed", parcel)

    def _pass(self, place: str) -> None:
        """Where the parent waits for us, say so and stand still: the kill shall land exactly here."""
        if self.delivery.stop_at == place:
            tell(Answer(self.delivery.id, "stopped"))
            sys.stdin.buffer.read()  # nothing ever comes but the end
            os._exit(1)


def tell(answer: Answer) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
    sys.stdout.buffer.flush()


def main(store: str, book: str) -> None:
    worker = Worker(store, World(Path(book)))
    for line in iter(sys.stdin.buffer.readline, b""):
        tell(worker.handle(msgspec.json.decode(line, type=Delivery)))
    worker.app.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
