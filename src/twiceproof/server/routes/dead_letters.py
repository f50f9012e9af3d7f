"""Routes of dead letters: list them, show one, plan its replay event by event, replay it."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from ...claims.claim import validate_name
from ...errors import Misuse, ResultNotKept
from ...inbound.admit import Admitted
from ...inbound.dead_letters import DeadLetter, body_of_letter, find_letter, list_letters
from ...inbound.replay import PlannedEvent, plan_replay, replay_letter
from ...inbound.reply import PROBLEM, Reply, json_reply, problem
from ...keys import validate_key
from ...operations import await_
from ..openapi import NAME_OR_NONE
from ..problems import no_page
from ..request import ApiRequest, RequestRefused
from ..routing import ApiRoute, RouteAnswer
from .runs import ActorBody

__all__ = ["ROUTES", "LetterShape"]

SHOWN = 16 * 1024  # bytes of a body


class LettersQuery(Struct, frozen=True):
    """`hook`: only of this webhook or consumer. `after` continues a list, with that of the response before."""

    hook: Annotated[str, Meta(extra_json_schema=NAME_OR_NONE)] = ""
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 100
    after: str | None = None


class LetterShape(Struct, frozen=True):
    """A delivery that was put aside. `events`: those that were refused; none if it could not be read. `text`: the start
    of its body, when one is shown; `redacted`: its declared secrets were taken out."""

    id: str
    hook: str
    reason: str
    received_at: float
    size: int
    digest: str
    events: tuple[str, ...]
    headers: dict[str, str]
    redacted: bool
    text: str = ""


class Letters(Struct, frozen=True):
    """Dead letters, the latest first where the store has that order. `more`: there may be others; `after` leads to
    them."""

    dead_letters: list[LetterShape]
    more: bool
    after: str | None = None


class ReplayPlan(Struct, frozen=True):
    """What a replay would do now, event by event."""

    events: list[PlannedEvent]


class ReplayedEvents(Struct, frozen=True):
    """What the replay did, event by event."""

    events: list[Admitted]


def _shape(letter: DeadLetter, text: str = "") -> LetterShape:
    return LetterShape(
        letter.id,
        letter.hook,
        letter.reason,
        letter.received_at,
        letter.size,
        letter.digest,
        letter.refused_events,
        letter.headers,
        letter.redacted,
        text,
    )


async def list_all(call: ApiRequest) -> Reply:
    query = call.query_as(LettersQuery)
    hook = query.hook and validate_name("webhook", query.hook)
    store, tenant = call.app.store, call.app.settings.tenant
    try:
        page = await await_(list_letters(store, tenant, hook, limit=query.limit, after=query.after))
    except Misuse:
        return no_page()
    return json_reply(200, Letters([_shape(one) for one in page.letters], page.after is not None, page.after))


async def show(call: ApiRequest) -> Reply:
    letter = await _letter(call)
    try:
        text = (await await_(body_of_letter(call.app.store, letter)))[:SHOWN].decode(errors="replace")
    except (Misuse, ResultNotKept):
        text = ""  # it was not kept: what came of it can still be seen
    return json_reply(200, _shape(letter, text))


async def _letter(call: ApiRequest) -> DeadLetter:
    try:
        return await await_(find_letter(call.app.store, call.app.settings.tenant, call.params["id"]))
    except Misuse:
        raise RequestRefused(
            problem(
                404,
                "no-such-letter",
                "There is no such dead letter, or it was replayed.",
                next_move="List them: GET /v1/dead-letters",
            )
        ) from None


async def plan(call: ApiRequest) -> Reply:
    letter = await _letter(call)
    app = call.app
    try:
        return json_reply(
            200, ReplayPlan(await await_(plan_replay(app.runtime, {**app.hooks, **app.consumers}, letter.id)))
        )
    except (Misuse, ResultNotKept) as error:
        return _not_replayed(error)


async def replay(call: ApiRequest) -> Reply:
    body = call.body_as(ActorBody)
    letter = await _letter(call)
    app, by = call.app, call.principal.name or (validate_key(body.by) if body.by else "http")
    try:
        hooks = {**app.hooks, **app.consumers}
        return json_reply(200, ReplayedEvents(await await_(replay_letter(app.runtime, hooks, letter.id, by=by))))
    except (Misuse, ResultNotKept) as error:
        return _not_replayed(error)


def _not_replayed(error: Exception) -> Reply:
    return problem(
        409, "not-replayed", str(error), next_move="Correct what is wrong, or ask the sender to deliver it again."
    )


PARAMS = {"id": "A dead letter's id, as it is listed"}
GONE = RouteAnswer("There is no such dead letter, or it was replayed.", None, PROBLEM)
NOT_NOW = RouteAnswer("It cannot be replayed as things are.", None, PROBLEM)

ROUTES: tuple[ApiRoute, ...] = (
    ApiRoute(
        "GET",
        "/v1/dead-letters",
        "list_dead_letters",
        list_all,
        "List deliveries that were put aside",
        query=LettersQuery,
        tag="dead-letters",
        answers={
            200: RouteAnswer("One page of the list.", Letters),
            404: RouteAnswer("`after` is not a position in this list.", None, PROBLEM),
        },
    ),
    ApiRoute(
        "GET",
        "/v1/dead-letters/{id}",
        "look_at_dead_letter",
        show,
        "Show a dead letter with the start of its body",
        params=PARAMS,
        tag="dead-letters",
        answers={200: RouteAnswer("The letter.", LetterShape), 404: GONE},
    ),
    ApiRoute(
        "GET",
        "/v1/dead-letters/{id}/plan",
        "plan_replay",
        plan,
        "Say what a replay would do, and change nothing",
        params=PARAMS,
        tag="dead-letters",
        answers={200: RouteAnswer("The plan.", ReplayPlan), 404: GONE, 409: NOT_NOW},
    ),
    ApiRoute(
        "POST",
        "/v1/dead-letters/{id}/replay",
        "replay_dead_letter",
        replay,
        "Process a dead letter again, under the same ids",
        body=ActorBody,
        params=PARAMS,
        tag="dead-letters",
        answers={200: RouteAnswer("What came of each event.", ReplayedEvents), 404: GONE, 409: NOT_NOW},
    ),
)
