"""Routes of flows: open runs by version, the releases of one flow with their evidence, and a run of its draft."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from msgspec import Struct

from ...app.app import App
from ...declared.connections import Connections
from ...declared.drafts import DraftRun, compile_draft, run_draft
from ...declared.live import LiveReleases
from ...declared.releases import draft_of
from ...declared.views import FlowReleases, look_at_releases
from ...flows.history.queries import FlowCount, count_open
from ...flows.workers.presence import WorkerShape, list_workers
from ...inbound.reply import PROBLEM, Reply, json_reply, problem
from ...operations import await_
from ..openapi import NAME
from ..request import ApiRequest, RequestRefused
from ..routing import ApiRoute, RouteAnswer

__all__ = ["ROUTES", "FlowList", "FlowRow", "flow_rows", "released"]


class FlowRow(Struct, frozen=True):
    """One version of a flow that is declared here or has open runs. `workers`: how many live ones serve it."""

    flow: str
    version: str
    held: int
    queued: int
    waiting: int
    review: int
    workers: int


class FlowList(Struct, frozen=True):
    """Every version that is declared here or has open runs."""

    flows: list[FlowRow]


async def flows(call: ApiRequest) -> Reply:
    store = call.app.store
    counts = await await_(count_open(store, call.app.settings.tenant))
    return json_reply(200, FlowList(flow_rows(call.app, counts, await await_(list_workers(store)))))


def flow_rows(app: App, counts: list[FlowCount], workers: list[WorkerShape]) -> list[FlowRow]:
    known = {(one.flow, one.version): one for one in counts}
    here = {(flow.name, version) for flow in app.flows.values() for version in flow.versions}
    served = [name for one in workers if not one.gone for name in one.flows]
    rows = []
    for flow, version in sorted(known.keys() | here):
        one = known.get((flow, version)) or FlowCount(flow, version)
        live = served.count(f"{flow}@{version}")
        rows.append(FlowRow(flow, version, one.held, one.queued, one.waiting, one.review, live))
    return rows


async def show(call: ApiRequest) -> Reply:
    found = await await_(look_at_releases(call.app.store, call.app.settings.tenant, call.params["name"]))
    if found.is_empty and call.params["name"] not in call.app.flows:
        raise RequestRefused(_no_flow())
    return json_reply(200, found)


async def draft(call: ApiRequest) -> Reply:
    """Run the draft here, on the draft sides of the tenant's connections; what has none is stood in for."""
    app, name = call.app, call.params["name"]
    event = msgspec.json.decode(call.json_body())
    release = await await_(draft_of(app.store, app.settings.tenant, name))
    if release is None or not release.text:
        raise RequestRefused(_no_flow())
    found = released(app, name)
    connections = Connections() if found is None else found.connections_of(app.settings.tenant)

    def carried_out() -> DraftRun:
        return run_draft(compile_draft(app, release, connections), event)

    return json_reply(200, await asyncio.to_thread(carried_out))


def released(app: App, name: str) -> LiveReleases | None:
    """What this process knows of a flow's file; None for a flow in Python, and for one that it does not have."""
    flow: Any = app.flows.get(name)
    return flow.releases if flow is not None and isinstance(flow.releases, LiveReleases) else None


def _no_flow() -> Reply:
    return problem(
        404,
        "no-such-flow",
        "There is no such flow, or it has no draft.",
        next_move="List them: GET /v1/flows; push one: twiceproof flows push",
    )


PARAMS = {"name": "The flow's name"}
SCHEMAS = {"name": {"type": "string", **NAME}}
GONE = RouteAnswer("There is no such flow, or it has no draft.", None, PROBLEM)
ROUTES: tuple[ApiRoute, ...] = (
    ApiRoute(
        "GET",
        "/v1/flows",
        "list_flows",
        flows,
        "Count open runs by flow and version",
        tag="flows",
        answers={200: RouteAnswer("The flows.", FlowList)},
    ),
    ApiRoute(
        "GET",
        "/v1/flows/{name}",
        "look_at_flow",
        show,
        "What is live of a flow, its draft and releases with their evidence, and who changed what",
        params=PARAMS,
        schemas=SCHEMAS,
        tag="flows",
        answers={200: RouteAnswer("Its releases.", FlowReleases), 404: GONE},
    ),
    ApiRoute(
        "POST",
        "/v1/flows/{name}/draft",
        "run_draft",
        draft,
        "Run a flow's draft, with stand-ins for what is live; run it again to continue one that waits",
        params=PARAMS,
        schemas=SCHEMAS,
        tag="flows",
        answers={200: RouteAnswer("How far it came.", DraftRun), 404: GONE},
    ),
)
