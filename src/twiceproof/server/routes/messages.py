"""Routes of messages, brokers and consumers: list, show, resend, drop; pause and resume what is published to."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from ...claims.claim import validate_name
from ...errors import Misuse
from ...inbound.queues.queries import BrokerShape, ConsumerShape, broker_shapes, consumer_shapes
from ...inbound.reply import PROBLEM, Reply, json_reply, problem
from ...keys import validate_key
from ...operations import await_
from ...outbox.message import STATES
from ...outbox.pauses import PausedTarget, list_pauses, pause_target, resume_target
from ...outbox.queries import MessageShape, drop, find_messages, list_messages, resend, show_message
from ..openapi import NAME_OR_NONE
from ..request import ApiRequest
from ..routing import ApiRoute, RouteAnswer

__all__ = ["ROUTES"]


UNSENT = ("parked", "publishing", "pending")
To = Annotated[str, Meta(extra_json_schema=NAME_OR_NONE)]
Note = Annotated[str, Meta(max_length=2_000)]


class MessagesQuery(Struct, frozen=True):
    """`state`: by default all that are not sent or dropped. `to`: a broker or webhook."""

    state: Literal["", "pending", "publishing", "sent", "parked", "dropped", "all"] = ""
    to: To = ""
    topic: str = ""
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 100


class WhichQuery(Struct, frozen=True):
    """`to`: to which broker or webhook, if the message went to several."""

    to: To = ""


class Messages(Struct, frozen=True):
    """Messages without their bodies, those that need attention first. `more`: there are others."""

    messages: list[MessageShape]
    more: bool


class MessageDecision(Struct, frozen=True, forbid_unknown_fields=True):
    """`to`: to which broker or webhook, if the message went to several. `as_new`: resend it with a new key. `state`:
    the one that was seen; a message that has another one since is left as it is."""

    decision: Literal["resend", "drop"]
    to: To = ""
    as_new: bool = False
    note: Note = ""
    by: str = ""
    state: str = ""


class Brokers(Struct, frozen=True):
    """The brokers and webhooks of the app."""

    brokers: list[BrokerShape]


class PauseBody(Struct, frozen=True, forbid_unknown_fields=True):
    decision: Literal["pause", "resume"]
    note: Note = ""
    by: str = ""


class Consumers(Struct, frozen=True):
    """The consumers of the app."""

    consumers: list[ConsumerShape]


async def list_all(call: ApiRequest) -> Reply:
    query = call.query_as(MessagesQuery)
    states = UNSENT if not query.state else STATES if query.state == "all" else (query.state,)
    store, tenant = call.app.store, call.app.settings.tenant
    target = query.to and validate_name("broker", query.to)
    asked = list_messages(store, tenant, states=tuple(states), target=target, topic=query.topic, limit=query.limit + 1)
    found = [msgspec.structs.replace(one, body=None) for one in await await_(asked)]
    return json_reply(200, Messages(found[: query.limit], len(found) > query.limit))


async def show(call: ApiRequest) -> Reply:
    query = call.query_as(WhichQuery)
    refusal = await _refusal(call, query.to)
    if refusal is not None:
        return refusal
    store, tenant = call.app.store, call.app.settings.tenant
    return json_reply(200, await await_(show_message(store, tenant, call.params["key"], query.to)))


async def decide(call: ApiRequest) -> Reply:
    body = call.body_as(MessageDecision)
    who = call.principal.name or body.by
    if not who:
        return _nameless()
    refusal = await _refusal(call, body.to)
    if refusal is not None:
        return refusal
    move = partial(resend, as_new=body.as_new) if body.decision == "resend" else drop
    store, tenant, key = call.app.store, call.app.settings.tenant, call.params["key"]
    try:
        asked = move(store, tenant, key, by=validate_key(who), target=body.to, note=body.note, was=body.state)
        decided = await await_(asked)
    except Misuse:
        return problem(
            409,
            "message-settled",
            "This cannot be decided in its state, or it has changed since you looked: parked messages are resent, "
            "parked and pending ones dropped.",
            next_move="Look at it: GET /v1/messages/{key}",
        )
    return json_reply(200, msgspec.structs.replace(decided, body=None))


async def _refusal(call: ApiRequest, to: str) -> Reply | None:
    """Return the reply to a key that no message has, or that several have; None if one is meant."""
    to = to and validate_name("broker", to)
    found = await await_(find_messages(call.app.store, call.app.settings.tenant, call.params["key"], to))
    targets = sorted({message.target for _, message in found})
    if len(targets) == 1:
        return None
    if not found:
        return problem(404, "no-such-message", "There is no such message.", next_move="List them: GET /v1/messages")
    names = ", ".join(targets)
    return problem(409, "several-messages", f"It went to {names}.", next_move="Say which one is meant, as `to`.")


def _nameless() -> Reply:
    return problem(400, "name-missing", "The request does not say who decides.", next_move="Send your name as `by`.")


# -- what the app declares: the same for all of its tenants --------------------------------------


async def list_brokers(call: ApiRequest) -> Reply:
    app = call.app
    return json_reply(200, Brokers(broker_shapes(app.consumers, app.routing, await await_(list_pauses(app.store)))))


async def list_consumers(call: ApiRequest) -> Reply:
    return json_reply(200, Consumers(consumer_shapes(call.app.consumers, call.app.routing)))


async def pause_or_resume(call: ApiRequest) -> Reply:
    """A pause holds for every tenant, so that only one of the app's own tenant may decide it."""
    body, name = call.body_as(PauseBody), call.params["name"]
    who = call.principal.name or body.by
    if call.app.settings.tenant != call.app.runtime.root.tenant:
        return problem(
            403, "not-yours", "A pause holds for every tenant.", next_move="Ask the server's operator to pause it."
        )
    if not who:
        return _nameless()
    if name not in call.app.routing.targets:
        return problem(404, "no-such-broker", "There is no such broker.", next_move="List them: GET /v1/brokers")
    if body.decision == "pause":
        made = pause_target(call.app.store, name, by=validate_key(who), why=body.note)
        return json_reply(200, await await_(made))
    try:
        return json_reply(200, await await_(resume_target(call.app.store, name)))
    except Misuse:
        return problem(409, "not-paused", "This broker is not paused.", next_move="List them: GET /v1/brokers")


