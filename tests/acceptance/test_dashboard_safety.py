"""Hostile payloads, other tenants and pages of other origins, against the dashboard in a real browser."""

import contextlib
import html
import http.server
import json
import re
import threading
from urllib.parse import quote

import pytest

from tests.acceptance.dashboards import Visitor, chromium, declare, different, follow, parked, serving
from twiceproof import App, Misuse
from twiceproof.claims.acts import ACT_KIND
from twiceproof.flows.engine.context import giving
from twiceproof.flows.waits.records import APPROVAL_KIND
from twiceproof.inbound.dead_letters import DEAD_LETTER_KIND, list_letters
from twiceproof.operations import block
from twiceproof.outbox.message import MESSAGE_KIND
from twiceproof.reconcile.findings import FINDING
from twiceproof.server.auth import FRESH
from twiceproof.server.tokens import Scope, list_tokens
from twiceproof.server.ui.pages import PAGES

BASES = (
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    '"><svg onload=alert(1)>',
    "'><svg/onload=alert(1)//",
    "javascript:alert(1)",
    "</textarea><script>alert(1)</script>",
    "</title><script>alert(1)</script>",
    "</style><script>alert(1)</script>",
    "<!--<script>alert(1)//-->",
    "{{7*7}}{% raw %}",
    "${alert(1)}`",
    '" autofocus onfocus=alert(1) x="',
    "' accesskey='x' onclick='alert(1)' '",
    "jaVasCript:/*-/*`/*\\`/*'/*\"/**/(/* */oNcliCk=alert() )//%0D%0A%0d%0a//</stYle/</titLe/</teXtarEa/</scRipt/--!>"
    "\\x3csVg/<sVg/oNloAd=alert()//>\\x3e",
    "<iframe srcdoc='<script>parent.alert(1)</script>'>",
    "<a href=javascript:alert(1)>x</a>",
    "<form action=//evil.example><input name=token>",
    "<base href=//evil.example>",
    "<meta http-equiv=refresh content='0;url=//evil.example'>",
    "<link rel=stylesheet href=//evil.example/x.css>",
)
MARK = "<polyglot-"
POLYGLOTS = tuple(f"{MARK}{nth} data-nth={nth}>{base[: nth % 7]}{base}" for nth, base in enumerate(BASES * 10))


@pytest.fixture(scope="module")
def browser():
    with chromium() as found:
        yield found


# Elements and attributes that only a payload could have made.
MADE = """[...document.querySelectorAll("*")].filter((one) => one.localName.startsWith("polyglot") ||
  one.matches("iframe, base, meta[http-equiv], [onerror], [onload], [onclick], [srcdoc]")).length"""
SHOWN = f"""[document.documentElement.outerHTML.split("&lt;polyglot-").length - 1, {MADE}, window.refused,
  document.querySelectorAll("h1").length]"""


def hostile_ledger(app, flows):
    """Each polyglot in the key, the payload, the error, the correlation, the reason, the approval, and as a name."""

    @app.flow(key="{name}")
    def hostile(name, text):
        if text:
            raise ValueError(text)
        app.approve(name[:100], show={name: name}, requester=name)

    for nth, text in enumerate(POLYGLOTS):
        with giving(text[:200]):
            hostile.start(text, text if nth % 3 else "")
            if nth % 20 == 0:
                flows["sync_order"].start({"id": text, "away": True})
        parked(app, text)
        different(app, text)
    app.worker().run(until_idle=True)
    for nth, run in enumerate(app.review(limit=100)[:5]):
        app.settle_run(run.run, "abandon", by=POLYGLOTS[nth], note=POLYGLOTS[nth])


