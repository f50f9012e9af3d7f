"""Readiness, Prometheus counts, traces, access log."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from ..app.app import App
from ..claims.claim import QUEUED
from ..clock import Clock
from ..errors import Misuse, StoreError
from ..flows.history.queries import StateCounts, count_states
from ..flows.workers.log import About, about_var
from ..inbound.envelope import InboundOutcome
from ..operations import await_, block
from ..records import Address, Found
from .openapi import describe
from .routing import ApiRoute
from .tokens import Principal

if TYPE_CHECKING:
    from ..flows.workers.worker import Worker

__all__ = [
    "CONTENT_TYPE",
    "DOCUMENTED",
    "PATIENCE",
    "WORK",
    "Metrics",
    "MetricsPort",
    "Question",
    "ServerStatus",
    "Traces",
    "WorkMetrics",
    "find_traces",
    "write_access",
]


log = logging.getLogger("twiceproof.access")


def write_access(
    method: str,
    path: str,
    status: int,
    seconds: float,
    principal: Principal | None,
    client: str,
    told: list[InboundOutcome],
) -> None:
    """Key and run are fields of the record, as they are of a run's own lines; the door is no flow."""
    if not log.isEnabledFor(logging.INFO):
        return
    who = f" {principal.name}@{principal.tenant}" if principal is not None and principal.name else ""
    if not told:
        log.info("%s %s %d in %.1f ms, from %s%s", method, path, status, seconds * 1000, client, who)
        return
    first = told[0]
    token = about_var.set(About(first.run, first.run, key=first.key, door=first.door))
    try:
        log.info("%s %s %d in %.1f ms, from %s%s: %s", method, path, status, seconds * 1000, client, who, first.outcome)
    finally:
        about_var.reset(token)


CONTENT_TYPE = CONTENT_TYPE_LATEST
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)

DOCUMENTED = {
    "twiceproof_requests_total": "Requests answered, by route and status",
    "twiceproof_request_seconds": "Time from a request's last byte to its answer, by route",
    "twiceproof_outcomes_total": "What became of events, claims and starts, by door and outcome",
    "twiceproof_duplicates_blocked_total": "Duplicates that were answered and not worked on, by door",
    "twiceproof_refused_total": "Callers turned away before any route, by reason",
    "twiceproof_requests_under_way": "Requests that are being worked on",
    "twiceproof_connections": "Connections that are open",
    "twiceproof_runs_begun_total": "Runs that the worker in this process has begun",
    "twiceproof_runs_under_way": "Runs that the worker in this process is at",
    "twiceproof_runs_queued": "Runs that wait for a worker, of all tenants; counted up to 1,000",
    "twiceproof_runs": "Runs in each state but done, of all tenants; counted up to 1,000",
    "twiceproof_claims": "Claims that are no runs, in each state but done; counted up to 1,000",
    "twiceproof_dead_letters": "Deliveries that were kept aside, of all tenants; counted up to 1,000",
}
WORK = (
    "twiceproof_runs_begun_total",
    "twiceproof_runs_under_way",
    "twiceproof_runs_queued",
    "twiceproof_runs",
    "twiceproof_claims",
    "twiceproof_dead_letters",
)


class WorkMetrics:
    """What a worker has done, and what is in the store. One registry each: two in one process do not count together."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._begun = self._gauge("twiceproof_runs_begun_total")
        self._running = self._gauge("twiceproof_runs_under_way")
        self._queued = self._gauge("twiceproof_runs_queued")
        self._runs = self._gauge("twiceproof_runs", "state")
        self._claims = self._gauge("twiceproof_claims", "state")
        self._letters = self._gauge("twiceproof_dead_letters")

    def _counter(self, name: str, *labels: str) -> Counter:
        return Counter(name, DOCUMENTED[name], labels, registry=self.registry)

    def _gauge(self, name: str, *labels: str) -> Gauge:
        return Gauge(name, DOCUMENTED[name], labels, registry=self.registry)

    def counted(self, counts: StateCounts) -> None:
        self._queued.set(counts.runs[QUEUED])
        self._letters.set(counts.letters)
        for gauge, known in ((self._runs, counts.runs), (self._claims, counts.claims)):
            for state, count in known.items():
                gauge.labels(state).set(count)

    def text(self, worker: Worker | None) -> bytes:
        if worker is not None:
            self._begun.set(worker.begun)
            self._running.set(worker.taken)
        return generate_latest(self.registry)


class Metrics(WorkMetrics):
    """A server's, with the worker inside."""

    def __init__(self) -> None:
        super().__init__()
        self._requests = self._counter("twiceproof_requests_total", "route", "status")
        self._seconds = Histogram(
            "twiceproof_request_seconds",
            DOCUMENTED["twiceproof_request_seconds"],
            ["route"],
            buckets=BUCKETS,
            registry=self.registry,
        )
        self._outcomes = self._counter("twiceproof_outcomes_total", "door", "outcome")
        self._duplicates = self._counter("twiceproof_duplicates_blocked_total", "door")
        self._refused = self._counter("twiceproof_refused_total", "reason")
        self.under_way = self._gauge("twiceproof_requests_under_way")
        self.connections = self._gauge("twiceproof_connections")
        self._answers: dict[tuple[str, int], Counter] = {}
        self._times: dict[str, Histogram] = {}
        self._told: dict[tuple[str, str], list[Counter]] = {}

    def answered(self, route: str, status: int, seconds: float) -> None:
        """Children are kept: finding one by its labels costs more than counting."""
        child = self._answers.get((route, status))
        if child is None:
            child = self._answers[route, status] = self._requests.labels(route, str(status))
            self._times.setdefault(route, self._seconds.labels(route))
        child.inc()
        self._times[route].observe(seconds)

    def refused(self, reason: str) -> None:
        self._refused.labels(reason).inc()

    def told(self, events: Iterable[InboundOutcome]) -> None:
        for one in events:
            known = self._told.get((one.door, one.outcome))
            if known is None:
                known = self._told[one.door, one.outcome] = self._counters_of(one)
            for counter in known:
                counter.inc()

    def _counters_of(self, one: InboundOutcome) -> list[Counter]:
        counters = [self._outcomes.labels(one.door, one.outcome)]
        return [*counters, self._duplicates.labels(one.door)] if one.outcome == "duplicate" else counters


