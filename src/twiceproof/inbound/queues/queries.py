"""Declared consumers and brokers, as people and programs see them. URLs are left out: they hold passwords."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from ...outbox.pauses import PausedTarget
from ...outbox.routing import Routing
from .consumer import Consumer

__all__ = ["BrokerShape", "ConsumerShape", "broker_shapes", "consumer_shapes"]


class ConsumerShape(Struct, frozen=True, kw_only=True):
    """A consumer. `starts`: a flow, or "" for a function that runs where it is consumed; `keep`: null is for ever."""

    name: str
    broker: str
    broker_declared: bool
    place: str
    starts: str
    key: str
    prefetch: int
    poison: str
    keep: float | None


class BrokerShape(Struct, frozen=True, kw_only=True):
    """A broker or webhook, with the topics that are routed to it, its consumers, and its pause if it is paused."""

    name: str
    routes: list[str]
    consumers: list[str]
    paused: PausedTarget | None


def consumer_shapes(consumers: Mapping[str, Consumer], routing: Routing) -> list[ConsumerShape]:
    return [
        ConsumerShape(
            name=one.name,
            broker=one.broker,
            broker_declared=one.broker in routing.targets,
            place=one.place,
            starts="" if one.function is not None else one.flow.name,
            key=one.key_text,
            prefetch=one.prefetch,
            poison=one.poison,
            keep=one.policy.life.keep,
        )
        for one in consumers.values()
    ]


def broker_shapes(
    consumers: Mapping[str, Consumer], routing: Routing, pauses: Sequence[PausedTarget]
) -> list[BrokerShape]:
    paused = {one.target: one for one in pauses}
    return [
        BrokerShape(
            name=name,
            routes=[route.topics for route in routing.routes if route.target == name],
            consumers=[one.name for one in consumers.values() if one.broker == name],
            paused=paused.get(name),
        )
        for name in routing.targets
    ]
