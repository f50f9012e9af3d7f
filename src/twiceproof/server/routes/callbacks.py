"""POST /v1/callbacks/{token}."""

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
from .params import json_of

__all__ = ["ROUTES", "CallbackAnswer", "call_back"]


class CallbackAnswer(Struct, frozen=True):
    """`first`: this one counts. `answer` is the payload that counts: the first one's."""

    first: bool
    state: str  # arrived; timeout: it came too late; ended: its run is done and did not wait for it
    answer: Any = None


def call_back(store: Store, token: str, payload: Raw, *, mark: str) -> Operation[Reply]:
    """200 whatever became of it: nobody must send it again. 404 for what leads nowhere."""
    size = len(bytes(payload))
    if size > MOST:
        return problem(
            413,
            "too-large",
            f"The payload has {size:,} bytes, more than {MOST:,}.",
            next_move="Send a reference instead.",
        )
    try:
        told: Delivered = yield from deliver_by_token(store, token, payload, mark=mark)
    except NoSuchWait:
        return _nowhere()
    except ValueRefused as error:
        return problem(400, "refused", str(error), next_move="Send plain JSON.")
    return json_reply(200, CallbackAnswer(told.first, told.state, told.answer))


def _nowhere() -> Reply:
    return problem(
        404,
        "no-such-callback",
        "There is no such callback, or its time is over.",
        next_move="Check the URL that the run handed out.",
    )


PATH = "/v1/callbacks/{token}"
PARAMS = {"token": "The end of the URL that the run handed out"}


async def deliver(call: ApiRequest) -> Reply:
    payload = json_of(call)
    return await await_(call_back(call.app.store, call.params["token"], payload, mark=call.app.parts.owner()))


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
        tolerant=True,
        handed_out=True,  # what calls back may add to the URL that it was given
        answers={
            200: RouteAnswer("The payload that counts: the first one's.", CallbackAnswer),
            404: RouteAnswer("There is no such callback.", None, PROBLEM),
        },
    ),
)
