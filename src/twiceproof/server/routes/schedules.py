"""The route of schedules and polls: what is due next, what was last, and what was skipped."""

from __future__ import annotations

from msgspec import Struct

from ...flows.triggers.poll import PollShape, list_polls
from ...flows.triggers.schedule import ScheduleShape, list_schedules
from ...inbound.reply import Reply, json_reply
from ...operations import await_
from ..request import ApiRequest
from ..routing import ApiRoute, RouteAnswer

__all__ = ["ROUTES", "ScheduleList"]


class ScheduleList(Struct, frozen=True):
    """What this app starts by the clock."""

    schedules: list[ScheduleShape]
    polls: list[PollShape]


async def schedules(call: ApiRequest) -> Reply:
    app, tenant = call.app, call.app.settings.tenant
    ticks = await await_(list_schedules(app.store, app.schedules.schedules.values(), tenant))
    polls = await await_(list_polls(app.store, app.polls.polls.values(), tenant))
    return json_reply(200, ScheduleList(ticks, polls))


ROUTES: tuple[ApiRoute, ...] = (
    ApiRoute(
        "GET",
        "/v1/schedules",
        "list_schedules",
        schedules,
        "List schedules and polls",
        tag="schedules",
        answers={200: RouteAnswer("The schedules and polls.", ScheduleList)},
    ),
)
