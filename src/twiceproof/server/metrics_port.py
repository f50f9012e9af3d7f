"""MetricsPort: metrics of a worker that runs without a server."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

from ..errors import Misuse, StoreError
from ..flows.history.queries import count_states
from ..operations import block
from ..reconcile.findings import count_findings
from ..threads import start_thread
from .monitoring import CONTENT_TYPE, WorkMetrics

if TYPE_CHECKING:
    from ..app.app import App
    from ..flows.workers.worker import Worker

__all__ = ["MetricsPort"]


COUNTS_FRESH = 15.0  # seconds for which a count is reused
SLOWEST = 10.0  # seconds within which a request must be received


class MetricsPort:
    """Serves only `GET /metrics` and `GET /healthz`, on its own thread, until it is closed."""

    def __init__(self, app: App, worker: Worker, host: str, port: int) -> None:
        self._app = app
        self._worker = worker
        self._metrics = WorkMetrics()
        self._counting = threading.Lock()
        self._counted_until = 0.0
        self._server = _listening(host, port, self.text)
        self._thread = start_thread(self._server.serve_forever, "twiceproof-metrics")

    @property
    def url(self) -> str:
        host, port = self._server.server_address[:2]
        return f"http://{host!s}:{port}/metrics"

    def text(self) -> bytes:
        """Return the metrics; the last counts while another scrape is counting or the store does not answer."""
        if self._counting.acquire(blocking=False):
            try:
                self._count()
            finally:
                self._counting.release()
        return self._metrics.text(self._worker)

    def _count(self) -> None:
        now = self._app.clock.monotonic()
        if now < self._counted_until:
            return
        self._counted_until = now + COUNTS_FRESH
        with suppress(StoreError):
            self._metrics.set_counts(block(count_states(self._app.store)))
            self._metrics.set_findings(block(count_findings(self._app.store)))

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # a scrape that waits for the store must not delay the worker's exit


def _listening(host: str, port: int, text: Callable[[], bytes]) -> _Server:
    class Handler(BaseHTTPRequestHandler):
        timeout = SLOWEST
        server_version, sys_version = "twiceproof", ""

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path == "/metrics":
                self._answer(200, CONTENT_TYPE, text())
            elif path == "/healthz":
                self._answer(200, "application/json", b'{"status":"alive"}')
            else:
                self._answer(404, "text/plain", b"Available: /metrics and /healthz.\n")

        def _answer(self, status: int, kind: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            self.send_header("x-content-type-options", "nosniff")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Scrapes are not logged."""

    try:
        return _Server((host, port), Handler)
    except OSError as error:
        raise Misuse(
            f"Cannot listen on {host} port {port} ({error.strerror or error}); choose another --metrics-port."
        ) from None
