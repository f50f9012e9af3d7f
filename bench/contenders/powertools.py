"""AWS Powertools' `idempotent_function` on the same Valkey: default settings, a local connection, its own client."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import redis
from aws_lambda_powertools.utilities.idempotency import IdempotencyConfig, idempotent_function
from aws_lambda_powertools.utilities.idempotency.persistence.cache import CachePersistenceLayer

from ..callers import Callers, One, Threads, count_in
from ..orders import RESULT, growing, order
from ..rounds import Contender

__all__ = ["powertools"]


class _Context:
    """What Lambda would say. Without one it warns at each call, and keeps no deadline."""

    def get_remaining_time_in_millis(self) -> int:
        return 30_000


def powertools(url: str, callers: str, stack: ExitStack) -> Contender:
    """Each call has a payload of its own: all of them claim, work, and record."""
    client = redis.Redis.from_url(url, decode_responses=True)
    stack.callback(client.close)
    ship, keys = _guarded(client), growing()
    return Contender("Powertools", _callers(callers, lambda _: ship(order=order(keys()))))


def _guarded(client: Any) -> Callable[..., Any]:
    """`Any`: its annotations know neither today's redis-py nor a context of one's own."""
    context: Any = _Context()
    config = IdempotencyConfig()
    config.register_lambda_context(context)
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # of its own alias
        layer = CachePersistenceLayer(client=client)
    guard = idempotent_function(data_keyword_argument="order", persistence_store=layer, config=config)
    guarded: Callable[..., Any] = guard(_ship)
    return guarded


def _ship(order: dict[str, Any]) -> dict[str, Any]:
    return RESULT


def _callers(label: str, act: Callable[[int], object]) -> Callers:
    return Threads(count_in(label), act) if label.endswith("threads") else One(act)
