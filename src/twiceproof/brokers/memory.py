"""A broker in memory, for tests: brokers that are opened by the same name in one process share their messages."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..clock import Clock, system_clock
from ..errors import BrokerUnavailable
from .base import (
    Ack,
    BrokerFinding,
    Confirmed,
    DeliverySettlement,
    Extend,
    OutgoingMessage,
    Publication,
    QueueDelivery,
    Refused,
    Reject,
    Requeue,
    Unconfirmed,
)
from .publishing import AFTER_UNCONFIRMED, refusal_of

__all__ = ["MemoryBroker", "MemoryQueues", "StoredMessage"]

LEASE = 30.0
DEDUPE = 120.0
MOST_BYTES = 16 * 1024 * 1024
LOOK = 0.005  # seconds between two looks at an empty queue


@dataclass(eq=False)
class StoredMessage:
    """A message in a queue. `holder` is the delivery that may settle it."""

    message: OutgoingMessage
    sequence: int
    times: int = 0
    visible: float = 0.0  # the monotonic time from which on it is delivered
    holder: object = None


@dataclass
class MemoryQueues:
    """What brokers of the same name share. `places`: the existing queues; None creates each at its first use."""

    places: set[str] | None = None
    dedupe: float = DEDUPE
    lease: float = LEASE
    queues: dict[str, list[StoredMessage]] = field(default_factory=lambda: defaultdict(list))
    rejected: dict[str, list[StoredMessage]] = field(default_factory=lambda: defaultdict(list))
    seen: dict[tuple[str, str], tuple[float, int]] = field(default_factory=dict)  # (place, key): until, sequence
    last: int = 0
    mutex: threading.RLock = field(default_factory=threading.RLock)

    def has(self, place: str) -> bool:
        return self.places is None or place in self.places


_shared: dict[str, MemoryQueues] = defaultdict(MemoryQueues)


class MemoryBroker:
    """`memory://name`. It keeps the whole contract, and loses everything when the process ends.

    `lose_answers` is for tests: that many messages are stored and reported as `Unconfirmed`.
    """

    def __init__(self, queues: MemoryQueues | None = None, *, clock: Clock = system_clock) -> None:
        self.queues = queues or MemoryQueues()
        self.dedupe = self.queues.dedupe
        self.lose_answers = 0
        self._clock = clock
        self._held: dict[StoredMessage, object] = {}  # with the hand-over that we were given

    @classmethod
    def named(cls, name: str, clock: Clock = system_clock) -> MemoryBroker:
        """Return a broker that shares its messages with all others of this name in this process."""
        return cls(_shared[name], clock=clock)

    def publish(self, messages: Sequence[OutgoingMessage], patience: float) -> Sequence[Publication]:
        stopped: set[str] = set()
        outcomes: list[Publication] = []
        with self.queues.mutex:
            for message in messages:
                outcome = AFTER_UNCONFIRMED if message.order in stopped else self._publish_one(message)
                if message.order and not isinstance(outcome, Confirmed):
                    stopped.add(message.order)
                outcomes.append(outcome)
        return outcomes

    def receive(self, place: str, limit: int, wait: float) -> Sequence[QueueDelivery]:
        if not self.queues.has(place):
            raise BrokerUnavailable(f"There is no queue {place!r}; create it, or correct the name.", missing=True)
        end = self._clock.monotonic() + wait
        while True:
            found = self._take(place, limit)
            left = end - self._clock.monotonic()
            if found or left <= 0:
                return found
            self._clock.sleep(min(left, LOOK))

    def settle(self, settlements: Sequence[tuple[QueueDelivery, DeliverySettlement]]) -> None:
        with self.queues.mutex:
            for delivery, word in settlements:
                stored: StoredMessage = delivery.tag[0]
                if stored.holder is delivery.tag[1] and self._clock.monotonic() < stored.visible:
                    self._settle_one(delivery.place, stored, word)

    def examine(self, places: Sequence[str] = ()) -> Sequence[BrokerFinding]:
        missing = [place for place in places if not self.queues.has(place)]
        return [
            BrokerFinding("warning", "durability", "Messages end with the process; use another broker in production."),
            *(BrokerFinding("error", place, f"There is no queue {place!r}; create it.") for place in missing),
        ]

    def waiting(self, place: str) -> int:
        with self.queues.mutex:
            return sum(stored.holder is None for stored in self.queues.queues[place])

    def close(self) -> None:
        """What was not settled is delivered again at once."""
        with self.queues.mutex:
            for stored, holder in self._held.items():
                if stored.holder is holder:
                    stored.holder, stored.visible = None, self._clock.monotonic()
            self._held = {}

    def _publish_one(self, message: OutgoingMessage) -> Publication:
        refused = refusal_of(message, MOST_BYTES)
        if refused is not None:
            return refused
        if not self.queues.has(message.place):
            return Refused(f"There is no queue {message.place!r}; create it, or correct the route.")
        known = self._known(message)
        outcome = Confirmed(str(known), duplicate=True) if known is not None else Confirmed(str(self._store(message)))
        if self.lose_answers > 0:
            self.lose_answers -= 1
            return Unconfirmed("The answer was lost, as the test asked for.")
        return outcome

    def _known(self, message: OutgoingMessage) -> int | None:
        until, sequence = self.queues.seen.get((message.place, message.key), (0.0, 0))
        return sequence if self._clock.monotonic() < until else None

    def _store(self, message: OutgoingMessage) -> int:
        self.queues.last += 1
        stored = StoredMessage(message, self.queues.last, visible=self._clock.monotonic())
        self.queues.queues[message.place].append(stored)
        if self.queues.dedupe:
            until = self._clock.monotonic() + self.queues.dedupe
            self.queues.seen[message.place, message.key] = (until, stored.sequence)
        return stored.sequence

    def _take(self, place: str, limit: int) -> list[QueueDelivery]:
        with self.queues.mutex:
            now = self._clock.monotonic()
            ready = [stored for stored in self.queues.queues[place] if stored.visible <= now][:limit]
            return [self._hand_over(stored, now + self.queues.lease) for stored in ready]

    def _hand_over(self, stored: StoredMessage, until: float) -> QueueDelivery:
        stored.times += 1
        stored.visible = until
        stored.holder = object()
        self._held[stored] = stored.holder
        message = stored.message
        return QueueDelivery(
            place=message.place,
            body=message.body,
            headers={name.lower(): value for name, value in message.headers.items()},
            tag=(stored, stored.holder),
            key=message.key,
            sequence=stored.sequence,
            times=stored.times,
            until=until,
            content_type=message.content_type,
        )

    def _settle_one(self, place: str, stored: StoredMessage, word: DeliverySettlement) -> None:
        if isinstance(word, Extend):
            stored.visible = max(stored.visible, self._clock.monotonic() + word.seconds)
            return
        stored.holder = None
        self._held.pop(stored, None)
        if isinstance(word, Requeue):
            stored.visible = self._clock.monotonic() + word.after
        if isinstance(word, Ack | Reject):
            self.queues.queues[place].remove(stored)
        if isinstance(word, Reject):
            self.queues.rejected[place].append(stored)
