"""Routes of findings: list, show, and what a person does with one."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

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
from ..openapi import NAME_OR_NONE, SPAN_OR_NONE
from ..request import ApiRequest
from ..routing import ApiRoute, RouteAnswer

__all__ = ["ROUTES"]


class FindingsQuery(Struct, frozen=True):
    """`state`: by default all that are not resolved."""

    name: Annotated[str, Meta(extra_json_schema=NAME_OR_NONE)] = ""
    state: Literal["", "open", "acknowledged", "suppressed", "acted", "resolved", "all"] = ""
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 100


class Findings(Struct, frozen=True):
    """Findings, those that were seen last first."""

    findings: list[FindingShape]


class FindingBody(Struct, frozen=True, forbid_unknown_fields=True):
    """`until`: with "suppress", for how long ("30d"); "" is for ever."""

    decision: Literal["acknowledge", "suppress", "resolve"]
    until: Annotated[str, Meta(extra_json_schema=SPAN_OR_NONE)] = ""
    note: Annotated[str, Meta(max_length=2_000)] = ""
    by: str = ""


STATES = {"acknowledge": ACKNOWLEDGED, "suppress": SUPPRESSED, "resolve": RESOLVED}


async def list_all(call: ApiRequest) -> Reply:
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
    changed = await await_(change_finding(store, tenant, name, state, by=by, note=body.note, until=until))
    return json_reply(200, changed)


def _unknown() -> Reply:
    return problem(404, "no-such-finding", "There is no such finding.", next_move="List them: GET /v1/findings")


ID = {"id": "A finding's id"}
GONE = RouteAnswer("There is no such finding.", None, PROBLEM)

ROUTES: tuple[ApiRoute, ...] = (
    ApiRoute(
        "GET",
        "/v1/findings",
        "list_findings",
        list_all,
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
            409: RouteAnswer("It is resolved already.", None, PROBLEM),
        },
    ),
)
