"""What a Redis URL says: where the servers are, how to connect, and what was asked of the store."""

from __future__ import annotations

import ipaddress
import socket
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from msgspec import Struct
from redis.backoff import NoBackoff
from redis.connection import parse_url
from redis.retry import Retry

from ...errors import Misuse

__all__ = ["MOST_LANES", "RedisUrl"]


SECONDS_TO_ANSWER = 5.0
LANES = 16
MOST_LANES = 1024
TLS_OPTIONS = {"ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs", "ssl_check_hostname"}
OURS = {"lanes", "durability"}
# A firewall drops an idle connection silently: a listener must not go on relying on it. Noticed
# within about ten seconds; where redis-py leaves it to the kernel (before 8), after two hours. macOS has another name.
IDLE = getattr(socket, "TCP_KEEPIDLE", getattr(socket, "TCP_KEEPALIVE", None))
KEEPALIVE = {IDLE: 5, socket.TCP_KEEPINTVL: 2, socket.TCP_KEEPCNT: 3} if IDLE is not None else {}


class RedisUrl(Struct, frozen=True):
    """`settings` are redis-py's, password and all: never print them."""

    host: str
    port: int
    cluster: bool
    tls: bool
    lanes: int
    durable: bool
    settings: dict[str, Any]

    @classmethod
    def of(cls, url: str) -> RedisUrl:
        try:
            parts = urlsplit(url)
            if parts.path.strip("/") and not parts.path[1:].isdecimal():
                raise ValueError  # redis-py would take 0, or run its digits together: another database than was meant
            options = dict(parse_qsl(parts.query, keep_blank_values=True))
            _refuse_unknown(options, tls=parts.scheme.startswith("rediss"))
            kept = urlencode({name: value for name, value in options.items() if name in TLS_OPTIONS})
            scheme = parts.scheme.removesuffix("+cluster")
            plain = urlunsplit(parts._replace(scheme=scheme, query=kept))
            settings = dict(parse_url(plain))  # type: ignore[no-untyped-call]
        except Misuse:
            raise
        except ValueError:  # whose text may quote a password with a stray slash or colon in it
            raise Misuse(
                "The Redis URL cannot be read; write redis://user:password@host:6379/0, with the database by its "
                "number, and special characters in the password percent-encoded."
            ) from None
        settings.pop("connection_class", None)  # for a pool, which we have none of
        cluster = parts.scheme.endswith("+cluster")
        if cluster and settings.pop("db", 0):
            raise Misuse("A Redis Cluster has only database 0; leave the number out of the URL.")
        return cls(
            host=settings.pop("host", "localhost"),
            port=settings.pop("port", 6379),
            cluster=cluster,
            tls=parts.scheme.startswith("rediss"),
            lanes=_lanes(options.get("lanes", str(LANES))),
            durable=_durable(options.get("durability", "full")),
            settings={**settings, **_manners()},
        )

    @property
    def loopback(self) -> bool:
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


def _manners() -> dict[str, Any]:
    """Bounded waits, and no second tries of redis-py's own: only the store above can tell a repeat from a race."""
    return {
        "socket_timeout": SECONDS_TO_ANSWER,
        "socket_connect_timeout": SECONDS_TO_ANSWER,
        "socket_keepalive": True,
        "socket_keepalive_options": KEEPALIVE,
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,
    }


def _refuse_unknown(options: dict[str, str], *, tls: bool) -> None:
    """An option that is accepted but not enforced is worse than none."""
    legal = OURS | (TLS_OPTIONS if tls else set())
    for name in options:
        if name not in legal:
            raise Misuse(f"The store URL has {name}=…, which is not known; use one of: {sorted(legal)}.")


def _lanes(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= MOST_LANES:
        raise Misuse(f"lanes={text} is out of range; give 1 to {MOST_LANES}.")
    return int(text)


def _durable(text: str) -> bool:
    if text not in ("full", "cache"):
        raise Misuse(
            f"durability={text} is not valid; leave it out, or give durability=cache for a "
            "server that may lose acknowledged writes."
        )
    return text == "full"
