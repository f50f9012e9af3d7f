"""Readiness, Prometheus metrics, traces, and the access log."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from ..app.app import App
from ..claims.claim import QUEUED
from ..clock import Clock
from ..errors import StoreError
from ..flows.history.queries import StateCounts, count_states
from ..flows.workers.log import About, about_var
from ..inbound.source import InboundOutcome
from ..operations import await_
from ..reconcile.findings import FindingCounts, count_findings
from ..records import Address, Found
from .openapi import describe
from .routing import ApiRoute
from .tokens import Principal

if TYPE_CHECKING:
    from ..flows.workers.worker import Worker

__all__ = [
    "CONTENT_TYPE",
    "DOCUMENTED",
    "TIMEOUT",
    "WORK",
    "CachedRead",
    "Metrics",
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
    outcomes: list[InboundOutcome],
) -> None:
    """Write one access log line. Key, run and entry point are fields of the log record."""
    if not log.isEnabledFor(logging.INFO):
        return
    caller = f" {principal.name}@{principal.tenant}" if principal is not None and principal.name else ""
    if not outcomes:
        log.info("%s %s %d in %.1f ms, from %s%s", method, path, status, seconds * 1000, client, caller)
        return
    first = outcomes[0]
    token = about_var.set(About(first.run, first.run, key=first.key, entry_point=first.entry_point))
    try:
        log.info(
            "%s %s %d in %.1f ms, from %s%s: %s", method, path, status, seconds * 1000, client, caller, first.outcome
        )
    finally:
        about_var.reset(token)


CONTENT_TYPE = CONTENT_TYPE_LATEST
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)

DOCUMENTED = {
    "twiceproof_requests_total": "Requests answered, by route and status",
    "twiceproof_request_seconds": "Seconds from a request's last byte to its response, by route",
    "twiceproof_outcomes_total": "Events, claims and starts, by entry point and outcome",
    "twiceproof_duplicates_blocked_total": "Duplicates that were blocked, by entry point",
    "twiceproof_refused_total": "Requests refused before any route, by reason",
    "twiceproof_requests_under_way": "Requests being processed",
    "twiceproof_connections": "Open connections",
    "twiceproof_runs_begun_total": "Runs that the worker in this process has started",
    "twiceproof_runs_under_way": "Runs that the worker in this process is executing",
    "twiceproof_runs_queued": "Runs waiting for a worker, of all tenants; counted up to 1,000",
    "twiceproof_runs": "Runs in each state except done, of all tenants; counted up to 1,000",
    "twiceproof_claims": "Claims that are not runs, in each state except done; counted up to 1,000",
    "twiceproof_dead_letters": "Dead letters of all tenants; counted up to 1,000",
    "twiceproof_approvals": "Approvals that wait for a decision, of all tenants; counted up to 1,000",
    "twiceproof_deliveries_total": "Deliveries of queues that this process has admitted, by consumer and outcome",
    "twiceproof_redeliveries_total": "Of these, deliveries that were not a message's first, by consumer",
    "twiceproof_queue_waiting": "Messages that wait in a queue, by consumer; where the broker can tell",
    "twiceproof_findings_open": "Open findings of all tenants, by reconciliation and check; counted up to 1,000",
    "twiceproof_last_whole_run_age_seconds": "Seconds since the last run that read all sources whole",
    "twiceproof_source_rows": "Rows of a source's last whole reading, of all tenants",
    "twiceproof_messages": "Messages in each state except sent and dropped, of all tenants; counted up to 1,000",
    "twiceproof_messages_oldest_seconds": "Age of the oldest pending message; 0 if there is none",
    "twiceproof_lanes_held": "Order keys blocked by a message in review; counted up to 1,000",
    "twiceproof_messages_relayed_total": "Attempts of the relay in this process, by target and outcome",
    "twiceproof_publish_calls_total": "Times that the relay in this process has published messages together, by target",
    "twiceproof_publish_seconds_total": "Seconds that these took until the target had answered, by target",
}
WORK = (
    "twiceproof_runs_begun_total",
    "twiceproof_runs_under_way",
    "twiceproof_runs_queued",
    "twiceproof_runs",
    "twiceproof_claims",
    "twiceproof_dead_letters",
    "twiceproof_approvals",
    "twiceproof_deliveries_total",
    "twiceproof_redeliveries_total",
    "twiceproof_queue_waiting",
    "twiceproof_findings_open",
    "twiceproof_last_whole_run_age_seconds",
    "twiceproof_source_rows",
    "twiceproof_messages",
    "twiceproof_messages_oldest_seconds",
    "twiceproof_lanes_held",
    "twiceproof_messages_relayed_total",
    "twiceproof_publish_calls_total",
    "twiceproof_publish_seconds_total",
)


class WorkMetrics:
    """Metrics of a worker and of the store. Each has its own registry, so that two in one process stay separate."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._begun = self._gauge("twiceproof_runs_begun_total")
        self._running = self._gauge("twiceproof_runs_under_way")
        self._queued = self._gauge("twiceproof_runs_queued")
        self._runs = self._gauge("twiceproof_runs", "state")
        self._claims = self._gauge("twiceproof_claims", "state")
        self._letters = self._gauge("twiceproof_dead_letters")
        self._approvals = self._gauge("twiceproof_approvals")
        self._deliveries = self._gauge("twiceproof_deliveries_total", "consumer", "outcome")
        self._redeliveries = self._gauge("twiceproof_redeliveries_total", "consumer")
        self._waiting = self._gauge("twiceproof_queue_waiting", "consumer")
        self._findings = self._gauge("twiceproof_findings_open", "reconciliation", "check")
        self._whole_age = self._gauge("twiceproof_last_whole_run_age_seconds", "reconciliation")
        self._source_rows = self._gauge("twiceproof_source_rows", "reconciliation", "source")
        self._messages = self._gauge("twiceproof_messages", "state")
        self._oldest = self._gauge("twiceproof_messages_oldest_seconds")
        self._lanes = self._gauge("twiceproof_lanes_held")
        self._relayed = self._gauge("twiceproof_messages_relayed_total", "target", "outcome")
        self._publish_calls = self._gauge("twiceproof_publish_calls_total", "target")
        self._publish_seconds = self._gauge("twiceproof_publish_seconds_total", "target")

    def _counter(self, name: str, *labels: str) -> Counter:
        return Counter(name, DOCUMENTED[name], labels, registry=self.registry)

    def _gauge(self, name: str, *labels: str) -> Gauge:
        return Gauge(name, DOCUMENTED[name], labels, registry=self.registry)

    def set_counts(self, counts: StateCounts) -> None:
        self._queued.set(counts.runs[QUEUED])
        self._letters.set(counts.dead_letters)
        self._approvals.set(counts.approvals)
        messages = counts.messages
        self._oldest.set(messages.oldest_pending or 0.0)
        self._lanes.set(messages.held_lanes)
        gauges = ((self._runs, counts.runs), (self._claims, counts.claims), (self._messages, messages.states))
        for gauge, known in gauges:
            for state, count in known.items():
                gauge.labels(state).set(count)

    def set_findings(self, counts: FindingCounts) -> None:
        """A check whose findings were all resolved has none: it is no longer listed."""
        self._findings.clear()
        for (name, check), count in counts.open.items():
            self._findings.labels(name, check).set(count)
        for (name, source), rows in counts.rows.items():
            self._source_rows.labels(name, source).set(rows)
        for name, tick in counts.whole.items():
            self._whole_age.labels(name).set(counts.now - tick)

    def text(self, worker: Worker | None) -> bytes:
        if worker is not None:
            self._begun.set(worker.begun)
            self._running.set(worker.taken)
            self._set_deliveries(worker)
            for relay in _parts_of(worker, "targets"):
                self._publish_calls.labels(relay.target.name).set(relay.calls)
                self._publish_seconds.labels(relay.target.name).set(relay.seconds)
            for target, outcomes in worker.relayed().items():
                for outcome, count in outcomes.items():
                    self._relayed.labels(target, outcome).set(count)
        return generate_latest(self.registry)

    def _set_deliveries(self, worker: Worker) -> None:
        for reader in _parts_of(worker, "readers"):
            self._redeliveries.labels(reader.consumer.name).set(reader.redelivered)
            if reader.waiting is not None:
                self._waiting.labels(reader.consumer.name).set(reader.waiting)
            for outcome, count in list(reader.outcomes.items()):
                self._deliveries.labels(reader.consumer.name, outcome).set(count)


