"""The route of external ids: from an id of another system to its runs, and back."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from ...flows.external_ids import IdLink, ids_named
from ...inbound.reply import Reply, json_reply
from ...keys import validate_key
from ...operations import await_
from ..openapi import KEY
from ..request import ApiRequest
from ..routing import ApiRoute, RouteAnswer

__all__ = ["ROUTES", "IdLinks"]


class IdsQuery(Struct, frozen=True):
    """`name`: an id that another system gave, a run's id, FLOW/KEY, or a key."""

    name: Annotated[str, Meta(extra_json_schema=KEY)]


class IdLinks(Struct, frozen=True):
    """Each link is a step of a run and the id that it received."""

    ids: list[IdLink]


async def list_ids(call: ApiRequest) -> Reply:
    app, name = call.app, validate_key(call.query_as(IdsQuery).name)
    return json_reply(200, IdLinks(await await_(ids_named(app.store, app.settings.tenant, name, app.flows))))


ROUTES: tuple[ApiRoute, ...] = (
    ApiRoute(
        "GET",
        "/v1/ids",
        "list_ids",
        list_ids,
        "Find the runs of an id of another system, or the ids of a run",
        query=IdsQuery,
        tag="ids",
        answers={200: RouteAnswer("The links; none if nothing has this name.", IdLinks)},
    ),
)
