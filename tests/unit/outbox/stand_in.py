"""A broker that records what it was given, and answers as it is told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from twiceproof.brokers.base import Confirmed, OutgoingMessage, Publication, Refused, Unconfirmed

AWAY = Refused("no connection", away=True)
NO_ROUTE = Refused("no such queue")
SILENCE = Unconfirmed("no answer")


class StandInBroker:
    """Takes all by default. `answers`, by key, are given once each; `always` for as long as they are there."""

    dedupe = 0.0

    def __init__(self) -> None:
        self.taken: list[OutgoingMessage] = []
        self.asked: list[list[str]] = []
        self.answers: dict[str, list[Publication]] = {}
        self.always: dict[str, Publication] = {}
        self.away = False
        self.before: Callable[[], None] = lambda: None
        self.after: Callable[[], None] = lambda: None
        self.closed = 0

    def publish(self, messages: Sequence[OutgoingMessage], patience: float) -> list[Publication]:
        self.before()
        self.asked.append([message.key for message in messages])
        if self.away:
            return [AWAY] * len(messages)
        stopped: set[str] = set()
        outcomes = [self._one(message, stopped) for message in messages]
        self.after()
        return outcomes

    def _one(self, message: OutgoingMessage, stopped: set[str]) -> Publication:
        if message.order in stopped:
            return Refused("behind one that was not confirmed")
        waiting = self.answers.get(message.key) or []
        answer = waiting.pop(0) if waiting else self.always.get(message.key, Confirmed("ok"))
        if not isinstance(answer, Refused):
            self.taken.append(message)
        if not isinstance(answer, Confirmed) and message.order:
            stopped.add(message.order)
        return answer

    @property
    def keys(self) -> list[str]:
        return [message.key for message in self.taken]

    def receive(self, place: str, limit: int, wait: float) -> list[Any]:
        raise NotImplementedError

    settle = examine = receive

    def close(self) -> None:
        self.closed += 1
