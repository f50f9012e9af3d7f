"""For whoever runs the server: is it alive, is it ready, what has it done, what does it offer."""

from __future__ import annotations

from msgspec import Struct

from ...doors.reply import Reply, json_reply
from ..call import Call
from ..route import Answer, Route

__all__ = ["ROUTES"]


class Health(Struct, frozen=True):
    status: str


async def healthz(call: Call) -> Reply:
    """The process answers. Says nothing about the store: a restart would not bring that back."""
    return json_reply(200, Health("alive"))


ROUTES: tuple[Route, ...] = (
    Route(
        "GET", "/healthz", "healthz", healthz, "Whether this process is alive", tag="operations",
        answers={200: Answer("It is.", Health)},
    ),
)  # fmt: skip
