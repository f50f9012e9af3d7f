"""Bugs of consumers: deliveries acknowledged too early, or keys that depend on the delivery."""

from __future__ import annotations

import itertools
import os
from typing import Any

from twiceproof.brokers.base import Ack
from twiceproof.inbound.queues import admissions, reader
from twiceproof.inbound.queues.admissions import QueueAdmission
from twiceproof.inbound.queues.reader import QueueReader


def ack_before_claim() -> None:
    """A delivery is acknowledged when it is received."""
    admit = QueueReader._admit_batch

    def acknowledged(self: Any, deliveries: Any) -> Any:
        self._broker().settle([(delivery, Ack()) for delivery in deliveries])
        return admit(self, deliveries)

    QueueReader._admit_batch = acknowledged  # type: ignore[method-assign]


def batch_acked_as_one() -> None:
    """If one delivery of a batch is acknowledged, all are."""
    settle = QueueReader._settle

    def as_one(self: Any, words: Any) -> None:
        all_of_it = any(isinstance(word, Ack) for _, word in words)
        settle(self, [(delivery, Ack()) for delivery, _ in words] if all_of_it else words)

    QueueReader._settle = as_one  # type: ignore[method-assign]


def key_of_the_delivery() -> None:
    """The key of a message has the number of its delivery in it."""
    read, count = admissions._read, itertools.count()

    def renamed(parts: Any, consumer: Any, delivery: Any) -> Any:
        envelope, events = read(parts, consumer, delivery)
        for event in events:
            if isinstance(getattr(event, "payload", None), dict):
                event.payload["id"] = f"{event.payload['id']}-{os.getpid()}-{next(count)}"
        return envelope, events

    admissions._read = renamed


def poison_without_a_letter() -> None:
    """An unreadable delivery is acknowledged, and not kept."""
    QueueAdmission.admit_all = QueueAdmission.admit_each  # type: ignore[method-assign]


def failure_acked() -> None:
    """A delivery that another process is working on is acknowledged."""
    reader.settlement_of = lambda consumer, admitted, times, roll: Ack()  # type: ignore[attr-defined]
