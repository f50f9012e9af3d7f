"""Logins, sessions and forms: who sees a page, who may act, and how often an act is done."""

import asyncio
import json
import re
from html import unescape
from types import SimpleNamespace
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest

from tests.unit.server.local_server import HERE
from twiceproof.errors import Misuse
from twiceproof.operations import block
from twiceproof.outbox.pauses import pause_target
from twiceproof.server.auth import FRESH
from twiceproof.server.tokens import LOGIN_LASTS, Scope, create_login, revoke_token
from twiceproof.server.ui.pages import PAGES
from twiceproof.server.ui.pages.access import own_path
from twiceproof.server.ui.pages.live import stream
from twiceproof.server.ui.session import IDLE, LASTS, NOTED_EVERY, SECURE, cookie_header, session_name

ORIGIN = ("origin", f"http://{HERE[1]}")
FORM = ("content-type", "application/x-www-form-urlencoded")


def address(page):
    return "/".join("x" if segment.startswith("{") else segment for segment in page.path.split("/"))


def login(server, *scopes, name="ann", tenant="default", token=None):
    token = token or server.token(*scopes, name=name, tenant=tenant)
    answer = server.call("POST", "/login", f"token={token}&next=/runs".encode(), [ORIGIN, FORM])
    assert (answer.status, answer.headers["location"]) == (303, "/runs")
    return ("cookie", answer.headers["set-cookie"].partition(";")[0])


def form_of(server, path, cookie=None):
    page = server.call("GET", path, headers=[cookie] if cookie else []).body.decode()
    return re.search(r'name="form" value="([^"]+)"', page)[1]


def test_without_tokens_this_machine_sees_pages_and_nobody_else_does(server):
    assert server.call("GET", "/").status == 200
    assert server.call("GET", "/", host=("host", "evil.example")).status == 401
    assert server.call("GET", "/", headers=[("x-forwarded-for", "10.0.0.1")]).status == 401
    assert server.call("GET", "/", client="10.0.0.1").status == 401


def test_a_page_that_is_refused_is_a_page(server):
    answer = server.call("GET", "/", host=("host", "evil.example"))
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert b"its Host header does not name this machine" in answer.body


def test_with_a_token_pages_ask_for_a_login_and_lead_back(server, clock):
    server.token(Scope.READ)
    clock.advance(FRESH)
    answer = server.call("GET", "/runs")
    assert (answer.status, answer.headers["location"]) == (303, "/login?next=%2Fruns")


def test_a_login_leads_back_to_the_page_with_its_filters(server, clock):
    """A copied address shows the same in a browser that has to log in first."""
    cookie = login(server, Scope.READ)
    clock.advance(FRESH)
    page = "/runs?flow=sync&state=failed&prefix=%C3%A9+%26"
    led = server.call("GET", page).headers["location"]
    asked = parse_qs(urlsplit(led).query)
    assert (urlsplit(led).path, asked) == ("/login", {"next": [page]})
    shown = server.call("GET", led).body.decode()
    given = unescape(re.search(r'name="next" value="([^"]+)"', shown)[1])
    token = server.token(Scope.READ, name="eve")
    clock.advance(1)
    answer = server.call("POST", "/login", urlencode({"token": token, "next": given}).encode(), [ORIGIN, FORM])
    assert (answer.status, answer.headers["location"]) == (303, page)
    assert server.call("GET", page, headers=[cookie]).status == 200


def test_a_form_that_comes_after_the_session_asks_for_a_login_and_leads_back(server, clock):
    login(server, Scope.READ)
    clock.advance(FRESH)
    answer = server.call("POST", "/runs/run_x/settle?open=a", b"form=x", [ORIGIN, FORM])
    text = unescape(answer.body.decode())
    assert answer.status == 401 and "your session has ended" in text and "Bearer" not in text
    assert 'href="/login?next=%2Fruns%2Frun_x%2Fsettle%3Fopen%3Da"' in text


@pytest.mark.parametrize("page", [one for one in PAGES if one.method == "POST"], ids=lambda one: one.path)
def test_the_address_of_a_form_leads_to_the_page_that_has_it(server, page):
    """By a reload, by a link on the page that tells of a refused form, and after a login."""
    if any((one.method, one.path) == ("GET", page.path) for one in PAGES):
        return
    answer = server.call("GET", address(page), headers=[("accept", "text/html")])
    assert answer.status == 303
    led = answer.headers["location"]
    assert led == "/" or address(page).startswith(f"{led}/")
    assert server.call("GET", led).status in (200, 404)  # there is such a page, of a thing that may not be there


