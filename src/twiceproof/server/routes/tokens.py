"""Routes of API tokens: list them, create one, revoke one. They belong to the server's operator."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from ...claims.claim import validate_name
from ...inbound.reply import PROBLEM, Reply, json_reply, problem
from ...keys import validate_key
from ...keys.duration import seconds
from ...operations import await_
from ..openapi import KEY_OR_NONE, NAME, NAME_OR_NONE, SPAN_OR_NONE
from ..request import ApiRequest, RequestRefused
from ..routing import ApiRoute, RouteAnswer
from ..tokens import ApiToken, Scope, create_token, list_tokens, revoke_token

__all__ = ["ROUTES", "TokenBody", "TokenShape"]

Grant = Literal["ingest", "run", "approve", "read", "release", "admin"]


class TokenBody(Struct, frozen=True, forbid_unknown_fields=True):
    """`tenant`: whose data it is for, by default the app's own. `expires`: after this time, such as 90d; by default not
    until it is revoked. `by`: the name of the person who acts, if the caller has no token."""

    name: Annotated[str, Meta(extra_json_schema=NAME)]
    scopes: Annotated[list[Grant], Meta(min_length=1)]
    tenant: Annotated[str, Meta(extra_json_schema=NAME_OR_NONE)] = ""
    expires: Annotated[str, Meta(extra_json_schema=SPAN_OR_NONE)] = ""
    by: Annotated[str, Meta(extra_json_schema=KEY_OR_NONE)] = ""


class RevokeBody(Struct, frozen=True, forbid_unknown_fields=True):
    """`by`: the name of the person who acts, if the caller has no token."""

    by: Annotated[str, Meta(extra_json_schema=KEY_OR_NONE)] = ""


class TokenShape(Struct, frozen=True, kw_only=True):
    """What is stored about a token, without the token itself. `state`: live, expired or revoked."""

    id: str
    name: str
    tenant: str
    scopes: tuple[Scope, ...]
    state: str
    created_at: float
    expires_at: float | None


class NewToken(TokenShape, frozen=True, kw_only=True):
    """A token that was created. `token` is shown only once: its hash is stored."""

    token: str


class TokenList(Struct, frozen=True):
    """All tokens of all tenants, newest first."""

    tokens: list[TokenShape]


def _shape(one: ApiToken, now: float) -> TokenShape:
    return TokenShape(
        id=one.id,
        name=one.name,
        tenant=one.tenant,
        scopes=one.scopes,
        state=one.state_at(now),
        created_at=one.created_at,
        expires_at=one.expires_at,
    )


async def list_all(call: ApiRequest) -> Reply:
    found = await await_(list_tokens(call.app.store))
    return json_reply(200, TokenList([_shape(one, call.now) for one in reversed(found)]))


async def create(call: ApiRequest) -> Reply:
    body = call.body_as(TokenBody)
    by = _actor(call, body.by)
    tenant = body.tenant and validate_name("tenant", body.tenant)
    lasts = seconds(body.expires, name="expires") if body.expires else None
    asked = create_token(
        call.app.store,
        body.name,
        tenant or call.app.settings.tenant,
        [Scope(one) for one in body.scopes],
        lasts,
        by=by,
    )
    secret, made = await await_(asked)
    shape = _shape(made, made.created_at)
    return json_reply(
        201,
        NewToken(
            id=shape.id,
            name=shape.name,
            tenant=shape.tenant,
            scopes=shape.scopes,
            state=shape.state,
            created_at=shape.created_at,
            expires_at=shape.expires_at,
            token=secret,
        ),
    )


async def revoke(call: ApiRequest) -> Reply:
    body, name = call.body_as(RevokeBody), call.params["id"]
    by = _actor(call, body.by)
    known = {one.id for one in await await_(list_tokens(call.app.store))}
    if name not in known:
        return problem(404, "no-such-token", "There is no such token.", next_move="List them: GET /v1/tokens")
    revoked = await await_(revoke_token(call.app.store, name, by=by))
    return json_reply(200, _shape(revoked, call.now))


def _actor(call: ApiRequest, by: str) -> str:
    """Return who acts, unless it is another tenant's: its administrator may not make tokens for others."""
    if call.app.settings.tenant != call.app.runtime.root.tenant:
        raise RequestRefused(
            problem(403, "not-yours", "Tokens belong to the operator of this server.", next_move="Ask them.")
        )
    given = validate_key(by) if by else "http"
    return call.principal.name or given


FOREIGN = RouteAnswer("The token lacks the scope for this, or is another tenant's.", None, PROBLEM)

ROUTES: tuple[ApiRoute, ...] = (
    ApiRoute(
        "GET",
        "/v1/tokens",
        "list_tokens",
        list_all,
        "List API tokens",
        tag="tokens",
        answers={200: RouteAnswer("The tokens.", TokenList)},
    ),
    ApiRoute(
        "POST",
        "/v1/tokens",
        "create_token",
        create,
        "Create an API token, which is shown once",
        body=TokenBody,
        tag="tokens",
        answers={201: RouteAnswer("The token.", NewToken), 403: FOREIGN},
    ),
    ApiRoute(
        "POST",
        "/v1/tokens/{id}/revoke",
        "revoke_token",
        revoke,
        "Revoke an API token",
        body=RevokeBody,
        params={"id": "A token's id, as it is listed"},
        tag="tokens",
        answers={
            200: RouteAnswer("The token, revoked.", TokenShape),
            403: FOREIGN,
            404: RouteAnswer("There is no such token.", None, PROBLEM),
        },
    ),
)