def hostile_deliveries(board):
    for text in POLYGLOTS:
        told = {"x-secret": "s3cret", "content-type": text.encode("latin-1", "replace").decode("latin-1")}
        board.call("POST", "/hooks/shop", None, told, json.dumps({"noevent": text}))
        board.call("POST", "/hooks/shop", None, told, json.dumps({"event": text, "id": text}))


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    assert len(POLYGLOTS) == 200
    with App(f"sqlite:///{tmp_path_factory.mktemp('hostile')}/shop.db") as app:
        hostile_ledger(app, declare(app))
        frames = Frames()
        with serving(app, wrap=frames.beside) as board:
            hostile_deliveries(board)
            yield app, board, frames


@pytest.fixture
def visitor(hostile, browser):
    made = Visitor(browser, hostile[1], live=False)
    yield made
    assert (made.elsewhere, made.errors) == ([], [])
    made.close()


def shown_as_text(visitor, paths):
    """Return how many polyglots these pages show. None of them is an element, and none does anything."""
    seen = 0
    for path in paths:
        shown, *found = visitor.go(path).evaluate(SHOWN)
        assert found == [0, [], 1], path
        seen += shown
    return seen


IN_ONE = 20


class Frames:
    """Beside the dashboard, a page with some of its pages in frames, under their own policy, as a browser reads them:
    with the same parser, scripts and styles, and without a navigation for each.
    """

    def __init__(self):
        self.inner = self.reply = None

    def beside(self, inner):
        self.inner = inner
        return self

    async def __call__(self, scope, receive, send):
        if scope.get("path") != "/frames":
            await self.inner(scope, receive, send)
            return
        policy, body = self.reply
        headers = [(b"content-type", b"text/html"), (b"content-security-policy", policy.encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body.encode()})

    def show(self, visitor, paths):
        answers = [visitor.board.call("GET", path) for path in paths]
        (policy,) = {headers["content-security-policy"] for _, headers, _ in answers}
        self.reply = policy, "".join(f'<iframe srcdoc="{html.escape(text)}"></iframe>' for _, _, text in answers)
        found = visitor.go("/frames").frames[1:]
        assert len(found) == len(paths)
        return found


def framed_as_text(visitor, frames, paths):
    """As `shown_as_text`. One of each twenty is also visited as a page of its own."""
    seen = 0
    for batch in (paths[at : at + IN_ONE] for at in range(0, len(paths), IN_ONE)):
        for path, frame in zip(batch, frames.show(visitor, batch), strict=True):
            shown, *found = frame.evaluate(SHOWN)
            assert found == [0, [], 1], path
            seen += shown
    return seen + shown_as_text(visitor, paths[::IN_ONE])


def walked(visitor, path):
    """The addresses of what a list has, on all its pages."""
    found = []
    while path:
        page = visitor.go(path)
        assert (page.evaluate(MADE), visitor.refused()) == (0, []), path
        found += page.evaluate("[...document.querySelectorAll('tbody a.open')].map((one) => one.getAttribute('href'))")
        older = page.locator(".pager a[rel=next]")
        path = older.last.get_attribute("href") if older.count() else ""
    return found


@pytest.mark.parametrize(
    ("path", "fewest"),
    [
        ("/runs", 400),  # the key, the payload, the error, the correlation and the reason of each
        ("/approvals", 66),
        ("/webhooks", 200),  # the body and a header of each dead letter
        ("/claims", 190),  # one of the twenty is too long for an event's id
        ("/messages", 200),
        ("/findings", 100),
        ("/acts", 5),
        ("/review", 5),
    ],
)
def test_no_payload_becomes_an_element_or_runs(visitor, hostile, path, fewest):
    things = [one for one in dict.fromkeys(walked(visitor, path)) if not one.startswith(("/flows", "/webhooks/"))]
    assert len(things) >= fewest
    assert framed_as_text(visitor, hostile[2], things) >= len(things)


def test_no_payload_becomes_an_element_in_what_sums_up(visitor):
    assert shown_as_text(visitor, ["/", "/duplicates", "/flows", "/webhooks/shop", "/review"]) > 50


