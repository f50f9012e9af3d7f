"""Routes of reconciliations: list them, start one; list their findings, and what a person does with one."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Raw, Struct

from ...claims.claim import validate_name
from ...errors import Misuse
from ...inbound.reply import PROBLEM, Reply, json_reply, problem
from ...keys import validate_key
from ...keys.duration import seconds
from ...operations import await_
from ...reconcile.findings import (
    ACKNOWLEDGED,
    EVERY_STATE,
    OPEN_STATES,
    RESOLVED,
    SUPPRESSED,
    FindingShape,
    change_finding,
    find_finding,
    list_findings,
    shape_of,
)
from ...reconcile.reconciliation import ReconciliationShape, list_reconciliations
from ..openapi import NAME_OR_NONE, SPAN_OR_NONE
from ..request import ApiRequest
from ..routing import ApiRoute, RouteAnswer
from .runs import HEADERS, StartedRun, StartQuery, start_from

__all__ = ["ROUTES"]


class ReconciliationList(Struct, frozen=True):
    """Every declared reconciliation, by name."""

    reconciliations: list[ReconciliationShape]


class ReconcileBody(Struct, frozen=True, forbid_unknown_fields=True):
    """`grace`: how long to wait before the second look ("0s"); "" is as declared."""

    grace: Annotated[str, Meta(extra_json_schema=SPAN_OR_NONE)] = ""


async def list_declared(call: ApiRequest) -> Reply:
    app = call.app
    found = await await_(list_reconciliations(app.store, app.settings.tenant, app.reconciliations))
    return json_reply(200, ReconciliationList(found))


async def start(call: ApiRequest) -> Reply:
    """Start a run for this moment. The same `Idempotency-Key` finds the run of the first request."""
    name, declared = call.params["name"], call.app.reconciliations
    if name not in declared:
        names = ", ".join(sorted(declared)) or "none"
        return problem(
            404, "no-such-reconciliation", "There is no such reconciliation.", next_move=f"Use one of: {names}."
        )
    body = call.body_as(ReconcileBody)
    grace = seconds(body.grace, name="grace", positive=False) if body.grace else None
    given = msgspec.json.encode({"tick": datetime.fromtimestamp(call.now, UTC), "grace": grace})
    return await start_from(call, call.app.flows[name], Raw(given), Raw(msgspec.json.encode(body)))


# -- findings ------------------------------------------------------------------------------------


class FindingsQuery(Struct, frozen=True):
    """`state`: by default all that are not resolved."""

    name: Annotated[str, Meta(extra_json_schema=NAME_OR_NONE)] = ""
    state: Literal["", "open", "acknowledged", "suppressed", "acted", "resolved", "all"] = ""
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 100


class Findings(Struct, frozen=True):
    """Findings, those that were seen last first."""

    findings: list[FindingShape]


class FindingBody(Struct, frozen=True, forbid_unknown_fields=True):
    """`until`: with "suppress", for how long ("30d"); "" is for ever. `state`: the one that was seen; a finding that
    has another one since is left as it is."""

    decision: Literal["acknowledge", "suppress", "resolve"]
    until: Annotated[str, Meta(extra_json_schema=SPAN_OR_NONE)] = ""
    note: Annotated[str, Meta(max_length=2_000)] = ""
    by: str = ""
    state: str = ""


STATES = {"acknowledge": ACKNOWLEDGED, "suppress": SUPPRESSED, "resolve": RESOLVED}


async def list_found(call: ApiRequest) -> Reply:
    query = call.query_as(FindingsQuery)
    states = OPEN_STATES if not query.state else EVERY_STATE if query.state == "all" else (query.state,)
    name = query.name and validate_name("reconciliation", query.name)
    store, tenant = call.app.store, call.app.settings.tenant
    found = await await_(list_findings(store, tenant, name=name, states=states, limit=query.limit))
    return json_reply(200, Findings(found))


async def show(call: ApiRequest) -> Reply:
    try:
        record = await await_(find_finding(call.app.store, call.app.settings.tenant, call.params["id"]))
    except Misuse:
        return _unknown()
    return json_reply(200, shape_of(record))


async def decide(call: ApiRequest) -> Reply:
    body = call.body_as(FindingBody)
    who = call.principal.name or body.by
    if not who:
        return problem(
            400, "name-missing", "The request does not say who decides.", next_move="Send your name as `by`."
        )
    store, tenant, name = call.app.store, call.app.settings.tenant, call.params["id"]
    until = call.now + seconds(body.until, name="until") if body.until else None
    try:
        record = await await_(find_finding(store, tenant, name))
    except Misuse:
        return _unknown()
    if record.state == RESOLVED:
        return problem(409, "resolved", "This finding is resolved already.", next_move="List others: GET /v1/findings")
    state, by = STATES[body.decision], validate_key(who)
    change = change_finding(store, tenant, name, state, by=by, note=body.note, until=until, was=body.state)
    try:
        return json_reply(200, await await_(change))
    except Misuse:
        return problem(
            409,
            "finding-changed",
            "This finding has another state by now than the one that was seen.",
            next_move="Look at it again: GET /v1/findings",
        )


def _unknown() -> Reply:
    return problem(404, "no-such-finding", "There is no such finding.", next_move="List them: GET /v1/findings")


ID = {"id": "A finding's id"}
GONE = RouteAnswer("There is no such finding.", None, PROBLEM)

ROUTES: tuple[ApiRoute, ...] = (
    ApiRoute(
        "GET",
        "/v1/reconciliations",
        "list_reconciliations",
        list_declared,
        "List reconciliations, their last runs and open findings",
        tag="reconciliations",
        answers={200: RouteAnswer("All that are declared, by name.", ReconciliationList)},
    ),
    ApiRoute(
        "POST",
        "/v1/reconciliations/{name}",
        "start_reconciliation",
        start,
        "Start a reconciliation now",
        body=ReconcileBody,
        query=StartQuery,
        params={"name": "A reconciliation's name"},
        headers=HEADERS,
        tag="reconciliations",
        answers={
            202: RouteAnswer("Started: a worker executes it.", StartedRun, headers={"Location": "the URL of the run"}),
            200: RouteAnswer("The request was made before, or the run has ended within the wait.", StartedRun),
            404: RouteAnswer("There is no such reconciliation.", None, PROBLEM),
            409: RouteAnswer("The same request is being processed right now.", None, PROBLEM),
            422: RouteAnswer("The key was used before, with a different body.", None, PROBLEM),
        },
    ),
    ApiRoute(
        "GET",
        "/v1/findings",
        "list_findings",
        list_found,
        "List findings of reconciliations",
        query=FindingsQuery,
        tag="findings",
        answers={200: RouteAnswer("Those that were seen last first.", Findings)},
    ),
    ApiRoute(
        "GET",
        "/v1/findings/{id}",
        "look_at_finding",
        show,
        "Show one finding",
        params=ID,
        tag="findings",
        answers={200: RouteAnswer("The finding.", FindingShape), 404: GONE},
    ),
    ApiRoute(
        "POST",
        "/v1/findings/{id}",
        "decide_finding",
        decide,
        "Acknowledge, suppress or resolve a finding",
        body=FindingBody,
        params=ID,
        tag="findings",
        answers={
            200: RouteAnswer("The finding as it is now.", FindingShape),
            404: GONE,
            409: RouteAnswer("It is resolved already, or in another state than was seen.", None, PROBLEM),
        },
    ),
)
