"""HTTP callers that cost little: one thread, many keep-alive connections, each with one request under way at a time."""

from __future__ import annotations

import selectors
import socket
import time
from collections import Counter
from collections.abc import Callable
from typing import cast

__all__ = ["HttpCallers", "request_bytes"]

LENGTH = b"content-length: "
BUFFER = 65536


def request_bytes(path: str, body: bytes, headers: dict[str, str] | None = None, method: str = "POST") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "host: bench", f"content-length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in {"content-type": "application/json", **(headers or {})}.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


class HttpCallers:
    """`make` gives the next request. Anything but the expected status is an error: a refusal is quick, and no work."""

    def __init__(
        self, address: tuple[str, int], make: Callable[[], bytes], count: int = 64, expected: int = 200
    ) -> None:
        self.label = f"{count} connections"
        self.count = count
        self.latencies: list[float] = []  # of the last turn
        self._make = make
        self._expected = b" %d " % expected
        self._sockets = [socket.create_connection(address, timeout=30) for _ in range(count)]
        for one in self._sockets:
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def time(self, each: int) -> float:
        """Requests are made before the clock starts: making them is not what is measured."""
        requests = [[self._make() for _ in range(each)] for _ in self._sockets]
        with selectors.DefaultSelector() as selector:
            return self._turn(selector, requests)

    def _turn(self, selector: selectors.BaseSelector, requests: list[list[bytes]]) -> float:
        wrong: Counter[bytes] = Counter()
        latencies: list[float] = []
        began = time.perf_counter()
        for one, mine in zip(self._sockets, requests, strict=True):
            selector.register(one, selectors.EVENT_READ, [mine, b"", time.perf_counter()])
            one.sendall(mine.pop())
        under_way = len(self._sockets)
        while under_way:
            for key, _ in selector.select():
                one, state = cast(socket.socket, key.fileobj), key.data
                state[1] += one.recv(BUFFER)
                if not _is_whole(state[1]):
                    continue
                latencies.append(time.perf_counter() - state[2])
                if self._expected not in state[1][:16]:
                    wrong[state[1][:16]] += 1
                state[1] = b""
                if state[0]:
                    state[2] = time.perf_counter()
                    one.sendall(state[0].pop())
                else:
                    selector.unregister(one)
                    under_way -= 1
        took = time.perf_counter() - began
        if wrong:
            raise RuntimeError(f"answers other than{self._expected.decode()}: {dict(wrong)}")
        self.latencies = latencies
        return took

    def close(self) -> None:
        for one in self._sockets:
            one.close()


def _is_whole(answer: bytes) -> bool:
    if not answer:
        raise ConnectionError("the server hung up")
    end = answer.find(b"\r\n\r\n")
    if end < 0:
        return False
    at = answer.find(LENGTH, 0, end)
    length = int(answer[at + len(LENGTH) : answer.find(b"\r", at)]) if at >= 0 else 0
    return len(answer) >= end + 4 + length
