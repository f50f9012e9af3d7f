"""Routes that fork a run: what a fork would do, and the fork."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from ...errors import Misuse
from ...flows.history.fork import Forked, fork_run, plan_fork
from ...inbound.reply import Reply, json_reply, problem
from ...keys import validate_key
from ...operations import Operation, await_
from ..openapi import KEY, KEY_OR_NONE
from ..request import ApiRequest, RequestRefused
from ..routing import ApiRoute, RouteAnswer
from .runs import GONE, NOT_NOW, RUN_ID_PARAM

__all__ = ["ROUTES", "ForkBody"]

Key = Annotated[str, Meta(extra_json_schema=KEY)]


class ForkQuery(Struct, frozen=True):
    """`key`: of the new run. `step`: what was completed before it counts as done in the new run; without, nothing."""

    key: Key
    step: str = ""


class ForkBody(Struct, frozen=True, forbid_unknown_fields=True):
    """As for the plan. `by`: the name of the person who acts, if the caller has no token."""

    key: Key
    step: str = ""
    by: Annotated[str, Meta(extra_json_schema=KEY_OR_NONE)] = ""


async def plan(call: ApiRequest) -> Reply:
    query = call.query_as(ForkQuery)
    key = validate_key(query.key)
    at = await await_(call.existing_run())
    return await _apply(200, plan_fork(call.app.store, at, key, query.step))


async def fork(call: ApiRequest) -> Reply:
    body = call.body_as(ForkBody)
    key, given = validate_key(body.key), validate_key(body.by) if body.by else "http"
    at = await await_(call.existing_run())
    who = call.principal.name
    return await _apply(201, fork_run(call.app.store, at, key, body.step, by=who or given, starter=who))


async def _apply(status: int, operation: Operation[Forked]) -> Reply:
    try:
        made = await await_(operation)
    except Misuse as error:
        raise RequestRefused(
            problem(409, "state-conflict", str(error), next_move="Look at the run, and do what its state allows.")
        ) from None
    return json_reply(status, made, [("location", f"/v1/runs/{made.run}")] if status == 201 else [])


ROUTES: tuple[ApiRoute, ...] = (
    ApiRoute(
        "GET",
        "/v1/runs/{name}/fork",
        "plan_fork",
        plan,
        "Say what a fork would do, and change nothing",
        query=ForkQuery,
        params=RUN_ID_PARAM,
        tag="runs",
        answers={200: RouteAnswer("What it would keep and do again.", Forked), 404: GONE, 409: NOT_NOW},
    ),
    ApiRoute(
        "POST",
        "/v1/runs/{name}/fork",
        "fork_run",
        fork,
        "Start a run again under a new key",
        body=ForkBody,
        params=RUN_ID_PARAM,
        tag="runs",
        answers={
            201: RouteAnswer("The new run.", Forked, headers={"Location": "the URL of the new run"}),
            404: GONE,
            409: NOT_NOW,
        },
    ),
)
