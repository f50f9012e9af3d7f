"""`twiceproof serve` as a real process, on a shop of its own, and ways to talk to it byte by byte."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

SHOP = '''
import os, signal, time
import msgspec
from twiceproof import App
from twiceproof.inbound.source import Event, Poison, Source
from twiceproof.operations import block


class Post(Source):
    name = "post"
    largest = 1_000_000

    def verify(self, envelope, secrets, now):
        return "" if envelope.header("x-secret") in secrets else "wrong secret"

    def read(self, envelope):
        try:
            order = msgspec.json.decode(envelope.body, type=dict)
            return [Event(order["id"], order)]
        except (msgspec.MsgspecError, KeyError, UnicodeDecodeError) as error:
            return Poison(str(error))

    def sample(self, secret, now, payload=None):
        raise NotImplementedError


app = App()


@app.step(repeat="safe")
def ship(order):
    with open("effects.txt", "a") as effects:
        effects.write(f"{order['id']}\\n")
    while os.path.exists("hold"):
        time.sleep(0.02)


@app.step(repeat="safe")
def bill(order):
    with open("effects.txt", "a") as effects:
        effects.write(f"bill {order['id']}\\n")


@app.flow(key="order:{order[id]}", lease=2.0)
def sync(order):
    ship(order)
    bill(order)
    return order["id"]


def killed_after_claim(payload):
    """Between claim and answer: the event is claimed, its run is not started."""
    if os.path.exists("kill"):
        os.unlink("kill")
        os.kill(os.getpid(), signal.SIGKILL)
    return payload


def slow(payload):
    time.sleep(0.5)
    return payload


app.webhook(Post(), secret="s3cret", name="post", start=sync)
app.webhook(Post(), secret="s3cret", name="deadly", start=sync)(killed_after_claim)
app.webhook(Post(), secret="s3cret", name="slow", start=sync)(slow)
'''


class HttpServer:
    """Started with port 0; heard through its pipe; ended by its id."""

    def __init__(self, folder: Path, *words: str, store: str = "", json_lines: bool = True, shop: str = SHOP) -> None:
        self.folder = folder
        (folder / "shop.py").write_text(shop)
        environment = {**os.environ, "TWICEPROOF_STORE": store or f"sqlite:///{folder}/shop.db"}
        self.environment = environment
        command = [sys.executable, "-m", "twiceproof", "serve", "shop:app", "--port", "0", "--lame-duck", "0s", *words]
        self.errors = (folder / f"stderr-{len(list(folder.glob('stderr-*')))}.txt").open("w+")
        self.process = subprocess.Popen(
            [*command, "--json"], cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=self.errors, text=True
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        self.url = json.loads(line)["url"] if line.startswith('{"url"') else ""
        parts = urlsplit(self.url)
        self.address = (parts.hostname or "", parts.port or 0)

    def call(
        self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None, timeout: float = 30
    ) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection(*self.address, timeout=timeout)
        with contextlib.closing(connection):
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()

    def post(self, order: str, hook: str = "post", **more: Any) -> dict[str, Any]:
        body = json.dumps({"id": order}).encode()
        status, _, answer = self.call("POST", f"/hooks/{hook}", body, {"x-secret": "s3cret"}, **more)
        return {"status": status, **json.loads(answer)}

    def connect(self) -> socket.socket:
        return socket.create_connection(self.address, timeout=30)

    def effects(self) -> list[str]:
        path = self.folder / "effects.txt"
        return path.read_text().split("\n")[:-1] if path.exists() else []

    def tell(self, sign: signal.Signals) -> None:
        self.process.send_signal(sign)

    def wait(self, timeout: float = 30) -> int:
        return self.process.wait(timeout)

    def said(self) -> str:
        self.errors.flush()
        return Path(self.errors.name).read_text()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.errors.close()


@contextlib.contextmanager
def in_background(work: Any) -> Iterator[list[Any]]:
    """What it returned, or what it raised, is in the list afterwards."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(work())
        except Exception as error:  # noqa: BLE001 - looked at by the test
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield found
    thread.join(60)
