"""A recording broker instead of every other: what a receiver that recognises keys gets, and in which order."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from typing import Any

from ...brokers import open as opening
from ...brokers.base import (
    BrokerFinding,
    Confirmed,
    DeliverySettlement,
    OutgoingMessage,
    Publication,
    QueueDelivery,
    Unconfirmed,
)
from ...brokers.publishing import publish_fit
from .stand_in import ServiceProcess, ServiceWorld

__all__ = ["BrokerService", "BrokerWorld", "StandInBroker", "is_open"]

MOST_BYTES = 16 * 1024 * 1024
SHOWN = 100  # characters of a body
MOST_IN_ORDER = 20  # messages of one order key whose order is compared

_open: list[BrokerWorld] = []


def is_open() -> bool:
    """Whether messages are observed, and so published in a scenario."""
    return bool(_open)


class BrokerService:
    """Keeps everything in memory, for the current scenario."""

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._taken: list[dict[str, str]] = []  # publications, each as often as it came
        self._losing = 0

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Never called: brokers send their requests in the same way as the prover."""

    def command(self, word: str, value: Any) -> Any:
        match word:
            case "publish":
                return [self._take(message) for message in value]
            case "look":
                return self._look()
            case "exchanges":
                return [_shown(message) for message in self._taken]
            case "lose":
                self._losing = int(value)
            case _:
                self._clear()
        return None

    def _take(self, message: dict[str, str]) -> bool:
        """Whether the publisher gets an answer."""
        self._taken.append(message)
        return len(self._taken) != self._losing

    def _look(self) -> dict[str, int]:
        """A message counts once for each key, also for the order: a receiver drops a key that it has seen."""
        first = {(message["place"], message["key"]): message for message in reversed(self._taken)}
        known = [message for message in self._taken if first[message["place"], message["key"]] is message]
        orders: dict[str, list[str]] = {}
        for message in known:
            if message["order"]:
                orders.setdefault(message["order"], []).append(_shown(message))
        pairs = (
            f"in order of {order}: {earlier}, then {later}"
            for order, shown in orders.items()
            for earlier, later in combinations(shown[:MOST_IN_ORDER], 2)
        )
        return dict(Counter([*map(_shown, known), *pairs]))


def _shown(message: dict[str, str]) -> str:
    topic = f"{message['topic']} " if message["topic"] not in ("", message["place"]) else ""
    return f"message {topic}to {message['place']}: {message['body']}"


class StandInBroker:
    """A broker whose messages go to the stand-in. Nothing is received from it: prove delivers events itself."""

    dedupe = 0.0

    def __init__(self, service: ServiceProcess) -> None:
        self._service = service

    def publish(self, messages: Sequence[OutgoingMessage], patience: float) -> Sequence[Publication]:
        return publish_fit(messages, MOST_BYTES, self._publish)

    def receive(self, place: str, limit: int, wait: float) -> Sequence[QueueDelivery]:
        return []

    def settle(self, settlements: Sequence[tuple[QueueDelivery, DeliverySettlement]]) -> None: ...

    def examine(self, places: Sequence[str] = ()) -> Sequence[BrokerFinding]:
        return []

    def close(self) -> None: ...

    def _publish(self, messages: Sequence[OutgoingMessage]) -> list[Publication]:
        answered: list[bool] = self._service.ask("publish", [_told(message) for message in messages])
        return [Confirmed() if one else Unconfirmed("The answer was lost (by the scenario).") for one in answered]


def _told(message: OutgoingMessage) -> dict[str, str]:
    body = message.body.decode(errors="backslashreplace")[:SHOWN]
    return {
        "place": message.place,
        "topic": message.topic,
        "key": message.key,
        "order": message.order,
        "body": body,
    }


class BrokerWorld(ServiceWorld):
    """`with BrokerWorld() as world:` makes every broker that is opened by a URL meanwhile a recording one.

    Messages are counted by place and body, once for each key: published twice under one key, a message is one effect.
    """

    def __init__(self) -> None:
        super().__init__(BrokerService())
        self._before = dict(opening.BROKERS)
        opening.BROKERS.update({scheme: lambda *_: self.broker() for scheme in self._before})
        _open.append(self)

    def broker(self) -> StandInBroker:
        return StandInBroker(self._aside)

    def close(self) -> None:
        opening.BROKERS.update(self._before)
        self._aside.close()
        _open.remove(self)
