"""HTTP with the standard library alone: the same front for the accounting service and for both programs."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

__all__ = ["Handler", "open_front"]


class Handler(BaseHTTPRequestHandler):
    """Subclasses say what to do for `do_POST` and the like."""

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("content-length") or 0))

    def answer(self, status: int, body: bytes = b"{}") -> None:
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def answer_json(self, status: int, value: Any) -> None:
        self.answer(status, json.dumps(value).encode())

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name in the base class
        """No line per request."""


class _Front(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A caller that was killed or has lost its patience is part of the weather."""


def open_front(handler: type[Handler], port: int = 0) -> int:
    """Serve on loopback, in threads of its own; the port."""
    front = _Front(("127.0.0.1", port), handler)
    threading.Thread(target=front.serve_forever, daemon=True).start()
    return int(front.server_address[1])
