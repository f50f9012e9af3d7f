"""Addresses: free loopback ports, and URLs that point to them."""

import os
import random
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote, urlencode, urlsplit, urlunsplit

FIRST, LAST = 15_000, 32_000


def _ports() -> range:
    """Each worker of a run has ports of its own: no other one takes a port between this look and the server's start."""
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    nth = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % workers
    each = (LAST - FIRST) // workers
    return range(FIRST + nth * each, FIRST + (nth + 1) * each)


def free_port() -> int:
    """A free loopback port below the ephemeral range.

    A port from `bind(0)` may be taken by any outgoing connection while its server is down for a restart,
    and a client that retries such a port can connect to itself.
    """
    dice = random.SystemRandom()  # the global one is seeded alike in every worker by test plugins
    while True:
        port = dice.choice(_ports())
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


@contextmanager
def closed_port() -> Iterator[int]:
    """A port that refuses connections. It is bound, so nobody else begins to listen there."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield int(bound.getsockname()[1])


def via(url: str, host: str, port: int) -> str:
    """The same URL with another host and port: user, database and options stay."""
    parts = urlsplit(url)
    login, at, _ = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"{login}{at}{host}:{port}"))


def postgres_url(parameters: Mapping[str, Any], dbname: str) -> str:
    """A DSN as a URL, from libpq's parameters."""
    rest = {name: str(value) for name, value in parameters.items() if name != "dbname"}
    user, password = rest.pop("user", ""), rest.pop("password", "")
    login = quote(user, safe="") + (f":{quote(password, safe='')}" if password else "")
    host, port = rest.pop("host", "127.0.0.1"), rest.pop("port", "5432")
    query = f"?{urlencode(rest)}" if rest else ""
    return f"postgresql://{login}{'@' if login else ''}{host}:{port}/{quote(dbname, safe='')}{query}"