T = TypeVar("T")

PROBE = Address("~tokens", "probe", "readyz")
PATIENCE = 2.0  # a store that takes longer does not answer
FRESH = 1.0  # seconds for which an answer is good: anybody may ask
COUNT_FRESH = 15.0


class ServerStatus:
    """One per server. `draining`: send nothing new here."""

    def __init__(self, app: App, routes: tuple[ApiRoute, ...]) -> None:
        self.app = app
        self.routes = routes
        self.metrics = Metrics()
        self.worker: Worker | None = None
        self.draining = False
        self._ready = Question(self._read, app.clock, FRESH)
        self._counts = Question(self._count, app.clock, COUNT_FRESH)

    @cached_property
    def description(self) -> bytes:
        return describe(self.routes)

    async def is_ready(self) -> bool:
        """The store answers, just now."""
        return await self._ready.answer() is not None

    async def _read(self) -> Found:
        return await self.app.store.read(PROBE).wait()

    async def text(self) -> bytes:
        """A scrape. A store that does not answer leaves the last counts of what is in it."""
        counts = await self._counts.answer()
        if counts is not None:
            self.metrics.counted(counts)
        return self.metrics.text(self.worker)

    async def _count(self) -> StateCounts:
        return await await_(count_states(self.app.store))


class Question(Generic[T]):
    """Asked of the store once at a time, however many want to know, and answered within `PATIENCE`.

    A request to the store that is cancelled is waited for all the same, so that the truth about it is heard: with a
    time-out around it, the answer came when the driver gave up. Here it is left to itself, and nobody waits for it.
    """

    def __init__(self, ask: Callable[[], Coroutine[Any, Any, T]], clock: Clock, fresh: float) -> None:
        self._ask = ask
        self._clock = clock
        self._fresh = fresh
        self._task: asyncio.Task[T | None] | None = None
        self._asked_at = 0.0

    async def answer(self) -> T | None:
        """None: the store has not answered, or not in time."""
        now = self._clock.monotonic()
        task = self._task
        if task is None or (task.done() and (now >= self._asked_at + self._fresh)):
            task = self._task = asyncio.create_task(self._asked())
            self._asked_at = now
        left = self._asked_at + PATIENCE - now
        if not task.done() and left > 0:
            await asyncio.wait({task}, timeout=left)
        return task.result() if task.done() and not task.cancelled() else None

    async def _asked(self) -> T | None:
        try:
            return await self._ask()
        except StoreError:
            return None


class Traces:
    """The API only: where spans go is the user's to set up."""

    def __init__(self, tracer: Any, propagate: Any, kind: Any) -> None:
        self._tracer = tracer
        self._propagate = propagate
        self._kind = kind

    @contextmanager
    def span(self, method: str, path: str, headers: Mapping[bytes, bytes]) -> Iterator[Any]:
        """Named for the route, never for the address: that may hold a secret."""
        carrier = {
            name.decode("latin-1"): value.decode("latin-1")
            for name, value in headers.items()
            if name in (b"traceparent", b"tracestate", b"baggage")
        }
        attributes = {"http.request.method": method, "http.route": path}
        with self._tracer.start_as_current_span(
            f"{method} {path}",
            context=self._propagate.extract(carrier),
            kind=self._kind,
            attributes=attributes,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            yield span

    @staticmethod
    def end(span: Any, status: int, told: list[InboundOutcome]) -> None:
        span.set_attribute("http.response.status_code", status)
        for one in told[:10]:
            span.add_event(one.outcome, {"door": one.door, "key": one.key, "run": one.run})


def find_traces() -> Traces | None:
    """None: nobody would see them, and they are not free."""
    try:
        from opentelemetry import propagate, trace
    except ImportError:
        return None
    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        return None
    return Traces(trace.get_tracer("twiceproof"), propagate, trace.SpanKind.SERVER)


COUNTS_FRESH = 15.0  # seconds for which a count is good
SLOWEST = 10.0  # seconds in which a request must be here


class MetricsPort:
    """Answers `GET /metrics` and `GET /healthz`, nothing else, on a thread of its own, until it is closed."""

    def __init__(self, app: App, worker: Worker, host: str, port: int) -> None:
        self._app = app
        self._worker = worker
        self._metrics = WorkMetrics()
        self._counting = threading.Lock()
        self._counted_until = 0.0
        self._server = _listening(host, port, self.text)
        self._thread = threading.Thread(target=self._server.serve_forever, name="twiceproof-metrics", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        host, port = self._server.server_address[:2]
        return f"http://{host!s}:{port}/metrics"

    def text(self) -> bytes:
        """While somebody else counts, or the store does not answer, what was counted last."""
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
            self._metrics.counted(block(count_states(self._app.store)))

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # a scrape that waits for the store does not keep the worker


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
                self._answer(404, "text/plain", b"There is /metrics and /healthz.\n")

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
            f"{host} port {port} cannot be listened at ({error.strerror or error}); choose another --metrics-port."
        ) from None