@pytest.mark.parametrize("text", POLYGLOTS[: len(BASES)], ids=range(len(BASES)))
def test_what_is_asked_for_is_only_text(visitor, text):
    places = ("/find?q=", "/runs?flow=", "/runs?prefix=", "/keys/x/", "/runs/", "/letters/", "/login?next=")
    shown_as_text(visitor, [place + "".join(f"%{byte:02X}" for byte in text.encode()) for place in places])


def test_the_story_of_a_hostile_key_has_it_in_its_title_as_text(visitor, hostile):
    app = hostile[0]
    for run in app.runs(flow="hostile", limit=20):
        page = visitor.go(f"/runs/{run.run}")
        follow(page, ".crumbs a.key")
        assert page.locator("h1").inner_text().startswith(MARK) and page.title().startswith(MARK)
        assert visitor.refused() == []


def test_a_name_of_a_token_is_never_hostile(hostile):
    for text in POLYGLOTS:
        with pytest.raises(Misuse):
            hostile[1].token(text, Scope.READ)


# -- tenants -------------------------------------------------------------------------------------


@contextlib.contextmanager
def two_tenants(tmp_path):
    with App(f"sqlite:///{tmp_path}/shop.db") as app:
        flows = declare(app)
        flows["sync_order"].start({"id": "canary-4711", "away": True, "total": 1})
        flows["sync_order"].start({"id": "canary-4712", "total": 5_000})
        flows["ship"]("canary-4713")
        app.worker().run(until_idle=True)
        FOUND[:] = [different(app, "canary-4715")[0], parked(app, "canary-4716")[0]]
        with serving(app) as board:
            board.deliver('{"canary":"canary-4714"}')
            yield app, board


FOUND = []  # a finding and a message that are there
FORM_OF_PAGE = re.compile(r'name="form" value="([^"]+)"')


def everything_of(app):
    """What a person could change of the tenant `default`."""
    kinds = ("run", "claim", FINDING, MESSAGE_KIND, DEAD_LETTER_KIND, APPROVAL_KIND, ACT_KIND)
    found = [one for kind in kinds for one in app.store.scan(kind, limit=1_000).block().records]
    return [(one.at, one.version) for one in found if one.at.space.startswith("default/")]


def act_of(board, app, cookie, path):
    """The fields of every form there is, filled in, in one form of the other tenant's own page."""
    run = app.runs(state="review")[0].run
    form = FORM_OF_PAGE.search(board.call("GET", "/", None, {"cookie": cookie})[2])[1]
    choice = "approve:nonce" if path.startswith("/approvals/") else '{"verdict":"abandon"}'
    choices = {"choice": choice, "verdict": "abandon", "decision": "resolve", "to": ""}
    return {"form": form, "item": f"{run} ", "key": "canary-again", "typed": "ship:canary-4713", **choices}


def address_of(app, page):
    """An address of something that is there, of the tenant `default`."""
    (letter,) = block(list_letters(app.store, "default")).letters
    (token, *_) = [one.id for one in block(list_tokens(app.store))] or [""]
    path = page.path.replace("/webhooks/{name}", "/webhooks/shop")
    for place, name in (("letters/{id}", letter.id), ("findings/{id}", FOUND[0]), ("tokens/{id}", token)):
        path = path.replace(place, place.replace("{id}", name))
    path = path.replace("messages/{key}", f"messages/{FOUND[1]}").replace("{verb}", "cancel")
    run = app.runs(state="review")[0].run
    given = {"{name}": run, "{id}": app.approvals()[0].id, "{operation}": "ship", "{key}": "ship%3Acanary-4713"}
    for name, value in given.items():
        path = path.replace(name, value)
    return path


