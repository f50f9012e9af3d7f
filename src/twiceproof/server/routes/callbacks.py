"""Callbacks: the URLs that runs hand out. The token in the address is all the proof there is.

There is no GET: what opens links to see where they lead hears 405, the same for every token, and changes nothing.
"""

from __future__ import annotations

from ...doors.callbacks import CallbackAnswer, call_back
from ...doors.reply import PROBLEM, Reply
from ...drive import await_
from ...flows.waits.arrivals import MOST
from ..call import Call
from ..route import Answer, Route
from .reading import json_of

__all__ = ["ROUTES"]

PATH = "/v1/callbacks/{token}"
PARAMS = {"token": "The end of the URL that the run handed out"}


async def deliver(call: Call) -> Reply:
    payload = json_of(call)
    return await await_(call_back(call.app.store, call.params["token"], payload, mark=call.app.parts.owner()))


ROUTES: tuple[Route, ...] = (
    Route(
        "POST", PATH, "call_back", deliver, "End a wait, once", params=PARAMS, tag="waits", largest=MOST,
        tolerant=True, handed_out=True,  # what calls back may add to the URL that it was given
        answers={
            200: Answer("The payload that counts: the first one's.", CallbackAnswer),
            404: Answer("There is no such callback.", None, PROBLEM),
        },
    ),
)  # fmt: skip
