"""A shop behind a real server process: served by `twiceproof serve`, talked to over a socket, killed by its id."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

SHOP = """
import os, signal
from twiceproof import App
from twiceproof.prove.clocks import ShiftedClock

clock = ShiftedClock()
clock.shift = float(os.environ.get("SHOP_SHIFT", "0"))
app = App("sqlite:///shop.db", clock=clock)
sent = open("links.txt", "a", buffering=1)

@app.step(repeat="safe")
def send_link(order, to):
    sent.write(app.approval_url("charge", show=order, to=to) + "\\n")

@app.flow(key="order:{order[id]}")
def charge_order(order):
    for to in order["approvers"]:
        send_link(order, to)
    return app.approve("charge", show=order).by

if os.environ.get("SHOP_DIES"):
    from twiceproof.server.services import claim_service as service
    def write_token(*args):
        os.kill(os.getpid(), signal.SIGKILL)
        yield
    service.write_token = write_token  # the claim is durable, its answer never leaves
"""


class Heard:
    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    def __getitem__(self, field: str) -> Any:
        return json.loads(self.body)[field]


class HttpShop:
    """`shop.start()` serves it, `shop.kill()` ends it as a machine would, `shop(method, path, …)` calls it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = _free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[str] | None = None
        (folder / "shop.py").write_text(SHOP)

    def start(self, **environment: str) -> HttpShop:
        env = {**os.environ, "TWICEPROOF_URL": self.url, **environment}
        command = ["serve", "shop:app", "--port", str(self.port), "--json", "--no-access-log"]
        with (self.folder / "server.log").open("a") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "twiceproof.cli.main", *command],
                cwd=self.folder,
                env=env,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, (self.folder / "server.log").read_text()
        return self

    def kill(self) -> None:
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGKILL)
            self.ended()

    def ended(self) -> int:
        assert self.process is not None and self.process.stdout is not None
        code = self.process.wait(timeout=20)
        self.process.stdout.close()
        self.process = None
        return code

    def cli(self, *words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "twiceproof.cli.main", "--store", "sqlite:///shop.db", *words],
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        return done.stdout

    def token(self, name: str, *scopes: str, tenant: str = "default") -> str:
        asked = [word for scope in scopes for word in ("--scope", scope)]
        return str(json.loads(self.cli("--tenant", tenant, "tokens", "create", name, *asked, "--json"))["token"])

    def links(self, count: int) -> list[str]:
        """The paths of the links that were sent, once there are so many."""
        for _ in range(600):
            lines = (self.folder / "links.txt").read_text().split()
            if len(lines) >= count and self("GET", "/v1/approvals")["approvals"]:
                return [line.removeprefix(self.url) for line in lines]
            signal.sigtimedwait([], 0.05)
        raise AssertionError((self.folder / "server.log").read_text())

    def __call__(self, method: str, path: str, value: Any = None, *, token: str = "", **headers: str) -> Heard:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        body = value if isinstance(value, bytes) else None if value is None else json.dumps(value).encode()
        named = {name.replace("_", "-"): text for name, text in headers.items()}
        if body is not None:
            named.setdefault("content-type", "application/json")
        if token:
            named["authorization"] = f"Bearer {token}"
        try:
            connection.request(method, path, body, named)
            answer = connection.getresponse()
            return Heard(answer.status, {name.lower(): text for name, text in answer.getheaders()}, answer.read())
        finally:
            connection.close()


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
