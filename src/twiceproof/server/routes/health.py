"""For whoever runs the server: is it alive, is it ready, what has it done, what does it offer."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from ...inbound.reply import Reply, json_reply, problem, retry_after
from ..monitoring import CONTENT_TYPE
from ..request import ApiRequest
from ..routing import ApiRoute, RouteAnswer

__all__ = ["ROUTES"]


class Health(Struct, frozen=True):
    status: str


async def healthz(call: ApiRequest) -> Reply:
    """The process answers. Says nothing about the store: a restart would not bring that back."""
    return json_reply(200, Health("alive"))


async def readyz(call: ApiRequest) -> Reply:
    """Work may be sent here: the store answers, and nobody has told us to leave."""
    if call.station.draining:
        return _not_ready(503, "draining", "This server is about to leave.")
    if not await call.station.is_ready():
        return _not_ready(503, "store-unavailable", "The ledger does not answer.")
    return json_reply(200, Health("ready"))


def _not_ready(status: int, kind: str, detail: str) -> Reply:
    return problem(status, kind, detail, next_move="Send requests elsewhere until it is.", headers=[retry_after(1)])


async def metrics(call: ApiRequest) -> Reply:
    return Reply(200, (("content-type", CONTENT_TYPE),), await call.station.text())


async def openapi(call: ApiRequest) -> Reply:
    return Reply(200, (("content-type", "application/json"),), call.station.description)


ROUTES: tuple[ApiRoute, ...] = (
    ApiRoute(
        "GET",
        "/healthz",
        "healthz",
        healthz,
        "Whether this process is alive",
        tag="operations",
        answers={200: RouteAnswer("It is.", Health)},
        tolerant=True,  # monitors add a number, past caches
    ),
    ApiRoute(
        "GET",
        "/readyz",
        "readyz",
        readyz,
        "Whether work may be sent here",
        tag="operations",
        answers={200: RouteAnswer("The ledger answers.", Health)},
        tolerant=True,
    ),
    ApiRoute(
        "GET",
        "/metrics",
        "metrics",
        metrics,
        "What this process has done, for Prometheus",
        tag="operations",
        answers={200: RouteAnswer("Counts, in Prometheus' text format.", media=CONTENT_TYPE.partition(";")[0])},
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
