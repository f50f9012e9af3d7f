"""A server with its dashboard in this process, a ledger with a run in each state, and Chromium to look at it."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import uvicorn

from twiceproof import App
from twiceproof.claims.claim import body_of
from twiceproof.inbound.source import Event, Poison, Source
from twiceproof.operations import block
from twiceproof.outbox.message import PARKED, Message, message_address
from twiceproof.reconcile.findings import FINDING, NOTE, OPEN, ReconcileNote, StoredFinding, space_for
from twiceproof.records import SELF, Address, Insert, Record
from twiceproof.server.app import make_application
from twiceproof.server.tokens import Scope, create_token

CHROMIUM = Path("/usr/bin/chromium")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
DIGITS = '{"big":9223372036854775807,"exact":1.10,"tenth":0.1,"huge":' + str(2**200) + ',"face":"🦊"}'


class MailAway(TimeoutError):
    """The mail server did not answer: whether it took the mail is unknown."""


class Post(Source):
    """Believes whoever knows the secret."""

    name = "post"
    largest = 100_000

    def verify(self, envelope, secrets, now):
        return "" if envelope.header("x-secret") in secrets else "wrong secret"

    def read(self, envelope):
        try:
            order = json.loads(envelope.body)
            return [Event(order["event"], order)]
        except (ValueError, KeyError, TypeError) as error:
            return Poison(f"no event in the body: {error!r}")


def declare(app: App) -> dict[str, Any]:
    """A shop: orders become invoices, mails and addresses."""

    @app.step(repeat="safe", external="{result}")
    def make_invoice(order):
        return f"inv_{order['id']}"

    @app.step(repeat="never")
    def send_confirmation(order):
        if order.get("away"):
            raise MailAway("no answer in 30 s")
        return {"mail": order["id"]}

    @app.flow(key="shop:order:{order[id]}")
    def sync_order(order):
        invoice = make_invoice(order)
        if order.get("total", 0) > 1_000:
            app.approve("charge", show={"order": order["id"], "total": order["total"]}, requester="shop")
        if order.get("wait"):
            app.wait_for("payment", timeout="2d")
        send_confirmation(order)
        if order.get("bad"):
            raise ValueError("422 unknown customer cust_8821")
        return {"invoice": invoice}

    @app.flow(key="{name}")
    def echo(name, value):
        return value

    @app.once(key="ship:{order}", repeat="never")
    def ship(order):
        return {"parcel": f"parcel-{order}"}

    app.webhook(Post(), secret="s3cret", name="shop", start=sync_order)
    return {"sync_order": sync_order, "echo": echo, "ship": ship}


_names = count(90_000)


def parked(app: App, why: str = "410") -> tuple[str, Callable[[], Record]]:
    """A message that nobody took; its key, and what reads its record."""
    key = f"m{next(_names)}"
    at = message_address("default", "main", key)
    body = body_of(Message("orders", key, "main", "main", "digest", "{}", why=why))
    app.store.write(Insert(at, body, PARKED)).block()
    return key, lambda: app.store.read(at).block().record


def different(app: App, text: str = "it is gone") -> tuple[str, Callable[[], Record]]:
    """A finding; its id, and what reads its record."""
    name = f"fnd_{next(_names)}"
    at = Address(space_for("default", "daily"), FINDING, name)
    note = Address(space_for("default", "daily"), NOTE, SELF)
    body = body_of(StoredFinding(name, "default", "daily", "gone", name, (), text, {}, 1.0, 1.0, 1.0))
    app.store.write(Insert(at, body, OPEN)).block()
    app.store.write(Insert(note, body_of(ReconcileNote("daily")))).block()
    return name, lambda: app.store.read(at).block().record


def fill(app: App, flows: dict[str, Any]) -> None:
    """A run in each state that a page shows."""
    sync = flows["sync_order"]
    for number in range(10_488, 10_492):
        sync.start({"id": str(number), "total": 90})
    sync.start({"id": "10493", "total": 120, "away": True})
    sync.start({"id": "10502", "total": 20, "away": True})
    sync.start({"id": "10494", "total": 5_000})
    sync.start({"id": "10495", "wait": True})
    sync.start({"id": "10496", "bad": True})
    app.worker().run(until_idle=True)
    flows["ship"]("10488")
    sync.start({"id": "10499", "total": 15})  # queued: no worker comes


class Dashboard:
    """The server on a thread, with a port of its own. `wrap`: what the application is mounted in."""

    def __init__(
        self, app: App, port: int = 0, wrap: Callable[[Any], Any] = lambda inner: inner, **options: Any
    ) -> None:
        self.app = app
        self.application = make_application(app, **options)
        self._socket = socket.create_server(("127.0.0.1", port))
        self.port = self._socket.getsockname()[1]
        self.host = f"127.0.0.1:{self.port}"
        self.url = f"http://{self.host}"
        config = uvicorn.Config(
            wrap(self.application), lifespan="off", log_level="error", ws="none", server_header=False
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]}, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.should_exit = self._server.force_exit = True
        self._thread.join(10)
        self._socket.close()

    def deliver(self, body: str, hook: str = "shop") -> int:
        """As a sender of webhooks."""
        status, _, _ = self.call("POST", f"/hooks/{hook}", None, {"x-secret": "s3cret", "content-type": "x/y"}, body)
        return status

    def token(self, name: str, *scopes: Scope, tenant: str = "default") -> str:
        return block(create_token(self.app.store, name, tenant, scopes))[0]

    def call(
        self,
        method: str,
        path: str,
        fields: dict[str, str] | None = None,
        headers: dict[str, str] | None = None,
        body: str = "",
    ) -> tuple[int, dict[str, str], str]:
        """As a browser without scripts sends it."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        body = body or urlencode(fields or {})
        sent = {"content-type": "application/x-www-form-urlencoded", "origin": self.url} if method == "POST" else {}
        with contextlib.closing(connection):
            connection.request(method, path, body.encode() if method == "POST" else None, {**sent, **(headers or {})})
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return answer.status, found, answer.read().decode(errors="replace")


