"""The claim service: for tools that speak HTTP and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Raw, Struct

from ...inbound.reply import PROBLEM, Reply
from ...operations import await_
from ..openapi import KEY, OPERATION
from ..request import ApiRequest
from ..routing import ApiRoute, Handle, RouteAnswer
from ..services.claim_messages import (
    Claimed,
    ClaimEnded,
    ClaimView,
    CompleteBody,
    FailBody,
    PriorClaim,
    RenewBody,
    Renewed,
    TakeBody,
    always_200,
)
from ..services.claim_service import ClaimService
from .params import body_of

__all__ = ["ROUTES"]


PATH = "/v1/claims/{operation}/{key}"
PARAMS = {
    "operation": "What is done: a name of letters, digits and _ . - @",
    "key": "What makes two requests the same intent, percent-encoded: shop%3Aorder%3A17",
}
SHAPES = {"operation": OPERATION, "key": KEY}
LOST = RouteAnswer("The token has lost its claim; what it found out is kept as evidence.", None, PROBLEM)
FOREIGN = RouteAnswer("The token does not belong to this claim.", None, PROBLEM)


class ClaimQuery(Struct, frozen=True):
    """`always200`: every outcome is answered with 200, and the body has `claimed` and `status`."""

    always200: bool = False


class Outcome(Struct, frozen=True):
    """With `always200`, any outcome: `claimed` and `status` say which. Without, what the answer without it has."""

    state: str
    claimed: bool = False
    status: int = 200
    token: str = ""
    lease_until: float | None = None
    attempt: int = 0
    result: Raw | None = None
    result_kept: bool = False
    run: str = ""
    retry_after: int = 0
    detail: str = ""
    next: str = ""


def _service(call: ApiRequest) -> ClaimService:
    app = call.app

    def life_of(operation: str) -> Any:
        known = app.operations.get(operation)
        return known.policy.life if known else None

    return ClaimService(
        app.claims,
        app.settings.tenant,
        best_effort=app.settings.best_effort,
        life_of=life_of,
        flows=app.flows,
        caller=call.principal.name,
    )


def _ending(verb: Callable[..., Any], kind: type[Any]) -> Handle:
    async def handle(call: ApiRequest) -> Reply:
        query, body = call.ask(ClaimQuery), body_of(call, kind)
        reply = await await_(verb(_service(call), call.params["operation"], call.params["key"], body))
        return always_200(reply) if query.always200 else reply

    return handle


async def look(call: ApiRequest) -> Reply:
    query = call.ask(ClaimQuery)
    reply = await await_(_service(call).look(call.params["operation"], call.params["key"]))
    return always_200(reply) if query.always200 else reply


ROUTES: tuple[ApiRoute, ...] = (
    ApiRoute(
        "PUT",
        PATH,
        "claim",
        _ending(ClaimService.take, TakeBody),
        "Claim a key before any work is done",
        body=TakeBody,
        query=ClaimQuery,
        params=PARAMS,
        shapes=SHAPES,
        tag="claims",
        answers={
            201: RouteAnswer("It is yours: do the work, then complete it.", Claimed),
            200: RouteAnswer("It was done before, with this result.", (PriorClaim, Outcome)),
            409: RouteAnswer(
                "Somebody is at work on it, or a person must say what happened.",
                None,
                PROBLEM,
                headers={"Retry-After": "seconds, while somebody is at work"},
            ),
            422: RouteAnswer("The key was claimed with another payload.", None, PROBLEM),
        },
    ),
    ApiRoute(
        "GET",
        PATH,
        "look_at_claim",
        look,
        "Look at a claim; changes nothing",
        query=ClaimQuery,
        params=PARAMS,
        shapes=SHAPES,
        tag="claims",
        answers={
            200: RouteAnswer("As it is.", (ClaimView, Outcome)),
            404: RouteAnswer("Nobody has claimed it.", None, PROBLEM),
        },
    ),
    ApiRoute(
        "POST",
        f"{PATH}/complete",
        "complete_claim",
        _ending(ClaimService.complete, CompleteBody),
        "Say that the work is done, and what came of it",
        body=CompleteBody,
        query=ClaimQuery,
        params=PARAMS,
        shapes=SHAPES,
        tag="claims",
        answers={200: RouteAnswer("It is on record.", (ClaimEnded, Outcome)), 403: FOREIGN, 409: LOST},
    ),
    ApiRoute(
        "POST",
        f"{PATH}/fail",
        "fail_claim",
        _ending(ClaimService.fail, FailBody),
        "Say that the work failed, or that nobody knows",
        body=FailBody,
        query=ClaimQuery,
        params=PARAMS,
        shapes=SHAPES,
        tag="claims",
        answers={200: RouteAnswer("It is on record.", (ClaimEnded, Outcome)), 403: FOREIGN, 409: LOST},
    ),
    ApiRoute(
        "POST",
        f"{PATH}/renew",
        "renew_claim",
        _ending(ClaimService.renew, RenewBody),
        "Hold on for another lease",
        body=RenewBody,
        query=ClaimQuery,
        params=PARAMS,
        shapes=SHAPES,
        tag="claims",
        answers={200: RouteAnswer("It is held until then.", (Renewed, Outcome)), 403: FOREIGN, 409: LOST},
    ),
)
