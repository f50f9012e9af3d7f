"""The webhook routes. Deliveries are verified by their source when they are admitted."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from ...app.app import App
from ...inbound.admit import admit
from ...inbound.hook import HookShape, hook_shape
from ...inbound.reply import JSON, Reply, json_reply
from ...operations import await_
from ..request import ApiRequest
from ..routing import ANY, LARGEST, ApiRoute, RouteAnswer

__all__ = ["ROUTES", "HookList"]


NAME = {"name": "The declared name of the webhook"}


async def receive(call: ApiRequest) -> Reply:
    name = call.params["name"]
    return await await_(admit(call.app.runtime, call.app.hooks.get(name), call.envelope(name)))


class HookList(Struct, frozen=True):
    """The declared webhooks by name."""

    hooks: list[HookShape]


async def list_hooks(call: ApiRequest) -> Reply:
    return json_reply(200, HookList([hook_shape(hook) for _, hook in sorted(call.app.hooks.items())]))


def largest_for(app: App, params: Mapping[str, str]) -> int:
    """The largest body of this sender; the default for an unknown webhook."""
    hook = app.hooks.get(params["name"])
    return LARGEST if hook is None else hook.source.largest


def foreign_authorization(app: App, params: Mapping[str, str]) -> bool:
    """Whether the Authorization header carries the sender's own secret, which only the hook checks."""
    hook = app.hooks.get(params["name"])
    return hook is not None and hook.source.by_authorization


ANSWERS = {
    200: RouteAnswer("Admitted or a duplicate: do not send it again. The body depends on the sender."),
    401: RouteAnswer("There is no such webhook, or its signature is wrong."),
}


def _route(method: str, name: str, summary: str, media: str = JSON) -> ApiRoute:
    return ApiRoute(
        method,
        "/hooks/{name}",
        name,
        receive,
        summary,
        tag="webhooks",
        media=media,
        params=NAME,
        answers=ANSWERS,
        largest_for=largest_for,
        foreign_authorization=foreign_authorization,
        ignores_unknown_query=True,
    )


ROUTES: tuple[ApiRoute, ...] = (
    _route("POST", "receive_webhook", "Receive a delivery", ANY),
    _route("OPTIONS", "greet_webhook", "Answer a sender's handshake"),
    ApiRoute(
        "GET",
        "/v1/hooks",
        "list_hooks",
        list_hooks,
        "List webhooks, what they start, and whether they can be verified",
        tag="hooks",
        answers={200: RouteAnswer("The webhooks.", HookList)},
    ),
)