def _parts_of(worker: Worker, name: str) -> Iterator[Any]:
    """Yield what runs beside a worker: its readers of queues, or its relays' targets."""
    for companion in worker.beside:
        yield from getattr(companion, name, ())


class Metrics(WorkMetrics):
    """Metrics of a server and the worker in its process."""

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
        self._outcomes = self._counter("twiceproof_outcomes_total", "entry_point", "outcome")
        self._duplicates = self._counter("twiceproof_duplicates_blocked_total", "entry_point")
        self._refused = self._counter("twiceproof_refused_total", "reason")
        self.active_requests = self._gauge("twiceproof_requests_under_way")
        self.connections = self._gauge("twiceproof_connections")
        self._answers: dict[tuple[str, int], Counter] = {}
        self._times: dict[str, Histogram] = {}
        self._outcome_counters: dict[tuple[str, str], list[Counter]] = {}

    def count_response(self, route: str, status: int, seconds: float) -> None:
        """Count a response. Labelled children are cached, because finding one costs more than counting."""
        child = self._answers.get((route, status))
        if child is None:
            child = self._answers[route, status] = self._requests.labels(route, str(status))
            self._times.setdefault(route, self._seconds.labels(route))
        child.inc()
        self._times[route].observe(seconds)

    def count_refusal(self, reason: str) -> None:
        self._refused.labels(reason).inc()

    def count_outcomes(self, events: Iterable[InboundOutcome]) -> None:
        for one in events:
            known = self._outcome_counters.get((one.entry_point, one.outcome))
            if known is None:
                known = self._outcome_counters[one.entry_point, one.outcome] = self._counters_of(one)
            for counter in known:
                counter.inc()

    def _counters_of(self, one: InboundOutcome) -> list[Counter]:
        counters = [self._outcomes.labels(one.entry_point, one.outcome)]
        return [*counters, self._duplicates.labels(one.entry_point)] if one.outcome == "duplicate" else counters


