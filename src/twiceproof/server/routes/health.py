"""Routes for operators: liveness, readiness, metrics, and the API description."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from ...inbound.reply import Reply, json_reply, problem, retry_after
from ...safe_text import shown_url
from ...stores.base import Finding, Store
from ...version import __version__
from ..monitoring import CONTENT_TYPE
from ..request import ApiRequest
from ..routing import ApiRoute, RouteAnswer

__all__ = ["ROUTES", "HealthReport", "health_report"]


class Health(Struct, frozen=True):
    status: str


class HealthReport(Struct, frozen=True):
    """This server and its store. `newest_first`: whether the store lists by age. `findings`: what the store can and
    cannot promise here, each with its level (ok, warn or refuse) and the next move."""

    ready: bool
    version: str
    store: str
    batch_limit: int
    newest_first: bool
    findings: Sequence[Finding]


async def health_report(call: ApiRequest, findings: Sequence[Finding] | None = None) -> HealthReport:
    """Return the report. Without `findings` the store is examined now, which takes seconds where it is large."""
    store: Store = call.app.store
    url = call.app.settings.store
    return HealthReport(
        await call.server_status.is_ready(),
        __version__,
        shown_url(url) if url else "an object",
        store.batch_limit,
        store.newest_first,
        await asyncio.to_thread(store.examine) if findings is None else findings,
    )


async def report(call: ApiRequest) -> Reply:
    return json_reply(200, await health_report(call))


async def healthz(call: ApiRequest) -> Reply:
    """The process is alive. The store is not checked, because a restart would not repair it."""
    return json_reply(200, Health("alive"))


async def readyz(call: ApiRequest) -> Reply:
    """Requests may be sent here: the store answers, and the server is not draining."""
    if call.server_status.draining:
        return _not_ready(503, "draining", "This server is shutting down.")
    if not await call.server_status.is_ready():
        return _not_ready(503, "store-unavailable", "The store does not answer.")
    return json_reply(200, Health("ready"))


def _not_ready(status: int, kind: str, detail: str) -> Reply:
    return problem(
        status, kind, detail, next_move="Send requests elsewhere until it is ready.", headers=[retry_after(1)]
    )


async def metrics(call: ApiRequest) -> Reply:
    return Reply(200, (("content-type", CONTENT_TYPE),), await call.server_status.text())


async def openapi(call: ApiRequest) -> Reply:
    return Reply(200, (("content-type", "application/json"),), call.server_status.description)


ROUTES: tuple[ApiRoute, ...] = (
    ApiRoute(
        "GET",
        "/v1/health",
        "report_health",
        report,
        "What the store can promise, and whether this server is ready",
        tag="health",
        answers={200: RouteAnswer("The report.", HealthReport)},
    ),
    ApiRoute(
        "GET",
        "/healthz",
        "healthz",
        healthz,
        "Whether this process is alive",
        tag="operations",
        answers={200: RouteAnswer("It is alive.", Health)},
        ignores_unknown_query=True,  # monitors add a number to bypass caches
    ),
    ApiRoute(
        "GET",
        "/readyz",
        "readyz",
        readyz,
        "Whether requests may be sent here",
        tag="operations",
        answers={200: RouteAnswer("The store answers.", Health)},
        ignores_unknown_query=True,
    ),
    ApiRoute(
        "GET",
        "/metrics",
        "metrics",
        metrics,
        "Metrics of this process, for Prometheus",
        tag="operations",
        answers={200: RouteAnswer("Metrics in the Prometheus text format.", media=CONTENT_TYPE.partition(";")[0])},
    ),
    ApiRoute(
        "GET",
        "/openapi.json",
        "openapi",
        openapi,
        "This description",
        tag="operations",
        answers={200: RouteAnswer("OpenAPI 3.1.", dict[str, Any])},
    ),
)
