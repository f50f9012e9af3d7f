"""The route of blocked duplicates: the keys that came most often."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from ...claims.claim import validate_name
from ...claims.duplicates import Blocked, most_blocked
from ...inbound.reply import Reply, json_reply
from ...operations import await_
from ..openapi import NAME_OR_NONE
from ..request import ApiRequest
from ..routing import ApiRoute, RouteAnswer
from .runs import Time

__all__ = ["ROUTES", "BlockedKey"]


class DuplicatesQuery(Struct, frozen=True):
    """`since`: in seconds since 1970, to the hour. `source`: only what came in by this webhook or source."""

    flow: Annotated[str, Meta(extra_json_schema=NAME_OR_NONE)] = ""
    source: str | None = None
    since: Time = 0.0
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 100


class BlockedKey(Struct, frozen=True):
    """One key. An empty key stands for those beyond the limit per process and hour, counted together."""

    blocked: int
    source: str
    operation: str
    key: str
    first_at: float
    last_at: float


class BlockedKeys(Struct, frozen=True):
    duplicates: list[BlockedKey]


async def duplicates(call: ApiRequest) -> Reply:
    query = call.query_as(DuplicatesQuery)
    found = most_blocked(
        call.app.store,
        call.app.settings.tenant,
        operation=query.flow and validate_name("flow", query.flow),
        source=query.source,
        since=query.since,
        limit=query.limit,
    )
    return json_reply(200, BlockedKeys([_shape(one) for one in await await_(found)]))


def _shape(one: Blocked) -> BlockedKey:
    return BlockedKey(one.count, one.source, one.operation, one.key, one.first_at, one.last_at)


ROUTES: tuple[ApiRoute, ...] = (
    ApiRoute(
        "GET",
        "/v1/duplicates",
        "list_duplicates",
        duplicates,
        "List the keys with most blocked duplicates",
        query=DuplicatesQuery,
        tag="duplicates",
        answers={200: RouteAnswer("The list.", BlockedKeys)},
    ),
)