T = TypeVar("T")

PROBE = Address("~tokens", "probe", "readyz")
TIMEOUT = 2.0  # seconds; a slower store counts as unavailable
FRESH = 1.0  # seconds for which a result is reused, because the route is public
COUNT_FRESH = 15.0


class ServerStatus:
    """The state of one server. While `draining`, no new requests should be sent to it."""

    def __init__(self, app: App, routes: tuple[ApiRoute, ...]) -> None:
        self.app = app
        self.routes = routes
        self.metrics = Metrics()
        self.worker: Worker | None = None
        self.draining = False
        self._ready = CachedRead(self._read, app.clock, FRESH)
        self._counts = CachedRead(self._count, app.clock, COUNT_FRESH)

    @cached_property
    def description(self) -> bytes:
        return describe(self.routes)

    async def is_ready(self) -> bool:
        """Whether the store answers."""
        return await self._ready.answer() is not None

    async def _read(self) -> Found:
        return await self.app.store.read(PROBE).wait()

    async def text(self) -> bytes:
        """Return the metrics. If the store does not answer, its last counts are returned."""
        counts = await self._counts.answer()
        if counts is not None:
            self.metrics.set_counts(counts[0])
            self.metrics.set_findings(counts[1])
        return self.metrics.text(self.worker)

    async def _count(self) -> tuple[StateCounts, FindingCounts]:
        store = self.app.store
        return await await_(count_states(store)), await await_(count_findings(store))


class CachedRead(Generic[T]):
    """A store read shared by all callers, at most one at a time, with a result within `TIMEOUT`.

    A cancelled store request still waits for the driver, so a timeout around it would only end when the driver does.
    Here the read continues in its own task, and callers stop waiting for it.
    """

    def __init__(self, read: Callable[[], Coroutine[Any, Any, T]], clock: Clock, fresh: float) -> None:
        self._read = read
        self._clock = clock
        self._fresh = fresh
        self._task: asyncio.Task[T | None] | None = None
        self._started_at = 0.0

    async def answer(self) -> T | None:
        """Return the result, or None if the store did not answer in time."""
        now = self._clock.monotonic()
        task = self._task
        if task is None or (task.done() and (now >= self._started_at + self._fresh)):
            task = self._task = asyncio.create_task(self._run())
            self._started_at = now
        left = self._started_at + TIMEOUT - now
        if not task.done() and left > 0:
            await asyncio.wait({task}, timeout=left)
        return task.result() if task.done() and not task.cancelled() else None

    async def _run(self) -> T | None:
        try:
            return await self._read()
        except StoreError:
            return None


class Traces:
    """OpenTelemetry spans, through the API only: exporting them is configured by the user."""

    def __init__(self, tracer: Any, propagate: Any, kind: Any) -> None:
        self._tracer = tracer
        self._propagate = propagate
        self._kind = kind

    @contextmanager
    def span(self, method: str, path: str, headers: Mapping[bytes, bytes]) -> Iterator[Any]:
        """Start a span named after the route, never after the URL, which may contain a secret."""
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
    def end(span: Any, status: int, outcomes: list[InboundOutcome]) -> None:
        span.set_attribute("http.response.status_code", status)
        for one in outcomes[:10]:
            span.add_event(one.outcome, {"entry_point": one.entry_point, "key": one.key, "run": one.run})


def find_traces() -> Traces | None:
    """Return None if no tracer provider is configured, because spans are not free."""
    try:
        from opentelemetry import propagate, trace
    except ImportError:
        return None
    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        return None
    return Traces(trace.get_tracer("twiceproof"), propagate, trace.SpanKind.SERVER)
