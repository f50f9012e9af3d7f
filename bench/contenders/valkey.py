"""Valkey as it is commonly used: redis-py, one SET NX per claim."""

from __future__ import annotations

import itertools
import uuid
from contextlib import ExitStack

import redis

from ..callers import Act, One, Threads
from ..orders import LEASE, Keys, growing, typical_body
from ..rounds import Contender

__all__ = ["RawValkey"]


class RawValkey:
    """A database of its own. A SET NX keeps a key and a body: no index, no fence, no time of the server's."""

    def __init__(self, url: str, stack: ExitStack) -> None:
        self._client = redis.Redis.from_url(url, max_connections=128)
        stack.callback(self._client.close)
        self._body = typical_body()

    def sequential(self) -> Contender:
        return Contender("one SET NX", One(self._setting()))

    def concurrent(self) -> list[Contender]:
        return [Contender("one SET NX", Threads(count, self._setting())) for count in (8, 64)]

    def limits(self) -> list[Contender]:
        keys = _fresh_keys()

        def act(_: int) -> None:
            with self._client.pipeline(transaction=False) as pipe:
                for _ in range(64):
                    pipe.set(keys(), self._body, nx=True, ex=int(LEASE))
                pipe.execute()

        return [Contender("64 SET NX per round trip", One(act), rows=64)]

    def reading(self, count: int) -> Contender:
        keys = _fresh_keys()
        names = [keys() for _ in range(count)]
        self._client.mset(dict.fromkeys(names, self._body))
        turns = itertools.cycle(names)
        return Contender("GET of one key", One(lambda _: self._client.get(next(turns))))

    def _setting(self) -> Act:
        keys = _fresh_keys()
        return lambda _: self._client.set(keys(), self._body, nx=True, ex=int(LEASE))


def _fresh_keys() -> Keys:
    prefix, keys = f"{uuid.uuid4().hex[:8]}:", growing()
    return lambda: prefix + keys()