def test_the_cookie_is_not_for_scripts_nor_for_other_sites(server):
    server.token(Scope.READ)
    token = server.token(Scope.READ)
    cookie = server.call("POST", "/login", f"token={token}".encode(), [ORIGIN, FORM]).headers["set-cookie"]
    assert cookie.startswith(f"{SECURE}=")
    assert cookie.endswith("; Path=/; Max-Age=43200; HttpOnly; SameSite=Lax; Secure")


def test_over_plain_http_from_elsewhere_the_cookie_has_a_plain_name():
    assert cookie_header("x", scheme="http", host="shop.example")[1].startswith("twiceproof=x;")
    assert "Secure" not in cookie_header("x", scheme="http", host="shop.example")[1]
    assert cookie_header("x", scheme="https", host="shop.example")[1].startswith("__Host-twiceproof=x;")


def by_link(server, secret):
    return server.call("POST", "/login", f"link={secret}&next=/runs".encode(), [ORIGIN, FORM])


def test_a_link_logs_in_once(server, clock):
    server.token(Scope.READ, name="ann")
    secret = block(create_login(server.app.store, "ann"))
    page = server.call("GET", f"/login?link={secret}")
    assert page.status == 200 and b"logs you in once" in page.body and "set-cookie" not in page.headers
    answer = by_link(server, secret)
    assert (answer.status, answer.headers["location"]) == (303, "/runs")
    cookie = ("cookie", answer.headers["set-cookie"].partition(";")[0])
    assert b"<span>ann</span>" in server.call("GET", "/runs", headers=[cookie]).body
    clock.advance(10)  # logins are limited
    again = by_link(server, secret)
    assert (again.status, "set-cookie" in again.headers) == (401, False)


@pytest.mark.parametrize("seconds, status", [(LOGIN_LASTS - 1, 303), (LOGIN_LASTS, 401)])
def test_a_link_is_good_for_a_minute(server, clock, seconds, status):
    server.token(Scope.READ, name="ann")
    secret = block(create_login(server.app.store, "ann"))
    clock.advance(seconds)
    assert by_link(server, secret).status == status


def test_a_link_ends_with_its_token(server, clock):
    server.token(Scope.READ, name="ann")
    secret = block(create_login(server.app.store, "ann"))
    block(revoke_token(server.app.store, "ann"))
    clock.advance(FRESH)
    assert by_link(server, secret).status == 401
    with pytest.raises(Misuse):
        block(create_login(server.app.store, "ann"))


def test_the_api_never_looks_at_the_cookie(server, clock):
    cookie = login(server, Scope.ADMIN)
    clock.advance(FRESH)
    assert server.call("GET", "/runs", headers=[cookie]).status == 200
    assert server.call("GET", "/v1/runs", headers=[cookie]).status == 401


def test_wrong_tokens_get_one_answer(server, clock):
    gone = server.token(Scope.READ, name="gone")
    block(revoke_token(server.app.store, "gone"))
    late = server.token(Scope.READ, name="late", lasts=1.0)
    clock.advance(10)
    answers = set()
    for token in ("", "tp_wrong", gone, late, "x" * 10_000):
        clock.advance(10)  # logins are limited
        answer = server.call("POST", "/login", f"token={token}".encode(), [ORIGIN, FORM])
        text = re.sub(rb'name="form" value="[^"]*"', b"", answer.body)
        answers.add((answer.status, text))
        assert "set-cookie" not in answer.headers
    assert [status for status, _ in answers] == [401]


def test_logins_are_limited_also_on_this_machine(server, clock):
    server.token(Scope.READ)
    found = [server.call("POST", "/login", b"token=x", [ORIGIN, FORM]).status for _ in range(5)]
    assert found[0] == 401 and found[-1] == 429


def test_a_revoked_token_ends_its_sessions_within_three_seconds(server, clock):
    cookie = login(server, Scope.READ)
    assert server.call("GET", "/runs", headers=[cookie]).status == 200
    block(revoke_token(server.app.store, "ann"))
    clock.advance(FRESH)
    assert FRESH <= 3.0
    assert server.call("GET", "/runs", headers=[cookie]).status == 303


