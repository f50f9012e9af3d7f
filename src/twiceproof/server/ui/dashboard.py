"""The dashboard of a server: its pages as routes, who sees them, and what all pages share."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl

import msgspec
from msgspec import Struct

from ...app.app import App
from ...flows.history.queries import look_at_run
from ...flows.history.run_view import WholeRun
from ...inbound.reply import PROBLEM, Reply, problem
from ...operations import await_
from ...stores.base import Finding
from ..auth import Access, Peer, allows
from ..limits import Buckets, ServerLimits
from ..monitoring import CachedRead
from ..request import ApiRequest, RequestRefused
from ..routing import ApiRoute, Handle
from ..tokens import Principal, Scope, StoreSigner, signer
from . import template
from .formatting import command_of, href
from .forms import FormFields, FormOutcome, Submission, api_call, form_token
from .listing import ActForm, DetailPage, HourBar, Listing, active_filters
from .live import LiveFeed
from .session import Sessions, session_name

__all__ = ["MOST_STEPS", "Dashboard", "PageRequest", "PageSpec", "View"]

LARGEST_FORM = 512 * 1024  # bytes; a result that a person types is small
MOST_DIGITS = 9  # of a number in an address
LONGEST_QUERY = 16 * 1024  # characters of an address that are read
MOST_STEPS = 1_000  # of a run that a page looks through
EXAMINED_FOR = 300.0  # seconds: a check of a large SQLite file takes some
LOGINS = 1.0  # per second and address

# What the bar at the top names, in this order.
NAVIGATION = (
    ("Attention", "/", "home"),
    ("Runs", "/runs", "runs"),
    ("Review", "/review", "review"),
    ("Approvals", "/approvals", "approvals"),
    ("Duplicates", "/duplicates", "duplicates"),
    ("Claims", "/claims", "claims"),
    ("Webhooks", "/webhooks", "webhooks"),
    ("Messages", "/messages", "messages"),
    ("Findings", "/findings", "findings"),
    ("Schedules", "/schedules", "schedules"),
    ("Flows", "/flows", "flows"),
    ("Acts", "/acts", "acts"),
)
OF_OPERATORS = (("Workers", "/workers", "workers"), ("Health", "/health", "health"), ("Tokens", "/tokens", "tokens"))
# What a page says after an act led to it. Only these words: an address cannot put its own on a page.
SAID = {
    "settled": "Your decision is on record, and the run goes on as you said.",
    "retried": "It is queued: a worker tries it again. What is done stays done.",
    "cancelled": "It is being cancelled: what is done is undone before it ends.",
    "started": "It is queued: a worker carries it out.",
    "known": "A run of this key was there already. This is it; nothing was started.",
    "rolled-back": "New runs begin on the earlier release now.",
    "paused": "No run begins or continues until somebody resumes it.",
    "resumed": "Runs begin and continue again.",
    "forked": "This is the new run. It began with the input of the first one.",
    "decided": "Your decision is on record.",
    "released": "The claim was released. The key is free: the next call does the work.",
    "replayed": "The delivery was replayed.",
    "resent": "The message is published again, with the same key.",
    "dropped": "The message was dropped. Those behind it go on.",
    "found": "Your decision about the finding is on record.",
    "revoked": "The token was revoked, and its sessions end within 3 seconds.",
    "login": "You are logged in.",
    "logout": "You are logged out.",
}

# What a page says of a problem in place of what a program is told.
FOR_PEOPLE = {
    "urn:twiceproof:unauthorized": {
        "detail": "You are not logged in, or your session has ended. Nothing was done.",
        "next": "Log in, and send the form again.",
    },
    "urn:twiceproof:store-unavailable": {"next": "Open the page again: it shows whether something was done."},
    "urn:twiceproof:not-found": {"next": "Look for it by its name, from the page of what needs attention."},
}

OF_PROGRAMS = " /v1/"  # in what a program is told to do next
LOOK_FOR_IT = "Look for it by its name, in the box at the top, or in its list."
LOOK_AGAIN = "Open this page again, and look at it."


class View(Struct, frozen=True):
    """What every template knows: the viewer, their origin, and the page."""

    root: str
    path: str
    here: str  # which entry of the navigation
    title: str
    tenant: str
    name: str  # of the person; "" where no token exists
    is_open: bool
    may: frozenset[str]
    now: float
    said: str = ""
    query: str = ""


class PageRequest:
    """A request for a page."""

    def __init__(self, dashboard: Dashboard, call: ApiRequest, here: str, signing: StoreSigner | None) -> None:
        self.dashboard = dashboard
        self.call = call
        self.app: App = call.app
        self.store = call.app.store
        self.tenant = call.app.settings.tenant
        self.now = call.now
        self.where: Sequence[str] = call.app.runtime.where
        self.session = session_name({b"cookie": call.headers.get("cookie", "").encode("latin-1")})
        # A list of ticked rows repeats a name; where one value is meant, the last counts.
        self.pairs = parse_qsl(call.raw_query[:LONGEST_QUERY], keep_blank_values=True)
        self.query = dict(self.pairs)
        self._here = here
        self._signing = signing

    def asked(self, name: str, default: str = "") -> str:
        return self.query.get(name, default)

    def number(self, name: str) -> int:
        """Return a count or a place in a list; 0 for what is none, or is longer than any."""
        text = self.asked(name)
        return int(text) if text.isdecimal() and len(text) <= MOST_DIGITS else 0

    def param(self, name: str) -> str:
        return self.call.params[name]

    def may(self, scope: Scope) -> bool:
        return self.call.principal.may(scope)

    @property
    def is_operator(self) -> bool:
        """Whether who looks may see what is about all tenants."""
        return allows(Scope.OPERATOR, self.call.principal, self.app.runtime.root.tenant)

    @property
    def server(self) -> str:
        """The address of this server, as commands name it."""
        own = f"{self.call.scheme}://{self.call.headers.get('host', '')}{self.call.root}"
        return self.app.settings.url.rstrip("/") or own

    def command(self, *given: str) -> str:
        return command_of(self.where, *given)

    def token(self) -> str:
        """Return the token of one more form on this page."""
        return "" if self._signing is None else form_token(self._signing, self.session, self.now)

    def show(self, name: str, title: str, status: int = 200, **values: Any) -> Reply:
        principal = self.call.principal
        view = View(
            self.call.root,
            self.call.path,
            self._here,
            title,
            self.tenant,
            principal.name,
            is_open=not principal.name,
            may=frozenset(scope.value for scope in Scope if principal.may(scope)),
            now=self.now,
            said=SAID.get(self.asked("said"), ""),
            query=f"?{self.call.raw_query}" if self.call.raw_query and not self.asked("said") else "",
        )
        body = template.rendered(
            name,
            view=view,
            navigation=(*NAVIGATION, *(OF_OPERATORS if self.is_operator else ())),
            form_token=self.token,
            asked=defaultdict(str, self.query),
            **values,
        )
        return template.html(body, status)

    def listing(
        self,
        title: str,
        made: Listing | Sequence[Listing],
        argument_words: Sequence[str] = (),
        json: str = "",
        *,
        intro: str = "",
        acts: Sequence[ActForm] = (),
        bars: Sequence[HourBar] = (),
    ) -> Reply:
        """Show lists, with the active filters and the command that prints the same list."""
        lists = [made] if isinstance(made, Listing) else list(made)
        names = [one.name for listing in lists for one in listing.filters]
        chips = active_filters(self.call.path, self.query, names)
        command = self.command(*argument_words) if argument_words else ""
        return self.show(
            "listing.html",
            title,
            listings=lists,
            chips=chips,
            filtered=bool(chips),
            count="",
            intro=intro,
            acts=acts,
            bars=bars,
            command=command,
            json=json,
        )

    def details(self, made: DetailPage, argument_words: Sequence[str] = (), json: str = "", status: int = 200) -> Reply:
        """Show one thing with its possible acts."""
        command = self.command(*argument_words) if argument_words else ""
        return self.show("thing.html", made.title, status, thing=made, filtered=False, command=command, json=json)

    async def submitted(self, act: Callable[[FormFields], Awaitable[FormOutcome]]) -> Reply:
        """Carry out the act of a form, once."""
        fields = FormFields.of(self.call)
        fields.require_depth(self.dashboard.depth)
        assert self._signing is not None  # noqa: S101 - for mypy: only routes with a form come here
        return await Submission(self.call, fields, self.session, self._signing).run(lambda: act(fields))

    async def by_api(self, handle: Handle, params: dict[str, str], body: bytes, done: str) -> FormOutcome:
        """Do what a route of the API does. `done`: where to go then."""
        reply = await handle(api_call(self.call, params, body))
        return FormOutcome.refused(reply) if reply.status >= 400 else FormOutcome(done)

    async def reply_of_api(self, handle: Handle, params: dict[str, str], body: bytes) -> Reply:
        """Do what a route of the API does, and return its reply, also if it refuses."""
        try:
            return await handle(api_call(self.call, params, body))
        except RequestRefused as refused:
            return refused.reply

    async def run_with_steps(self, name: str) -> WholeRun | None:
        """Return everything about a run of this tenant; None if there is no such run."""
        try:
            at = await await_(api_call(self.call, {"name": name}, b"").existing_run())
        except RequestRefused:
            return None
        return await await_(look_at_run(self.store, at, most=MOST_STEPS))

    def actor(self, fields: Mapping[str, str]) -> str:
        """Return who acts, for the record of acts."""
        return self.call.principal.name or fields.get("by", "").strip() or "operator"

    def acting_as(self, fields: Mapping[str, str]) -> dict[str, str]:
        """Return the fields that say who acts: none with a token; otherwise the name that was typed, as `by`."""
        return {} if self.call.principal.name else {"by": self.actor(fields)}


Shown = Callable[[PageRequest], Awaitable[Reply]]


class PageSpec(Struct, frozen=True):
    """One address of the dashboard: what it requires, and which entry of the navigation it belongs to."""

    method: str
    path: str
    scope: Scope
    show: Shown
    here: str = ""

    @property
    def name(self) -> str:
        parts = [part.strip("{}") for part in self.path.split("/") if part] or ["attention"]
        return "_".join(["page", *parts, *(["post"] if self.method == "POST" else [])])


class Dashboard:
    """The pages of one server."""

    def __init__(self, app: App, access: Access, pages: Sequence[PageSpec], depth: int = ServerLimits().depth) -> None:
        self.app = app
        self.depth = depth  # of JSON that is typed into a form, as in a body of the API
        self.access = access
        self.sessions = Sessions(app.store, access, app.clock)
        self.logins = Buckets(LOGINS)
        self.feed = LiveFeed(app)
        self.examination = CachedRead(self._examined, app.clock, EXAMINED_FOR)
        self.routes = (
            ApiRoute(
                "GET",
                "/static/{file}",
                "page_static",
                template.asset,
                scope=Scope.OPEN,
                page=True,
                ignores_unknown_query=True,
            ),
            *(self._route(spec) for spec in pages),
        )

    async def _examined(self) -> Sequence[Finding]:
        return await asyncio.to_thread(self.app.store.examine)

    def _route(self, spec: PageSpec) -> ApiRoute:
        async def handle(call: ApiRequest) -> Reply:
            signing = await await_(signer(self.app.store))
            return await spec.show(PageRequest(self, call, spec.here, signing))

        return ApiRoute(
            spec.method,
            spec.path,
            spec.name,
            handle,
            scope=spec.scope,
            page=True,
            media="*/*",
            largest=LARGEST_FORM,
            ignores_unknown_query=True,
        )

    async def principal(self, headers: Mapping[bytes, bytes], scope: Scope, peer: Peer) -> Principal:
        """Return who views the page: by the session; while there are no tokens, the caller that the API accepts as the
        operator.
        """
        found = await self.sessions.principal(session_name(headers))
        if found is not None:
            return found
        bare = {name: value for name, value in headers.items() if name != b"authorization"}
        if scope is Scope.OPEN:
            return self.access.anonymous
        return await self.access.principal(bare, scope, peer)

    def as_page(self, reply: Reply, method: str, root: str, asked: str, principal: Principal | None) -> Reply:
        """Return a problem as a page. Without a session, the page that was asked for comes after the login, with its
        filters.
        """
        if reply.header("content-type") != PROBLEM:
            return reply
        told = msgspec.json.decode(reply.body)
        is_closed = told["type"] == "urn:twiceproof:unauthorized"
        login = href("login", next=asked)
        if is_closed and method == "GET":
            return Reply(303, (("location", login),))
        told |= FOR_PEOPLE.get(told["type"], {})
        if OF_PROGRAMS in told["next"]:
            told["next"] = LOOK_FOR_IT if reply.status == 404 else LOOK_AGAIN
        known = principal or self.access.anonymous
        may = frozenset(scope.value for scope in Scope if known.may(scope))
        path = asked.partition("?")[0]
        view = View(root, path, "", told["title"], known.tenant, known.name, not known.name, may, self.app.clock.now())
        is_operator = allows(Scope.OPERATOR, known, self.app.settings.tenant)
        body = template.rendered(
            "problem.html",
            view=view,
            navigation=(*NAVIGATION, *(OF_OPERATORS if is_operator else ())) if may else (),
            problem=told,
            login=login if is_closed else "",
            form_token=str,
            asked=defaultdict(str),
        )
        kept = tuple(pair for pair in reply.headers if pair[0] in ("retry-after", "allow"))
        return template.html(body, reply.status, kept)


def refused(status: int, kind: str, detail: str, *, next_move: str) -> RequestRefused:
    """Return what ends a request with a problem."""
    return RequestRefused(problem(status, kind, detail, next_move=next_move))
