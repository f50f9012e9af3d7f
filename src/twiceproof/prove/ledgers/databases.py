"""Ledgers in an empty Redis database that the user names. One that holds anything is refused."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from ...errors import Misuse, StoreUnavailable
from ...stores.base import Engine
from ..clocks import ManualClock
from .told_clock import ToldClock

__all__ = ["DatabaseLedgers"]

CLOCK = "twiceproof:prove:clock"
OURS = "twiceproof:*"
NOW = f"local micros = tonumber(redis.call('GET', '{CLOCK}'))"


class DatabaseLedgers:
    """Only keys of ours are ever removed; should others have written into it meanwhile, theirs stay."""

    def __init__(self, url: str) -> None:
        if not urlsplit(url).path.strip("/").isdecimal():
            raise Misuse("Name an empty database for the plays by its number, such as redis://localhost:6379/15.")
        self._url = url
        self._link = _connected(url)

    def prepare(self) -> str:
        if self._call("DBSIZE"):
            raise Misuse(f"Database {urlsplit(self._url).path[1:]} is not empty; name one that is, such as …/15.")
        return self._url

    def open(self, name: str, at: float | None = None) -> tuple[Engine, ManualClock]:
        from ...stores.redis import RedisEngine

        class Played(RedisEngine):
            now_lua = NOW

        link = _connected(name)
        clock = ToldClock(lambda now: _call(link, "SET", CLOCK, str(round(now * 1_000_000))), at)
        return Played(name, clock=clock), clock

    def forget(self, name: str) -> None:
        cursor: Any = b"0"
        while True:
            cursor, keys = self._call("SCAN", cursor, "MATCH", OURS, "COUNT", "1000")
            if keys:
                self._call("DEL", *keys)
            if int(cursor) == 0:
                return

    def close(self) -> None:
        self._link.disconnect()

    def _call(self, *words: Any) -> Any:
        return _call(self._link, *words)


def _connected(url: str) -> Any:
    try:
        from redis import SSLConnection
        from redis.connection import Connection

        from ...stores.redis_target import Target
    except ImportError:
        raise Misuse("This store needs redis, which is not installed; run: pip install 'twiceproof[redis]'") from None
    target = Target.of(url)
    return (SSLConnection if target.tls else Connection)(host=target.host, port=target.port, **target.settings)


def _call(link: Any, *words: Any) -> Any:
    from redis.exceptions import RedisError

    try:
        link.send_command(*words)
        return link.read_response()
    except (RedisError, OSError) as error:
        raise StoreUnavailable(
            f"Redis does not answer ({error}); check that it runs and that the URL is right."
        ) from None
