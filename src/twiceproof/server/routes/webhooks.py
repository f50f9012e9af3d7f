"""Webhooks: what outside senders post. Whether it is believed is decided by its signature, at the one way in."""

from __future__ import annotations

from collections.abc import Mapping

from ...app.app import App
from ...inbound.reply import Reply
from ...operations import await_
from ..request import ApiRequest
from ..routing import ANY, LARGEST, ApiRoute, RouteAnswer

__all__ = ["ROUTES"]


NAME = {"name": "The webhook's name, as it was declared"}


async def receive(call: ApiRequest) -> Reply:
    return await await_(call.app.admit(call.envelope(call.params["name"])))


def room(app: App, params: Mapping[str, str]) -> int:
    """As much as the sender may send; what it is not known from, no more than usual."""
    hook = app.hooks.get(params["name"])
    return LARGEST if hook is None else hook.source.largest


def signs_on(app: App, params: Mapping[str, str]) -> bool:
    """Whether the sender's own secret comes in the Authorization header: the hook looks at it, and nobody else."""
    hook = app.hooks.get(params["name"])
    return hook is not None and hook.source.by_authorization


ANSWERS = {
    200: RouteAnswer(
        "Taken in, or known before: do not send it again. The body says which, in words of the sender's own."
    ),
    401: RouteAnswer("There is no such webhook, or its signature does not fit."),
}

ROUTES: tuple[ApiRoute, ...] = (
    ApiRoute(
        "POST",
        "/hooks/{name}",
        "receive_webhook",
        receive,
        "Take in what a sender posts",
        tag="webhooks",
        media=ANY,
        params=NAME,
        answers=ANSWERS,
        room=room,
        signs_on=signs_on,
        tolerant=True,
    ),
    ApiRoute(
        "OPTIONS",
        "/hooks/{name}",
        "greet_webhook",
        receive,
        "Answer a sender that asks whether it may post",
        tag="webhooks",
        params=NAME,
        answers=ANSWERS,
        room=room,
        signs_on=signs_on,
        tolerant=True,
    ),
)
