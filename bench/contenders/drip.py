"""Slow senders: connections that send one byte of a request now and then, and come again when they are cut off.

`python -m bench.contenders.drip <host> <port> <count>` prints a line when all are connected, and ends with its input.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType

__all__ = ["Drip"]

ROOT = Path(__file__).parents[2]
HEAD = b"POST /hooks/measured HTTP/1.1\r\nhost: bench\r\ncontent-length: 100000\r\nx-slow: "
EVERY = 0.5


class Drip:
    """So many slow senders, in a process of their own."""

    def __init__(self, address: tuple[str, int], count: int) -> None:
        command = [sys.executable, "-m", "bench.contenders.drip", address[0], str(address[1]), str(count)]
        self._child = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._child.stdout is not None
        self._child.stdout.readline()

    def __enter__(self) -> Drip:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._child.stdin is not None and self._child.stdout is not None
        self._child.stdin.close()
        self._child.wait(30)
        self._child.stdout.close()


def main(host: str, port: int, count: int) -> None:
    """Half of them drip their head, half their body."""
    over = threading.Event()
    threading.Thread(target=_end_with_input, args=(over,), daemon=True).start()
    senders = [_connected(host, port, number) for number in range(count)]
    print("dripping", flush=True)
    while not over.is_set():
        began = time.monotonic()
        for number, one in enumerate(senders):
            try:
                one.send(b"a")
                if one.recv(4096) == b"":
                    raise ConnectionError
            except BlockingIOError:
                pass
            except OSError:
                one.close()
                senders[number] = _connected(host, port, number)
        over.wait(max(0.0, EVERY - (time.monotonic() - began)))


def _end_with_input(over: threading.Event) -> None:
    sys.stdin.read()
    over.set()


def _connected(host: str, port: int, number: int) -> socket.socket:
    made = socket.create_connection((host, port), timeout=30)
    made.sendall(HEAD if number % 2 else HEAD + b"1\r\n\r\n")
    made.setblocking(False)
    return made


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
