"""A client that costs next to nothing: ready-made requests on one connection that stays open."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from tests.servers.address import free_port

from .contenders.middleware import BODY

__all__ = ["Caller", "serve"]

ROOT = Path(__file__).parents[1]
PATIENCE = 60.0
HEAD = (
    "POST /pay HTTP/1.1\r\nHost: shop\r\nContent-Type: application/json\r\nAuthorization: Bearer abc\r\n"
    "Content-Length: {length}\r\nIdempotency-Key: {key}\r\n\r\n"
)


class Caller:
    """One connection. Each call sends a key and hears the whole answer."""

    def __init__(self, port: int, keys: Callable[[], str]) -> None:
        self._keys = keys
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __call__(self, _: int = 0) -> None:
        head = HEAD.format(length=len(BODY), key=self._keys())
        self._socket.sendall(head.encode() + BODY)
        answer = b""
        while not _is_whole(answer):
            answer += self._socket.recv(65536)
        assert answer.startswith(b"HTTP/1.1 201 "), answer

    def close(self) -> None:
        self._socket.close()


def _is_whole(answer: bytes) -> bool:
    head, found, body = answer.partition(b"\r\n\r\n")
    if not found:
        return False
    lowered = head.lower()
    if b"transfer-encoding: chunked" in lowered:
        return body.endswith(b"0\r\n\r\n")
    length = lowered.partition(b"content-length: ")[2].partition(b"\r\n")[0]
    return len(body) >= int(length or b"0")


def serve(name: str, url: str, stack: ExitStack) -> int:
    """Start one of the apps in a process of its own; the port it listens on."""
    port = free_port()
    command = [sys.executable, "-m", "bench.contenders.middleware", name, str(port), url]
    process = subprocess.Popen(command, cwd=ROOT)
    stack.callback(process.wait)
    stack.callback(process.kill)
    until = time.monotonic() + PATIENCE
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return port
        if process.poll() is not None:
            raise RuntimeError(f"{name} did not start; run it by hand: {' '.join(command)}")
        assert time.monotonic() < until, f"{name} does not listen"
        time.sleep(0.02)
