"""The route of workers: which workers there are, which flows they serve, and what is due and served by none."""

from __future__ import annotations

from msgspec import Struct

from ...flows.workers.presence import WorkerShape, list_workers, stranded
from ...inbound.reply import Reply, json_reply
from ...operations import await_
from ..request import ApiRequest
from ..routing import ApiRoute, RouteAnswer

__all__ = ["ROUTES", "WorkerList"]


class WorkerList(Struct, frozen=True):
    """Live workers, and those that vanished within a day. `stranded`: due runs by `flow@version`
    that no live worker serves, counted up to 1,000 in each state: start a worker that has this version."""

    workers: list[WorkerShape]
    stranded: dict[str, int]


async def workers(call: ApiRequest) -> Reply:
    store = call.app.store
    return json_reply(200, WorkerList(await await_(list_workers(store)), await await_(stranded(store))))


ROUTES: tuple[ApiRoute, ...] = (
    ApiRoute(
        "GET",
        "/v1/workers",
        "list_workers",
        workers,
        "List workers, and what none of them serves",
        tag="workers",
        answers={200: RouteAnswer("The workers.", WorkerList)},
    ),
)
