"""Reviews: a person's word about what nobody else can know."""

from __future__ import annotations

from ...claims.states import Lifetime
from ...doors.reply import PROBLEM, Reply, problem
from ...doors.runs.settling import SettleBody, settle
from ...drive import await_
from ...flows.history.review import Settled
from ...keys import validate_key
from ..call import Call
from ..route import Answer, Route
from .reading import body_of
from .run_named import place_named

__all__ = ["ROUTES"]


async def settle_review(call: Call) -> Reply:
    body = body_of(call, SettleBody)
    at = place_named(call)
    who = call.principal.name or body.by
    if not who:
        return problem(400, "nameless", "Nobody knows whose word this is.", next_move="Say who you are (`by`).")
    operation = at.space.split("/", 2)[1]
    return await await_(settle(call.app.claims, at, body, validate_key(who), _life(call, operation)))


def _life(call: Call, operation: str) -> Lifetime | None:
    known = call.app.flows.get(operation) or call.app.operations.get(operation)
    return known.policy.life if known else None


ROUTES: tuple[Route, ...] = (
    Route(
        "POST", "/v1/reviews/{name}", "settle", settle_review, "Say what happened, and have it go on", body=SettleBody,
        params={"name": "The id of a run, or of a claim: `run` in its answers"}, tag="reviews",
        answers={
            200: Answer("What it is now.", Settled),
            404: Answer("There is no such run or claim.", None, PROBLEM),
            409: Answer("There is nothing to settle now, or too little was said.", None, PROBLEM),
        },
    ),
)  # fmt: skip
