"""The route of acts: what people did by hand."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from ...claims.acts import ActPage, list_acts
from ...claims.claim import validate_name
from ...errors import Misuse
from ...inbound.reply import PROBLEM, Reply, json_reply
from ...operations import await_
from ..openapi import NAME_OR_NONE
from ..problems import no_page
from ..request import ApiRequest
from ..routing import ApiRoute, RouteAnswer

__all__ = ["ROUTES", "ActsQuery"]


class ActsQuery(Struct, frozen=True):
    """`operation`: a flow or operation, or "tokens". `after` continues a list, with `after`, `before` or `newer` of the
    response before."""

    by: str = ""
    operation: Annotated[str, Meta(extra_json_schema=NAME_OR_NONE)] = ""
    key: str = ""
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 100
    after: str | None = None


async def acts(call: ApiRequest) -> Reply:
    query = call.query_as(ActsQuery)
    asked = list_acts(
        call.app.store,
        call.app.settings.tenant,
        by=query.by,
        operation=query.operation and validate_name("operation", query.operation),
        key=query.key,
        limit=query.limit,
        after=query.after,
    )
    try:
        return json_reply(200, await await_(asked))
    except Misuse:
        return no_page()


ROUTES: tuple[ApiRoute, ...] = (
    ApiRoute(
        "GET",
        "/v1/acts",
        "list_acts",
        acts,
        "List what people did, the latest first",
        query=ActsQuery,
        tag="acts",
        answers={
            200: RouteAnswer("One page of the list.", ActPage),
            404: RouteAnswer("`after` is not a position in this list.", None, PROBLEM),
        },
    ),
)
