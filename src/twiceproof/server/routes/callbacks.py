"""The callback route, POST /v1/callbacks/{token}, which ends a wait.

The token in the URL is the only proof. There is no GET: link previews get 405, the same for every token, and change
nothing.
"""

from __future__ import annotations

from typing import Any

from msgspec import Raw, Struct

from ...errors import NoSuchWait, ValueRefused
from ...flows.waits.callbacks import deliver_by_token
from ...flows.waits.records import MOST, Delivered
from ...inbound.reply import PROBLEM, Reply, json_reply, problem
from ...operations import Operation, await_
from ...stores.base import Store
from ..request import ApiRequest
from ..routing import ApiRoute, RouteAnswer

__all__ = ["ROUTES", "CallbackAnswer", "call_back"]


class CallbackAnswer(Struct, frozen=True):
    """`first`: this call ended the wait. `answer` is the payload of the first call."""

    first: bool
    state: str  # arrived; timeout: it came too late; ended: the run has ended without it
    answer: Any = None


def call_back(store: Store, token: str, payload: Raw, *, mark: str) -> Operation[Reply]:
    """Deliver a payload. Reply 200 whatever the outcome, so that it is not sent again; 404 for an unknown token."""
    size = len(bytes(payload))
    if size > MOST:
        return problem(
            413,
            "too-large",
            f"The payload has {size:,} bytes, more than {MOST:,}.",
            next_move="Send a reference instead.",
        )
    try:
        delivered: Delivered = yield from deliver_by_token(store, token, payload, mark=mark)
    except NoSuchWait:
        return _no_such_callback()
    except ValueRefused as error:
        return problem(400, "refused", str(error), next_move="Send plain JSON.")
    return json_reply(200, CallbackAnswer(delivered.first, delivered.state, delivered.answer))


def _no_such_callback() -> Reply:
    return problem(
        404,
        "no-such-callback",
        "There is no such callback, or it has expired.",
        next_move="Check the URL that the run issued.",
    )


PATH = "/v1/callbacks/{token}"
PARAMS = {"token": "The last part of the URL that the run issued"}


async def deliver(call: ApiRequest) -> Reply:
    payload = call.json_body()
    return await await_(call_back(call.app.store, call.params["token"], payload, mark=call.app.runtime.owner()))


ROUTES: tuple[ApiRoute, ...] = (
    ApiRoute(
        "POST",
        PATH,
        "call_back",
        deliver,
        "End a wait, once",
        params=PARAMS,
        tag="waits",
        largest=MOST,
        ignores_unknown_query=True,
        secret_path=True,  # callers may add parameters to the URL
        answers={
            200: RouteAnswer("The payload of the first call, which counts.", CallbackAnswer),
            404: RouteAnswer("There is no such callback.", None, PROBLEM),
        },
    ),
)