def test_another_tenants_token_sees_and_settles_nothing_of_ours(tmp_path):
    with two_tenants(tmp_path) as (app, board):
        before = everything_of(app)
        cookie = login(board, board.token("eve", Scope.ADMIN, tenant="acme"))
        for page in PAGES:
            if "log" in page.path or page.path == "/live":
                continue
            path = address_of(app, page) + ("?q=shop:order:canary-4711" if page.path == "/find" else "")
            given = act_of(board, app, cookie, path) if page.method == "POST" else {}
            status, _, text = board.call(page.method, path, given, {"cookie": cookie})
            asked = ("shop:order:canary-4711", quote("shop:order:canary-4711", safe=""), path)
            for one in asked:  # what was asked for is in its box, and in the address of the same over HTTP
                text = text.replace(one, "")
            assert "canary" not in text, path
            assert "send_confirmation" not in text, path
            assert "stale-form" not in text, path  # it was refused, or did nothing, for another reason
            if "{" in page.path and not page.path.startswith(("/webhooks/", "/several/", "/flows/")):
                assert status in (403, 404), (path, status)
        assert everything_of(app) == before


def login(board, token):
    board.application.dashboard.logins.take = lambda *_: 0.0
    status, headers, _ = board.call("POST", "/login", {"token": token})
    assert status == 303
    return headers["set-cookie"].partition(";")[0]


# -- other origins -------------------------------------------------------------------------------


class Evil(http.server.BaseHTTPRequestHandler):
    """A page of another origin, which the person has open in the same browser."""

    def do_GET(self):
        body = b"<!doctype html><title>evil</title><body>evil"
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *given):
        """Say nothing."""


@contextlib.contextmanager
def evil_server():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Evil) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join(10)


TRIES = """async ([target, posts, gets]) => {
  const read = [];
  for (const path of [...gets, ...posts]) {
    try { read.push((await (await fetch(target + path, { credentials: "include" })).text()).length); } catch {}
  }
  for (const path of posts) {
    const body = new URLSearchParams({ verdict: "abandon", choice: '{"verdict":"abandon"}' });
    try { await fetch(target + path, { method: "POST", mode: "no-cors", credentials: "include", body }); } catch {}
    const form = document.createElement("form");
    form.method = "post"; form.action = target + path; form.target = "sink";
    const field = document.createElement("input"); field.name = "choice"; field.value = '{"verdict":"abandon"}';
    form.append(field); document.body.append(form); form.submit();
  }
  for (const path of gets) {
    const frame = document.createElement("iframe"); frame.src = target + path; document.body.append(frame);
    const image = document.createElement("img"); image.src = target + path; document.body.append(image);
  }
  await new Promise((resolve) => {
    const source = new EventSource(target + "/live", { withCredentials: true });
    source.onmessage = () => { read.push("live"); resolve(); };
    source.onerror = () => { source.close(); resolve(); };
  });
  await new Promise((resolve) => setTimeout(resolve, 300));
  const framed = [...document.querySelectorAll("iframe")].filter((one) => {
    try { return one.contentDocument.body.innerText.includes("twiceproof"); } catch { return false; }
  });
  return [read, framed.length];
}"""


@pytest.mark.parametrize("has_token", [False, True])
def test_a_page_of_another_origin_neither_acts_nor_reads(browser, tmp_path, has_token):
    with two_tenants(tmp_path) as (app, board), evil_server() as elsewhere:
        visitor = Visitor(browser, board)
        if has_token:
            token = board.token("ann", Scope.ADMIN)
            board.application.access._no_token_until = 0.0  # as after FRESH seconds
            visitor.login(token)
            assert FRESH <= 3.0
        before = [(run.run, run.state, run.updated_at) for run in app.runs(limit=100)]
        gets = [address_of(app, page) for page in PAGES if page.method == "GET" and page.path != "/live"]
        posts = [address_of(app, page) for page in PAGES if page.method == "POST" and "log" not in page.path]
        visitor.page.goto(elsewhere)
        assert visitor.page.evaluate(TRIES, [board.url, posts, gets]) == [[], 0]
        assert [(run.run, run.state, run.updated_at) for run in app.runs(limit=100)] == before
        assert len(app.approvals()) == 1
        visitor.close()
