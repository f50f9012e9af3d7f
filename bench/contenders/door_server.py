"""The server that is measured: an app with one webhook, and beside it a route that does nothing.

`python -m bench.contenders.door_server <url of a store>` prints its address, and serves until its input ends.
"""

from __future__ import annotations

import hashlib
import hmac
import itertools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from twiceproof import App
from twiceproof.inbound.reply import Reply, json_reply
from twiceproof.inbound.source import Envelope, Event, Reading, Source

from ..http_load import HttpCallers, request_bytes
from ..rounds import Contender

__all__ = ["DoorServer"]

ROOT = Path(__file__).parents[2]
SECRET = "measured"
ANSWER = {"received": True, "duplicate": False, "state": "nothing"}


# -- in the bench --------------------------------------------------------------------------------


class DoorServer:
    """One server process on one store."""

    def __init__(self, url: str) -> None:
        command = [sys.executable, "-m", "bench.contenders.door_server", url]
        self._child = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self._child.stdout is not None
        host, _, port = self._child.stdout.readline().strip().rpartition("//")[2].partition(":")
        self.address = (host, int(port))
        self._url = url
        self._ids = itertools.count(1)

    @property
    def processor_time(self) -> float:
        """Seconds of a processor that the server process has used so far."""
        fields = Path(f"/proc/{self._child.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def nothing(self) -> Contender:
        return self._contender("a handler that does nothing", "/nothing", lambda: _event("nothing"))

    def new(self) -> Contender:
        return self._contender("new webhooks", "/hooks/measured", lambda: _event(f"new_{next(self._ids)}"))

    def duplicates(self, count: int) -> Contender:
        """Of so many events, taken in before, and their runs done."""
        known = itertools.count()
        first = self._contender(
            "first", "/hooks/measured", lambda: _event(f"known_{next(known)}"), connections=1
        ).callers
        first.time(count)
        first.close()
        with make_app(self._url) as app:  # a run that is not done is looked at each time: it may have failed
            app.worker().run(until_idle=True)
        again = itertools.cycle(range(count))
        return self._contender("duplicate webhooks", "/hooks/measured", lambda: _event(f"known_{next(again)}"))

    def _contender(self, name: str, path: str, make: Any, connections: int = 64) -> Contender:
        def request() -> bytes:
            body = make()
            return request_bytes(path, body, {"x-signature": _signature(body)})

        return Contender(name, HttpCallers(self.address, request, connections))

    def __enter__(self) -> DoorServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._child.stdin is not None
        self._child.stdin.close()
        self._child.wait(30)
        assert self._child.stdout is not None
        self._child.stdout.close()


def _event(name: str) -> bytes:
    return msgspec.json.encode(
        {"id": f"evt_{name}", "type": "order.paid", "data": {"order": name, "total": "12.50", "currency": "EUR"}}
    )


def _signature(body: bytes) -> str:
    return hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()


# -- in the child --------------------------------------------------------------------------------


class Measured(Source):
    name = "measured"

    def verify(self, envelope: Envelope, secrets: Sequence[str], now: float) -> str:
        signs = (hmac.digest(secret.encode(), envelope.body, "sha256").hex() for secret in secrets)
        given = envelope.header("x-signature")
        return "" if any(hmac.compare_digest(sign, given) for sign in signs) else "wrong signature"

    def read(self, envelope: Envelope) -> Reading:
        value = msgspec.json.decode(envelope.body)
        return [Event(value["id"], value, value["type"])]


def make_app(url: str) -> App:
    app = App(url)

    @app.flow(key="order:{event[id]}")
    def sync(event: dict[str, Any]) -> None:
        """Left to workers, of which there are none while it is measured."""

    app.webhook(Measured(), secret=SECRET, start=sync)
    return app


def main(url: str) -> None:
    from twiceproof.cli.output import set_up_logs
    from twiceproof.server import auth as policy
    from twiceproof.server.app import make_application
    from twiceproof.server.limits import ServerLimits
    from twiceproof.server.request import ApiRequest
    from twiceproof.server.routes import ROUTES
    from twiceproof.server.routing import ApiRoute
    from twiceproof.server.serve import DrainingServer, bind_socket, url_of
    from twiceproof.server.tokens import Scope

    async def nothing(call: ApiRequest) -> Reply:
        return json_reply(200, ANSWER)

    policy.POLICY["POST", "/nothing"] = Scope.PROVEN
    set_up_logs(as_json=False)
    with make_app(url) as app:
        routes = (*ROUTES, ApiRoute("POST", "/nothing", "nothing", nothing))
        application = make_application(app, routes, limits=ServerLimits(deadline=10.0))
        made = bind_socket("127.0.0.1", 0)
        threading.Thread(target=_end_with_input, daemon=True).start()
        DrainingServer(application, drain=1.0, announce=lambda: print(url_of(made), flush=True)).run(sockets=[made])


def _end_with_input() -> None:
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main(sys.argv[1])
