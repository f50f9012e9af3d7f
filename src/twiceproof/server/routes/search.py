"""The route that finds what has a name."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from ...inbound.reply import Reply, json_reply
from ...operations import await_
from ..request import ApiRequest
from ..routing import ApiRoute, RouteAnswer
from ..services.search import SearchHit, find, looked_through

__all__ = ["ROUTES", "FoundThings"]


class FindQuery(Struct, frozen=True):
    """`q`: a key or its beginning, a run's id, FLOW/KEY, an event's id, an id of another system, a dead letter's or an
    approval's id."""

    q: Annotated[str, Meta(min_length=1, max_length=1_024)]


class FoundThings(Struct, frozen=True):
    """What has this name. `looked`: what was looked through."""

    hits: list[SearchHit]
    looked: str


async def find_all(call: ApiRequest) -> Reply:
    name = call.query_as(FindQuery).q.strip()
    hits = await await_(find(call.app, name)) if name else []
    return json_reply(200, FoundThings(hits, looked_through(call.app)))


ROUTES: tuple[ApiRoute, ...] = (
    ApiRoute(
        "GET",
        "/v1/find",
        "find",
        find_all,
        "Find what has a name",
        query=FindQuery,
        tag="find",
        answers={200: RouteAnswer("What was found.", FoundThings)},
    ),
)
