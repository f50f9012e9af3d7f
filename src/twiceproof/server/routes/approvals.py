"""Approvals: GET shows, POST decides. By id for programs and operators, by link for people."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import parse_qsl, urlsplit

import msgspec
from msgspec import Meta, Struct

from ...claims.claim import validate_name
from ...flows.waits.approvals import open_approvals
from ...flows.waits.records import Approval, Decided
from ...inbound.reply import PROBLEM, Reply, json_reply, problem
from ...operations import Operation, await_
from ..openapi import NAME_OR_NONE
from ..request import ApiRequest, RequestRefused
from ..routing import ApiRoute, RouteAnswer
from ..services.approvals import (
    ApprovalAccess,
    DecideBody,
    Shown,
    by_id,
    by_link,
    decide_at,
    page_of_decision,
    page_of_problem,
    page_of_view,
    shown_at,
)
from .params import body_of

__all__ = ["ROUTES"]


FORM = "application/x-www-form-urlencoded"
BY_ID, BY_LINK = "/v1/approvals/{id}", "/v1/approvals/link/{token}"


class ApprovalsQuery(Struct, frozen=True):
    flow: Annotated[str, Meta(extra_json_schema=NAME_OR_NONE)] = ""
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 100


class Approvals(Struct, frozen=True):
    approvals: list[Approval]


async def asked(call: ApiRequest) -> Reply:
    query = call.ask(ApprovalsQuery)
    tenant = call.app.settings.tenant
    prefix = f"{tenant}/{validate_name('flow', query.flow)}/" if query.flow else f"{tenant}/"
    return json_reply(200, Approvals(await await_(open_approvals(call.app.store, prefix, query.limit))))


async def show(call: ApiRequest) -> Reply:
    seat = await await_(_seat(call))
    if isinstance(seat, Reply):
        return _dressed(call, seat)
    shown = await await_(shown_at(call.app.store, seat, call.now))
    return page_of_view(shown, seat.by, _referrer(call)) if _wants_page(call) else json_reply(200, shown, UNKEPT)


async def decide(call: ApiRequest) -> Reply:
    try:
        body = _body(call)
    except RequestRefused as refused:
        return _dressed(call, refused.reply)
    seat = await await_(_seat(call))
    if isinstance(seat, Reply):
        return _dressed(call, seat)
    told = await await_(decide_at(call.app.store, seat, body, call.now, mark=call.app.parts.owner()))
    if isinstance(told, Reply):
        return _dressed(call, told)
    agreed = told.decision is not None and told.decision.approved is (body.decision == "approve")
    status = 200 if agreed else 409
    return page_of_decision(seat.approval, told, status) if _wants_page(call) else json_reply(status, told, UNKEPT)


UNKEPT = (("cache-control", "no-store"), ("referrer-policy", "no-referrer"))


def _seat(call: ApiRequest) -> Operation[ApprovalAccess | Reply]:
    if "token" in call.params:
        return by_link(call.app.store, call.params["token"])
    return by_id(call.app.store, call.app.settings.tenant, call.params["id"], call.principal.name)


def _referrer(call: ApiRequest) -> str:
    """A link's address is a secret. One by id is none, and its form must be known as this server's own page."""
    return "no-referrer" if "token" in call.params else "same-origin"


def _wants_page(call: ApiRequest) -> bool:
    return "text/html" in call.headers.get("accept", "")


def _dressed(call: ApiRequest, reply: Reply) -> Reply:
    return page_of_problem(reply) if _wants_page(call) else reply


def _is_own_page(call: ApiRequest) -> bool:
    """By what the browser says of itself. A link's page tells no origin; then its nonce alone speaks for it."""
    site, origin = call.headers.get("sec-fetch-site"), call.headers.get("origin", "null")
    if site is not None:
        return site in ("same-origin", "none")
    own = {call.headers.get("host", ""), urlsplit(call.app.settings.url).netloc}
    return origin == "null" or origin.rpartition("//")[2] in own


def _body(call: ApiRequest) -> DecideBody:
    """As JSON, or as the page's own form. A form on somebody else's page is not ours."""
    if not _is_own_page(call):
        raise RequestRefused(
            _refused(403, "foreign-page", "This was sent from another site's page.", "Open the link itself.")
        )
    if not call.headers.get("content-type", "").startswith(FORM):
        return body_of(call, DecideBody)
    try:
        pairs = parse_qsl(call.body.decode(), keep_blank_values=True, max_num_fields=20, errors="strict")
        fields = dict(pairs)
        if len(fields) < len(pairs):  # two choices are none
            raise ValueError
        decision, _, nonce = fields.pop("choice", "").partition(":")
        return msgspec.convert({**fields, "decision": decision, "nonce": nonce}, DecideBody)
    except (ValueError, msgspec.ValidationError):
        why = "The form came back without a decision."
        raise RequestRefused(_refused(400, "wrong-form", why, "Open the page again, and choose one.")) from None


def _refused(status: int, kind: str, detail: str, move: str) -> Reply:
    return problem(status, kind, detail, next_move=move)


SHOWN = RouteAnswer("What is asked; a page where `Accept` asks for one.", Shown)
GONE = RouteAnswer("There is no such approval, or its time is over.", None, PROBLEM)
CHANGED = RouteAnswer("What is asked has changed.", None, PROBLEM)
DECIDED = {
    200: RouteAnswer("What was decided; `first` is whether by this request.", Decided),
    403: RouteAnswer("Not from a page that was opened lately, or not this person's to decide.", None, PROBLEM),
    404: GONE,
    409: RouteAnswer("Decided otherwise before.", Decided),
    410: RouteAnswer("Its run has ended.", None, PROBLEM),
    422: CHANGED,
}
ID, TOKEN = {"id": "An approval's id"}, {"token": "The end of the link that was sent"}

ROUTES: tuple[ApiRoute, ...] = (
    ApiRoute(
        "GET",
        "/v1/approvals",
        "list_approvals",
        asked,
        "What waits for somebody's word",
        query=ApprovalsQuery,
        tag="approvals",
        answers={200: RouteAnswer("The oldest first.", Approvals)},
    ),
    ApiRoute(
        "GET",
        BY_ID,
        "look_at_approval",
        show,
        "What is asked; changes nothing",
        params=ID,
        tag="approvals",
        answers={200: SHOWN, 404: GONE},
    ),
    ApiRoute(
        "POST",
        BY_ID,
        "decide_approval",
        decide,
        "Say yes or no, once",
        body=DecideBody,
        params=ID,
        tag="approvals",
        answers=DECIDED,
    ),
    ApiRoute(
        "GET",
        BY_LINK,
        "open_link",
        show,
        "What a link's owner is asked; changes nothing",
        params=TOKEN,
        tag="approvals",
        answers={200: SHOWN, 404: GONE, 422: CHANGED},
        tolerant=True,
        handed_out=True,  # mail services add theirs
    ),
    ApiRoute(
        "POST",
        BY_LINK,
        "decide_by_link",
        decide,
        "Say yes or no, once",
        body=DecideBody,
        params=TOKEN,
        tag="approvals",
        answers=DECIDED,
        tolerant=True,
        handed_out=True,  # the form goes to where its page was opened
    ),
)
