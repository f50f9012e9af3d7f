"""The routes of the claim service, for tools that can only send HTTP requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any
from unicodedata import normalize

from msgspec import Meta, Raw, Struct

from ...claims.claim import validate_name
from ...claims.views import EVERY_STATE, ClaimPage, list_claims
from ...errors import Misuse
from ...inbound.reply import PROBLEM, Reply, json_reply, problem
from ...operations import await_
from ..openapi import KEY, NAME_OR_NONE, OPERATION
from ..problems import no_page
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

__all__ = ["ROUTES"]


PATH = "/v1/claims/{operation}/{key}"
PARAMS = {
    "operation": "The name of the work: letters, digits and _ . - @",
    "key": "Identifies the request, percent-encoded: shop%3Aorder%3A17",
}
SCHEMAS = {"operation": OPERATION, "key": KEY}
LOST = RouteAnswer("The token has lost its claim; what it reported is stored as evidence.", None, PROBLEM)
FOREIGN = RouteAnswer("The token does not belong to this claim.", None, PROBLEM)


class ClaimQuery(Struct, frozen=True):
    """`always200`: every outcome has status 200, and the body has `claimed` and `status`."""

    always200: bool = False


class Outcome(Struct, frozen=True):
    """Any outcome with `always200`; `claimed` and `status` say which. Further fields are those of the plain reply."""

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


class ClaimsQuery(Struct, frozen=True):
    """`prefix`: only keys that begin so; with `operation`, they are found by an index. `after` continues a list, with
    `after`, `before` or `newer` of the response before."""

    operation: Annotated[str, Meta(extra_json_schema=NAME_OR_NONE)] = ""
    state: Annotated[str, Meta(extra_json_schema={"enum": ["", "all", *EVERY_STATE]})] = ""
    prefix: str = ""
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 100
    after: str | None = None


async def list_all(call: ApiRequest) -> Reply:
    query = call.query_as(ClaimsQuery)
    if query.state not in ("", "all", *EVERY_STATE):
        known = ", ".join((*EVERY_STATE, "all"))
        return problem(
            400, "bad-query", f"{query.state!r:.40} is not a state of a claim.", next_move=f"Use one of {known}."
        )
    states = EVERY_STATE if query.state in ("", "all") else (query.state,)
    begins = f"{call.app.settings.tenant}/"
    begins += f"{validate_name('operation', query.operation)}/" if query.operation else ""
    key = normalize("NFC", query.prefix)
    try:
        asked = list_claims(call.app.store, states, begins, limit=query.limit, after=query.after, key=key)
        return json_reply(200, await await_(asked))
    except Misuse:
        return no_page()


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


def _handler(verb: Callable[..., Any], kind: type[Any]) -> Handle:
    async def handle(call: ApiRequest) -> Reply:
        query, body = call.query_as(ClaimQuery), call.body_as(kind)
        reply = await await_(verb(_service(call), call.params["operation"], call.params["key"], body))
        return always_200(reply) if query.always200 else reply

    return handle


async def look(call: ApiRequest) -> Reply:
    query = call.query_as(ClaimQuery)
    reply = await await_(_service(call).look(call.params["operation"], call.params["key"]))
    return always_200(reply) if query.always200 else reply


def _report(verb: str, summary: str, method: Callable[..., Any], body: type[Any], answer: RouteAnswer) -> ApiRoute:
    """The route by which the holder of a token reports on its claim."""
    return ApiRoute(
        "POST",
        f"{PATH}/{verb}",
        f"{verb}_claim",
        _handler(method, body),
        summary,
        body=body,
        query=ClaimQuery,
        params=PARAMS,
        schemas=SCHEMAS,
        tag="claims",
        answers={200: answer, 403: FOREIGN, 409: LOST},
    )


ROUTES: tuple[ApiRoute, ...] = (
    ApiRoute(
        "GET",
        "/v1/claims",
        "list_claims",
        list_all,
        "List claims, the newest first",
        query=ClaimsQuery,
        tag="claims",
        answers={
            200: RouteAnswer("One page of the list.", ClaimPage),
            404: RouteAnswer("`after` is not a position in this list.", None, PROBLEM),
        },
    ),
    ApiRoute(
        "PUT",
        PATH,
        "claim",
        _handler(ClaimService.take, TakeBody),
        "Claim a key before doing the work",
        body=TakeBody,
        query=ClaimQuery,
        params=PARAMS,
        schemas=SCHEMAS,
        tag="claims",
        answers={
            201: RouteAnswer("Claimed: do the work, then complete it.", Claimed),
            200: RouteAnswer("Done before, with this result.", (PriorClaim, Outcome)),
            409: RouteAnswer(
                "Another caller is at work on it, or it needs review.",
                None,
                PROBLEM,
                headers={"Retry-After": "seconds, while another caller is at work"},
            ),
            422: RouteAnswer("The key was claimed with a different payload.", None, PROBLEM),
        },
    ),
    ApiRoute(
        "GET",
        PATH,
        "look_at_claim",
        look,
        "Show a claim; changes nothing",
        query=ClaimQuery,
        params=PARAMS,
        schemas=SCHEMAS,
        tag="claims",
        answers={
            200: RouteAnswer("The claim.", (ClaimView, Outcome)),
            404: RouteAnswer("It is not claimed.", None, PROBLEM),
        },
    ),
    _report(
        "complete",
        "Report that the work is done, with its result",
        ClaimService.complete,
        CompleteBody,
        RouteAnswer("It is recorded.", (ClaimEnded, Outcome)),
    ),
    _report(
        "fail",
        "Report that the work failed, or that its outcome is unknown",
        ClaimService.fail,
        FailBody,
        RouteAnswer("It is recorded.", (ClaimEnded, Outcome)),
    ),
    _report(
        "renew",
        "Extend the lease",
        ClaimService.renew,
        RenewBody,
        RouteAnswer("The new end of the lease.", (Renewed, Outcome)),
    ),
)
