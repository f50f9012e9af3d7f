"""How a step reaches the effect server: a connection for each thread, and an error when no answer comes."""

from __future__ import annotations

import json
import socket
import threading
from typing import Any

PATIENCE = 20.0


class Effects:
    """Requests in the name of `who`. After a broken connection the next request opens a new one."""

    def __init__(self, path: str, who: str) -> None:
        self._path = path
        self._who = who
        self._here = threading.local()

    def visit(self, order: int) -> None:
        """Announce who works on this order now. Not answered."""
        self._send({"verb": "visit", "order": order})

    def do(self, kind: str, order: int, key: str | None = None) -> int:
        """Return the receipt. After a ConnectionError the outcome is unknown."""
        return int(self._ask({"verb": "do", "kind": kind, "order": order, "key": key})["receipt"])

    def find(self, kind: str, order: int) -> int | None:
        found = self._ask({"verb": "find", "kind": kind, "order": order})["receipt"]
        return None if found is None else int(found)

    def lose(self, share: float) -> None:
        """From now on this share of the answers to `do` is lost."""
        self._ask({"verb": "lose", "share": share})

    def _ask(self, what: dict[str, Any]) -> dict[str, Any]:
        try:
            self._send(what)
            line = self._here.reader.readline()
            if not line.endswith(b"\n"):
                raise ConnectionResetError("the connection broke before an answer came")
        except OSError:
            self.close()
            raise
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _send(self, what: dict[str, Any]) -> None:
        if getattr(self._here, "socket", None) is None:
            self._open()
        self._here.socket.sendall((json.dumps({"who": self._who, **what}) + "\n").encode())

    def _open(self) -> None:
        made = socket.socket(socket.AF_UNIX)
        made.settimeout(PATIENCE)
        made.connect(self._path)
        self._here.socket, self._here.reader = made, made.makefile("rb")

    def close(self) -> None:
        """Close the calling thread's connection."""
        if getattr(self._here, "socket", None) is not None:
            self._here.reader.close()
            self._here.socket.close()
            self._here.socket = None