def test_a_logout_ends_the_session_at_once(server):
    cookie = login(server, Scope.READ)
    answer = server.call("POST", "/logout", b"", [ORIGIN, FORM, cookie])
    assert (answer.status, answer.headers["location"]) == (303, "/login")
    assert server.call("GET", "/runs", headers=[cookie]).status == 303


def test_a_session_ends_when_it_is_idle(server, clock):
    cookie = login(server, Scope.READ)
    clock.advance(IDLE - 1)
    assert server.call("GET", "/runs", headers=[cookie]).status == 200
    clock.advance(IDLE)
    assert server.call("GET", "/runs", headers=[cookie]).status == 303


def test_a_tab_that_is_only_left_open_does_not_keep_its_session(server, clock):
    """Its stream asks before each change that it tells of."""
    cookie = login(server, Scope.READ)
    name, sessions = session_name({b"cookie": cookie[1].encode()}), server.application.dashboard.sessions
    page = SimpleNamespace(session=name, query={}, dashboard=server.application.dashboard, now=0.0, app=server.app)
    page.call = SimpleNamespace(principal=SimpleNamespace(name="ann"), server_status=None)
    page.asked, page.store, page.tenant = lambda name: "", server.app.store, "default"
    heard = []

    def hear(listener, *given):
        heard.append(listener)

    server.application.dashboard.feed.stream = hear
    asyncio.run(stream(page)).pieces(None)
    for _ in range(int(IDLE // 600) - 1):
        clock.advance(600)
        assert asyncio.run(heard[0].may_listen())
    clock.advance(600)
    assert not asyncio.run(heard[0].may_listen())
    assert asyncio.run(sessions.principal(name)) is None


def test_a_session_ends_after_twelve_hours_however_much_it_is_used(server, clock):
    cookie = login(server, Scope.READ)
    for _ in range(int(LASTS // (IDLE / 2)) - 1):
        clock.advance(IDLE / 2)
        assert server.call("GET", "/runs", headers=[cookie]).status == 200
    clock.advance(IDLE / 2)
    assert server.call("GET", "/runs", headers=[cookie]).status == 303


def test_not_each_request_of_a_session_writes(server, clock):
    cookie = login(server, Scope.READ)
    writes = []
    server.app.store.on_commit.append(lambda *given: writes.append(given))
    for _ in range(int(NOTED_EVERY // FRESH) - 1):
        clock.advance(FRESH)
        server.call("GET", "/runs", headers=[cookie])
    assert len(writes) <= 1


GUARDED = [page for page in PAGES if page.scope is not Scope.OPEN and page.path != "/live"]  # a stream does not end


@pytest.mark.parametrize("page", GUARDED, ids=lambda p: f"{p.method} {p.path}")
def test_a_reader_sees_pages_and_does_nothing(server, page):
    cookie = login(server, Scope.READ)
    answer = server.call(page.method, address(page), b"", [cookie, ORIGIN, FORM])
    assert (answer.status == 403) == (page.scope not in (Scope.READ, Scope.OPERATOR)), answer.status


@pytest.mark.parametrize("page", GUARDED, ids=lambda p: f"{p.method} {p.path}")
def test_without_a_session_every_page_is_closed(server, clock, page):
    server.token(Scope.READ)
    clock.advance(FRESH)
    answer = server.call(page.method, address(page), b"", [ORIGIN, FORM])
    assert answer.status == (303 if page.method == "GET" else 401)


@pytest.mark.parametrize("page", [p for p in PAGES if p.method == "POST"], ids=lambda p: p.path)
@pytest.mark.parametrize(
    "headers",
    [
        [("origin", "https://evil.example")],
        [("origin", "null")],
        [("sec-fetch-site", "cross-site")],
        [("sec-fetch-site", "same-site"), ORIGIN],
        [("sec-fetch-site", "none")],
        [],
    ],
    ids=["foreign", "null", "cross-site", "same-site", "none", "nothing"],
)
def test_a_form_of_another_site_does_nothing(server, page, headers):
    cookie = login(server, Scope.ADMIN)
    form = form_of(server, "/", cookie)
    answer = server.call("POST", address(page), f"form={form}&token=x".encode(), [cookie, FORM, *headers])
    assert answer.status == 403, answer.body


@pytest.mark.parametrize("page", [p for p in PAGES if p.method == "POST" and "log" not in p.path], ids=lambda p: p.path)
def test_a_form_without_a_token_of_this_session_does_nothing(server, page):
    ann, bob = login(server, Scope.ADMIN, name="ann"), login(server, Scope.ADMIN, name="bob")
    for form in ("", "1.2.3", form_of(server, "/", bob)):
        answer = server.call("POST", address(page), f"form={form}".encode(), [ann, FORM, ORIGIN])
        assert (answer.status, b"stale form" in answer.body.lower()) == (403, True)


@pytest.mark.parametrize(
    ("asked", "led"),
    [
        ("/runs?state=failed", "/runs?state=failed"),
        ("//evil.example", "/"),
        ("/\\evil.example", "/"),
        ("https://evil.example", "/"),
        ("javascript:alert(1)", "/"),
        ("/a\r\nset-cookie: x", "/"),
        ("", "/"),
    ],
)
def test_a_login_leads_to_this_server_only(asked, led):
    assert own_path(asked) == led


def test_a_page_has_the_strictest_policy(server):
    headers = server.call("GET", "/").headers
    assert headers["content-security-policy"] == (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; frame-ancestors 'none'; base-uri 'none'; require-trusted-types-for 'script'; "
        "trusted-types 'none'"
    )
    assert headers["cache-control"] == "no-store" and headers["referrer-policy"] == "same-origin"
    assert headers["x-content-type-options"] == "nosniff" and headers["x-frame-options"] == "DENY"


def test_static_files_are_cached_for_a_year_and_open(server, clock):
    page = server.call("GET", "/").body.decode()
    server.token(Scope.READ)
    clock.advance(FRESH)
    for path in set(re.findall(r'(?:href|src)="(/static/[^"]+)"', page)):
        answer = server.call("GET", path)
        assert (answer.status, answer.headers["cache-control"]) == (200, "public, max-age=31536000, immutable")
    assert server.call("GET", "/static/look.css").status == 404
    assert server.call("GET", "/static/..%2Fpages%2Frun.py").status == 404


def test_a_browser_gets_a_page_where_there_is_nothing_and_a_program_a_problem(server):
    assert (
        server.call("GET", "/nothing", headers=[("accept", "text/html")])
        .headers["content-type"]
        .startswith("text/html")
    )
    assert server.call("GET", "/nothing").kind == "not-found"
    assert server.call("GET", "/v1/nothing", headers=[("accept", "text/html")]).kind == "not-found"


def test_the_stream_is_closed_without_a_session_and_without_the_scope(server, clock):
    cookie = login(server, Scope.RUN)
    clock.advance(FRESH)
    assert server.call("GET", "/live").status == 303
    assert server.call("GET", "/live", headers=[cookie]).status == 403


def test_why_a_broker_is_paused_is_told_to_the_operator_only(server):
    """A pause holds for all tenants, and what it says is not theirs."""
    block(pause_target(server.app.store, "main", by="root", why="10.0.0.7 is down"))
    ours, theirs = login(server, Scope.READ), login(server, Scope.READ, name="eve", tenant="acme")
    shown = [b"10.0.0.7 is down" in server.call("GET", "/messages", headers=[one]).body for one in (ours, theirs)]
    assert shown == [True, False]


def test_a_key_whose_run_is_queued_has_not_been_worked_on(server):
    assert server.call("POST", "/v1/runs/sync", b'{"id":"1"}', [("content-type", "application/json")]).status == 202
    page = "/keys/sync/order:1"
    text = [re.sub(r"<[^>]+>", "", server.call("GET", page).body.decode())]
    server.app.worker().run(until_idle=True)
    text.append(re.sub(r"<[^>]+>", "", server.call("GET", page).body.decode()))
    assert ["not worked on yet" in one for one in text] == [True, False]
    assert ["worked 1×" in one for one in text] == [False, True]
    assert ["last held by" in one for one in text] == [False, True]


async def first_piece(application, headers, query=""):
    """Listen as a browser does, until something is told or the server ends the stream."""
    told, heard = [], asyncio.Event()
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/live",
        "raw_path": b"/live",
        "query_string": query.encode(),
        "client": ("127.0.0.1", 50_000),
        "headers": [(name.encode(), value.encode()) for name, value in headers],
    }

    async def receive():
        if not heard.is_set() and not told:
            told.append(b"")
            return {"type": "http.request", "body": b"", "more_body": False}
        await heard.wait()
        return {"type": "http.disconnect"}

    async def send(message):
        if message["type"] == "http.response.body":
            told.append(message["body"])
            heard.set()

    await asyncio.wait_for(application(scope, receive, send), 20)
    return told[1]


@pytest.mark.parametrize("cookie", [[], [("cookie", f"{SECURE}=of-another-server-on-this-machine")]])
def test_a_browser_with_another_servers_cookie_is_told_of_changes_too(server, cookie):
    """Where no token exists. Cookies know no ports: every server on this machine gets those of the others."""
    assert server.call("GET", "/", headers=cookie).status == 200
    assert asyncio.run(first_piece(server.application, [HERE, *cookie])).startswith(b"data: {")


def test_the_stream_tells_a_tenant_of_its_own_runs_only(server, clock):
    headers = [("content-type", "application/json")]
    assert server.call("POST", "/v1/runs/sync", b'{"id":"1"}', headers).status == 202
    (run,) = [one.run for one in server.app.runs()]
    told = []
    for tenant in ("default", "acme"):
        cookie = login(server, Scope.READ, name=tenant, tenant=tenant)
        piece = asyncio.run(first_piece(server.application, [HERE, cookie], f"runs={run}&since=1"))
        told.append(json.loads(piece.removeprefix(b"data: ")))
        clock.advance(FRESH)
    assert [(list(one["runs"]), one["newer"]) for one in told] == [([run], 1), ([], 0)]


class Mounted:
    """The application under a path of another one, as a proxy or a framework mounts it."""

    def __init__(self, inner, root):
        self.inner = inner
        self.root = root

    async def __call__(self, scope, receive, send):
        path = self.root + scope["path"]
        await self.inner({**scope, "root_path": self.root, "path": path, "raw_path": path.encode()}, receive, send)


def test_mounted_under_a_path_every_link_and_form_stays_below_it(server, clock):
    cookie = login(server, Scope.ADMIN)
    server.application = Mounted(server.application, "/twiceproof")
    for page in [one for one in GUARDED if one.method == "GET" and "{" not in one.path]:
        answer = server.call("GET", page.path, headers=[cookie])
        places = re.findall(r'(?:href|src|action|data-live)="(/[^"]*)"', answer.body.decode())
        assert places and all(place.startswith("/twiceproof/") for place in places), page.path
    clock.advance(LASTS)
    assert server.call("GET", "/runs").headers["location"] == "/twiceproof/login?next=%2Fruns"
    token = server.token(Scope.READ, name="late")
    answer = server.call("POST", "/login", f"token={token}&next=/runs".encode(), [ORIGIN, FORM])
    assert answer.headers["location"] == "/twiceproof/runs" and "; Path=/;" in answer.headers["set-cookie"]


AWAY = [
    {"host": ("host", "evil.example")},
    {"host": ("host", "127.0.0.1.evil.example:8321")},
    {"headers": [("x-forwarded-for", "10.0.0.1")]},
    {"headers": [("via", "1.1 proxy")]},
    {"client": "10.0.0.1"},
    {"version": "1.0"},
]


@pytest.mark.parametrize("given", AWAY, ids=str)
def test_an_open_server_refuses_every_page_and_act_that_does_not_come_directly(server, given):
    """A name that leads to this machine (DNS rebinding), a proxy, another machine. Only the login is there for all."""
    for page in PAGES:
        if page.scope is Scope.OPEN:
            continue
        asked = {**given, "headers": [*given.get("headers", []), FORM]}
        if page.method == "POST":
            asked["headers"].append(("origin", f"http://{given.get('host', HERE)[1]}"))
        assert (
            server.call(page.method, address(page), b"form=x" if page.method == "POST" else b"", **asked).status == 401
        )


def test_the_page_of_a_claim_shows_its_holder_its_lease_and_late_reports(server, clock):
    json_body = [("content-type", "application/json")]
    place = "/v1/claims/ship/a"
    first = server.call("PUT", place, b'{"lease":"30s"}', json_body).json["token"]
    text = re.sub(r"<[^>]+>", "", server.call("GET", "/keys/ship/a").body.decode())
    assert "held by http-" in text and "lease until 20" in text and "Evidence" not in text
    clock.advance(400)
    assert "lease ran out" in server.call("GET", "/keys/ship/a").body.decode()
    server.call("PUT", place, b'{"lease":"30s"}', json_body)
    late = {"token": first, "result": {"parcel": "late-4711"}}
    assert server.call("POST", f"{place}/complete", json.dumps(late).encode(), json_body).status == 409
    text = unescape(re.sub(r"<[^>]+>", "", server.call("GET", "/keys/ship/a").body.decode()))
    assert "Evidence 1" in text and '"late-4711"' in text
