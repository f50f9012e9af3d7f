"""Approval routes: GET shows, POST decides. By id for programs and operators, by link for people."""

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
    ApprovalView,
    DecideBody,
    by_id,
    by_link,
    decide_at,
    page_of_decision,
    page_of_problem,
    page_of_view,
    view_at,
)

__all__ = ["ROUTES"]


FORM = "application/x-www-form-urlencoded"
BY_ID, BY_LINK = "/v1/approvals/{id}", "/v1/approvals/link/{token}"


class ApprovalsQuery(Struct, frozen=True):
    flow: Annotated[str, Meta(extra_json_schema=NAME_OR_NONE)] = ""
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 100


class Approvals(Struct, frozen=True):
    approvals: list[Approval]


async def list_pending(call: ApiRequest) -> Reply:
    query = call.query_as(ApprovalsQuery)
    tenant = call.app.settings.tenant
    prefix = f"{tenant}/{validate_name('flow', query.flow)}/" if query.flow else f"{tenant}/"
    return json_reply(200, Approvals(await await_(open_approvals(call.app.store, prefix, query.limit))))


async def show(call: ApiRequest) -> Reply:
    access = await await_(_access(call))
    if isinstance(access, Reply):
        return _as_page_if_wanted(call, access)
    shown = await await_(view_at(call.app.store, access, call.now))
    return page_of_view(shown, access.by, _referrer(call)) if _wants_page(call) else json_reply(200, shown, NOT_CACHED)


async def decide(call: ApiRequest) -> Reply:
    try:
        body = _body(call)
    except RequestRefused as refused:
        return _as_page_if_wanted(call, refused.reply)
    access = await await_(_access(call))
    if isinstance(access, Reply):
        return _as_page_if_wanted(call, access)
    decided = await await_(decide_at(call.app.store, access, body, call.now, mark=call.app.runtime.owner()))
    if isinstance(decided, Reply):
        return _as_page_if_wanted(call, decided)
    agreed = decided.decision is not None and decided.decision.approved is (body.decision == "approve")
    status = 200 if agreed else 409
    return (
        page_of_decision(access.approval, decided, status)
        if _wants_page(call)
        else json_reply(status, decided, NOT_CACHED)
    )


NOT_CACHED = (("cache-control", "no-store"), ("referrer-policy", "no-referrer"))


def _access(call: ApiRequest) -> Operation[ApprovalAccess | Reply]:
    if "token" in call.params:
        return by_link(call.app.store, call.params["token"])
    return by_id(call.app.store, call.app.settings.tenant, call.params["id"], call.principal.name)


def _referrer(call: ApiRequest) -> str:
    """A link's URL is a secret. A URL by id is not, and its form must be recognisable as this server's own page."""
    return "no-referrer" if "token" in call.params else "same-origin"


def _wants_page(call: ApiRequest) -> bool:
    return "text/html" in call.headers.get("accept", "")


def _as_page_if_wanted(call: ApiRequest, reply: Reply) -> Reply:
    return page_of_problem(reply) if _wants_page(call) else reply


def _is_own_page(call: ApiRequest) -> bool:
    """Whether the browser says that the request comes from this server's page. A link's page sends no origin: then only
    its nonce is checked.
    """
    site, origin = call.headers.get("sec-fetch-site"), call.headers.get("origin", "null")
    if site is not None:
        return site in ("same-origin", "none")
    own = {call.headers.get("host", ""), urlsplit(call.app.settings.url).netloc}
    return origin == "null" or origin.rpartition("//")[2] in own


def _body(call: ApiRequest) -> DecideBody:
    """Read a decision as JSON or from the page's own form. Forms of other sites are refused."""
    if not _is_own_page(call):
        raise RequestRefused(
            problem(
                403,
                "cross-site",
                "This was sent from a page of another site.",
                next_move="Open the link itself.",
            )
        )
    if not call.headers.get("content-type", "").startswith(FORM):
        return call.body_as(DecideBody)
    try:
        pairs = parse_qsl(call.body.decode(), keep_blank_values=True, max_num_fields=20, errors="strict")
        fields = dict(pairs)
        if len(fields) < len(pairs):  # two choices are ambiguous
            raise ValueError
        decision, _, nonce = fields.pop("choice", "").partition(":")
        return msgspec.convert({**fields, "decision": decision, "nonce": nonce}, DecideBody)
    except (ValueError, msgspec.ValidationError):
        why = "The form was sent without a decision."
        raise RequestRefused(
            problem(400, "wrong-form", why, next_move="Open the page again, and choose one.")
        ) from None


SHOWN = RouteAnswer("The pending decision; an HTML page if `Accept` asks for one.", ApprovalView)
GONE = RouteAnswer("There is no such approval, or it has expired.", None, PROBLEM)
CHANGED = RouteAnswer("What is to be decided has changed.", None, PROBLEM)
DECIDED = {
    200: RouteAnswer("The decision; `first` is true if this request made it.", Decided),
    403: RouteAnswer("Not from a recently opened page, or not this person's decision.", None, PROBLEM),
    404: GONE,
    409: RouteAnswer("Already decided differently.", Decided),
    410: RouteAnswer("Its run has ended.", None, PROBLEM),
    422: CHANGED,
}
ID, TOKEN = {"id": "An approval's id"}, {"token": "The last part of the link that was sent"}

ROUTES: tuple[ApiRoute, ...] = (
    ApiRoute(
        "GET",
        "/v1/approvals",
        "list_approvals",
        list_pending,
        "List pending approvals",
        query=ApprovalsQuery,
        tag="approvals",
        answers={200: RouteAnswer("Oldest first.", Approvals)},
    ),
    ApiRoute(
        "GET",
        BY_ID,
        "look_at_approval",
        show,
        "Show a pending decision; changes nothing",
        params=ID,
        tag="approvals",
        answers={200: SHOWN, 404: GONE},
    ),
    ApiRoute(
        "POST",
        BY_ID,
        "decide_approval",
        decide,
        "Approve or reject, once",
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
        "Show the decision behind a link; changes nothing",
        params=TOKEN,
        tag="approvals",
        answers={200: SHOWN, 404: GONE, 422: CHANGED},
        ignores_unknown_query=True,
        secret_path=True,  # mail services add parameters and headers
    ),
    ApiRoute(
        "POST",
        BY_LINK,
        "decide_by_link",
        decide,
        "Approve or reject, once",
        body=DecideBody,
        params=TOKEN,
        tag="approvals",
        answers=DECIDED,
        ignores_unknown_query=True,
        secret_path=True,  # the form is posted to the page's URL
    ),
)