@contextlib.contextmanager
def serving(app: App, **options: Any) -> Iterator[Dashboard]:
    made = Dashboard(app, **options)
    try:
        yield made
    finally:
        made.close()


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    """A browser for a module of tests. Without one they are skipped, and the summary says so."""
    play_api = pytest.importorskip("playwright.sync_api")
    if not CHROMIUM.exists():
        pytest.skip(f"{CHROMIUM} is not installed")
    with play_api.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


def open_section(page: Any, word: str) -> None:
    """Open a section and wait until the address names it: that is a navigation too, and comes a moment after the click.
    Whoever then waits for the answer to a form would take it for that answer.
    """
    page.click(f"summary:text-is('{word}')")
    page.wait_for_url("**open=*")


def follow(page: Any, what: str) -> Any:
    """Click, and return the next page's answer when that page is there: a click by itself waits for no page."""
    with page.expect_navigation() as answer:
        page.click(what)
    return answer.value


# Put into every page before anything else: what the policy refused, and what a payload did.
WATCHING = """
window.refused = [];
const note = (event) => window.refused.push(event.violatedDirective + " " + event.blockedURI);
addEventListener("securitypolicyviolation", note);
window.alert = window.confirm = window.prompt = () => { window.refused.push("a dialog"); };
"""
NO_NEWS = "window.EventSource = class { close() {} };"


class Visitor:
    """One person's browser: cookies of its own, and a note of whatever went wrong.

    Without `live`, a page stays as it was opened: one that follows its run reloads itself, also in the middle of a test
    about what happens to a page that is out of date.
    """

    def __init__(self, browser: Any, board: Dashboard, *, live: bool = True, **options: Any) -> None:
        self.board = board
        self.context = browser.new_context(base_url=board.url, **options)
        self.context.set_default_timeout(10_000)
        self.context.add_init_script(WATCHING)
        if not live:  # without a route in the browser: that would take away its cache, too
            self.context.add_init_script(NO_NEWS)
        self.page = self.context.new_page()
        self.elsewhere: list[str] = []
        self.page.on("request", self._note)
        self.errors: list[str] = []
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))

    def _note(self, request: Any) -> None:
        if not request.url.startswith(self.board.url):
            self.elsewhere.append(request.url)

    def go(self, path: str) -> Any:
        self.page.goto(path)
        return self.page

    def login(self, token: str) -> None:
        self.board.application.dashboard.logins.take = lambda *_: 0.0  # logins are limited
        page = self.go("/login")
        page.fill("input[name=token]", token)
        page.click("text=Log in >> nth=-1")
        page.wait_for_url(self.board.url + "/")

    def refused(self) -> list[str]:
        return self.page.evaluate("window.refused")

    def close(self) -> None:
        self.context.close()