KEY: dict[str, Any] = {"key": "A message's key"}
NAME: dict[str, Any] = {"name": "The name of a broker or webhook"}
GONE = RouteAnswer("There is no such message.", None, PROBLEM)

ROUTES: tuple[ApiRoute, ...] = (
    ApiRoute(
        "GET",
        "/v1/messages",
        "list_messages",
        list_all,
        "List messages",
        query=MessagesQuery,
        tag="messages",
        answers={200: RouteAnswer("Those that need attention first, without their bodies.", Messages)},
    ),
    ApiRoute(
        "GET",
        "/v1/messages/{key}",
        "look_at_message",
        show,
        "Show one message",
        query=WhichQuery,
        params=KEY,
        tag="messages",
        answers={
            200: RouteAnswer("The message.", MessageShape),
            404: GONE,
            409: RouteAnswer("It went to several brokers or webhooks, and none is named.", None, PROBLEM),
        },
    ),
    ApiRoute(
        "POST",
        "/v1/messages/{key}",
        "decide_message",
        decide,
        "Resend or drop a message",
        body=MessageDecision,
        params=KEY,
        tag="messages",
        answers={
            200: RouteAnswer("The message as it is now, without its body.", MessageShape),
            404: GONE,
            409: RouteAnswer("It is in a state in which this cannot be decided, or several are meant.", None, PROBLEM),
        },
    ),
    ApiRoute(
        "GET",
        "/v1/brokers",
        "list_brokers",
        list_brokers,
        "List brokers and webhooks that messages go to",
        tag="messages",
        answers={200: RouteAnswer("With their routes, consumers and pauses.", Brokers)},
    ),
    ApiRoute(
        "POST",
        "/v1/brokers/{name}",
        "pause_broker",
        pause_or_resume,
        "Pause or resume publishing to a broker or webhook",
        body=PauseBody,
        params=NAME,
        tag="messages",
        answers={
            200: RouteAnswer("The pause that holds now, or that has ended.", PausedTarget),
            403: RouteAnswer("The token is another tenant's.", None, PROBLEM),
            404: RouteAnswer("There is no such broker.", None, PROBLEM),
            409: RouteAnswer("It is not paused.", None, PROBLEM),
        },
    ),
    ApiRoute(
        "GET",
        "/v1/consumers",
        "list_consumers",
        list_consumers,
        "List consumers of queues",
        tag="messages",
        answers={200: RouteAnswer("The consumers that the app declares.", Consumers)},
    ),
)
