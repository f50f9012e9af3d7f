"""What the server has done, for Prometheus. Labels are few and ours: nothing that a caller sends becomes one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from ..claims.claim import QUEUED
from ..flows.history.census import StateCounts
from ..observe.told import Told

if TYPE_CHECKING:
    from ..flows.workers.worker import Worker

__all__ = ["CONTENT_TYPE", "DOCUMENTED", "WORK", "Metrics", "WorkMetrics"]

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
    "twiceproof_runs_begun_total", "twiceproof_runs_under_way", "twiceproof_runs_queued", "twiceproof_runs",
    "twiceproof_claims", "twiceproof_dead_letters",
)  # fmt: skip


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
            "twiceproof_request_seconds", DOCUMENTED["twiceproof_request_seconds"], ["route"],
            buckets=BUCKETS, registry=self.registry,
        )  # fmt: skip
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

    def told(self, events: Iterable[Told]) -> None:
        for one in events:
            known = self._told.get((one.door, one.outcome))
            if known is None:
                known = self._told[one.door, one.outcome] = self._counters_of(one)
            for counter in known:
                counter.inc()

    def _counters_of(self, one: Told) -> list[Counter]:
        counters = [self._outcomes.labels(one.door, one.outcome)]
        return [*counters, self._duplicates.labels(one.door)] if one.outcome == "duplicate" else counters
