"""Approvals at their addresses: what shows never decides, and what decides was shown."""

from __future__ import annotations

import re
from html import unescape
from urllib.parse import quote, urlencode

import pytest

from tests.unit.server.routes.client import Client
from twiceproof import App, Misuse, PayloadMismatch, Waiting
from twiceproof.flows.waits.approvals import ApprovalLink, create_link, decide, find_link, link_url
from twiceproof.operations import block
from twiceproof.server.services.approvals import VALID, by_id

HTML = {"accept": "text/html,application/xhtml+xml"}
FORM = "application/x-www-form-urlencoded"


class Shop:
    """A flow that asks, and sends a link to whoever shall decide."""

    def __init__(self, app, **options):
        self.app = app
        self.links = []
        self.show = {"total": 700, "to": "<b>ann</b>"}
        self.to = "ann"
        options = {"timeout": "2d", **options}

        @app.step(repeat="safe")
        def send(order):
            self.links.append(app.approval_url("charge", show=self.show, to=self.to, valid="1d"))

        @app.flow(key="order:{order}", name="charge_order", stable=("order",))
        def flow(order: int):
            send(order)
            return app.approve("charge", show=self.show, **options).by

        self.flow = flow

    def ask(self, order=1):
        with pytest.raises(Waiting):
            self.flow(order)
        return self.links[-1].removeprefix("https://hooks.example.com")

    @property
    def id(self):
        return self.app.approvals()[0].id


@pytest.fixture
def shop(app):
    return Shop(app)


def choices(page):
    found = dict(value.split(":", 1) for value in re.findall(r'name="choice" value="([^"]+)"', page))
    shown = re.search(r'name="shown" value="([^"]+)"', page)
    return found, unescape(shown[1]) if shown else ""


def form(page, decision, **fields):
    nonces, shown = choices(page)
    return urlencode({"choice": f"{decision}:{nonces[decision]}", "shown": shown, **fields}).encode()


def word(view, decision, **fields):
    return {"decision": decision, "nonce": view["nonces"][decision], "shown": view["approval"]["digest"], **fields}


# -- by link -------------------------------------------------------------------------------------


def test_a_link_shows_what_is_asked_and_its_form_decides(app, client, shop):
    path = shop.ask()
    page = client("GET", path, status=200, **HTML)
    assert "You decide as <b>ann</b>" in page.text and "700" in page.text
    answer = client("POST", path, form(page.text, "approve", note="fine"), 200, content_type=FORM, **HTML)
    assert "<b>Approved</b> by ann" in answer.text
    assert shop.flow(1) == "ann"


def test_opening_it_a_hundred_times_decides_nothing(app, client, shop):
    path = shop.ask()
    for _ in range(100):
        client("GET", path, status=200, **HTML)
        client("HEAD", path, status=200)
    assert [one.state for one in app.approvals()] == ["open"]
    assert client("GET", path).json["nonces"]


def test_pressing_the_button_without_choosing_decides_nothing(app, client, shop):
    path = shop.ask()
    _, shown = choices(client("GET", path, **HTML).text)
    client("POST", path, urlencode({"shown": shown}).encode(), 400, content_type=FORM, **HTML)
    assert app.approvals()


def test_a_form_with_two_choices_decides_nothing(app, client, shop):
    path = shop.ask()
    page = client("GET", path, **HTML).text
    both = form(page, "reject") + b"&" + form(page, "approve")
    client("POST", path, both, 400, content_type=FORM, **HTML)
    assert [one.state for one in app.approvals()] == ["open"]


def test_a_page_runs_no_script_and_shows_text_as_text(app, client, shop):
    shop.show = {
        "<script>alert(1)</script>": '"><img src=x onerror=alert(2)>',
        "rtl": "a\u202eb",
        "n": {"x": ["</pre>"]},
    }
    page = client("GET", shop.ask(), status=200, **HTML)
    assert "<script" not in page.text and "<img" not in page.text and page.text.count("</pre>") == 3
    assert "\u202e" not in page.text and "\\u202e" in page.text
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "script-src" not in policy
    assert page.headers["referrer-policy"] == "no-referrer"
    assert page.headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    "letter",
    [
        "\u061c",
        "\u00ad",
        "\u180e",
        "\u206a",
        "\ufffb",
        "\U000e0041",
        "\x1b",
        "\u200b",
        "\u034f",
        "\u115f",
        "\u3164",
        "\uffa0",
        "\u2800",
        "\ufe0f",
        "\U000e0100",
        "\U0001d173",
    ],
)
def test_what_cannot_be_seen_is_written_out_on_the_page(client, shop, letter):
    shop.show = {"to": f"DE89{letter}3704", "note": "two\nlines"}
    page = client("GET", shop.ask(), status=200, **HTML)
    assert letter not in page.text and "two\nlines" in page.text
    assert f"DE89{ascii(letter)[1:-1]}3704" in page.text


def test_a_form_that_is_sent_again_does_not_answer_what_the_next_start_asks(app, clock):
    @app.flow(key="order:{order}", keep="10m", stable=("order",))
    def pay(order: int):
        return app.approve("charge", show={"total": 7}).by

    ann = Client(app, by="ann")
    with pytest.raises(Waiting):
        pay(1)
    address = f"/v1/approvals/{app.approvals()[0].id}"
    sent = word(ann("GET", address, status=200), "approve")
    assert ann("POST", address, sent, 200)["first"] is True
    assert pay(1) == "ann"
    clock.advance(660)
    with pytest.raises(Waiting):
        pay(1)  # forgotten, and started anew
    assert ann("POST", address, sent, 403)["type"] == "urn:twiceproof:stale-view"
    assert [one.state for one in app.approvals()] == ["open"]
    assert ann("POST", address, word(ann("GET", address, status=200), "approve"), 200)["first"] is True


def test_a_decision_that_comes_while_the_run_starts_anew_does_not_count_for_it(app, shop):
    """Between a look at its nonce and its landing, the run may have been forgotten and begun again."""
    shop.ask()
    seat = block(by_id(app.store, "default", shop.id, "ann"))
    words = {"approved": True, "by": "ann", "mark": "m", "shown": seat.approval.digest}
    with pytest.raises(PayloadMismatch):
        block(decide(app.store, shop.id, start_id="an earlier start", **words))
    assert block(decide(app.store, shop.id, start_id=seat.start_id, **words)).first


def test_what_was_decided_is_told_without_what_was_shown(client, shop):
    path = shop.ask()
    page = client("GET", path, **HTML)
    body = form(page.text, "reject")
    client("POST", path, body, 200, content_type=FORM, **HTML)
    after = client("GET", path, status=200, **HTML)
    assert "Rejected" in after.text and "700" not in after.text and "<form" not in after.text
    told = client("GET", path, status=200)
    assert (told["approval"]["state"], told["approval"]["shown"], told["nonces"]) == ("decided", None, None)
    looked_up = client("GET", f"/v1/approvals/{told['approval']['id']}", status=200)  # with a token, by its id
    assert looked_up["approval"]["shown"]["total"] == 700


def test_a_second_post_changes_nothing_and_hears_what_stands(app, client, shop):
    path = shop.ask()
    view = client("GET", path, status=200)
    assert client("POST", path, word(view, "approve"), 200)["first"] is True
    assert client("POST", path, word(view, "approve"), 200)["first"] is False
    told = client("POST", path, word(view, "reject"), 409)
    assert told["decision"]["approved"] is True


def test_what_changed_since_the_page_was_opened_is_not_decided(app, client, shop, clock):
    """The run ends and is begun anew under the same key, asking for more."""
    path = shop.ask()
    view = client("GET", path, status=200)
    app.attach(flow="charge_order", key="order:1").cancel()
    app.worker().run(until_idle=True)
    clock.advance(31 * 86_400)
    shop.show = {"total": 70_000}
    newer = shop.ask()
    client("POST", path, word(view, "approve"), 404)
    fresh = client("GET", newer, status=200)
    client("POST", newer, {**word(fresh, "approve"), "shown": view["approval"]["digest"]}, 403)
    assert [one.shown for one in app.approvals()] == [{"total": 70_000}]
    client("POST", newer, word(fresh, "approve"), 200)


def test_a_link_made_for_something_else_shows_nothing(client, shop, app):
    shop.ask()
    other = shop.links[-1].removeprefix("https://hooks.example.com")
    link = block(find_link(app.store, other.rsplit("/", 1)[1]))
    token = block(create_link(app.store, ApprovalLink(link.space, link.name, link.start_id, "1:0", "eve"), 60))
    assert "new link" in client("GET", f"/v1/approvals/link/{token}", status=422)["next"]


def test_a_link_is_over_when_its_time_is(client, shop, clock):
    path = shop.ask()
    clock.advance(86_399)
    client("GET", path, status=200)
    clock.advance(2)
    client("GET", path, status=404)


def test_a_page_that_lay_open_too_long_decides_nothing(app, client, shop, clock):
    path = shop.ask()
    view = client("GET", path)
    clock.advance(VALID + 1)
    assert "again" in client("POST", path, word(view, "approve"), 403)["next"]
    client("POST", path, word(client("GET", path), "approve"), 200)


def test_a_nonce_is_for_one_decision_one_way_in_and_one_approval(app, client, shop):
    first, second = shop.ask(1), shop.ask(2)
    view, other = client("GET", first), client("GET", second)
    client("POST", first, {**word(view, "approve"), "nonce": view["nonces"]["reject"]}, 403)
    client("POST", first, {**word(view, "approve"), "nonce": other["nonces"]["approve"]}, 403)
    client("POST", first, {**word(view, "approve"), "nonce": "0.0.0"}, 403)
    client("POST", f"/v1/approvals/{view['approval']['id']}", word(view, "approve", by="eve"), 403)
    assert len(app.approvals()) == 2


def test_a_link_is_one_persons(client, shop):
    path = shop.ask()
    view = client("GET", path)
    client("POST", path, word(view, "approve", by="eve"), 403)
    assert client("POST", path, word(view, "approve", by="ann"), 200)["decision"]["by"] == "ann"


def test_a_link_for_anybody_asks_who_they_are(client, shop):
    shop.to = ""
    path = shop.ask()
    view = client("GET", path)
    client("POST", path, word(view, "approve"), 400)
    page = client("GET", path, **HTML).text
    assert 'name="by" required' in page
    answer = client("POST", path, form(page, "approve", by="bob", note=""), 200, content_type=FORM, **HTML)
    assert "by bob" in answer.text


def test_a_form_on_another_sites_page_decides_nothing(app, client, shop):
    path = shop.ask()
    body = form(client("GET", path, **HTML).text, "approve")
    client("POST", path, body, 403, content_type=FORM, sec_fetch_site="cross-site", **HTML)
    assert app.approvals()
    client("POST", path, body, 200, content_type=FORM, sec_fetch_site="same-origin", **HTML)


@pytest.mark.parametrize("token", ["nonsense", "x" * 5_000, "%00", "ünicode"])
def test_a_link_that_was_never_made_leads_nowhere(client, token):
    client("GET", f"/v1/approvals/link/{quote(token)}", status=404)
    client("GET", f"/v1/approvals/link/{quote(token)}", status=404, **HTML)
    client("POST", f"/v1/approvals/link/{quote(token)}", {"decision": "approve", "nonce": "", "shown": ""}, 404)


def test_the_store_never_sees_a_links_token(tmp_path):
    with App(f"sqlite:///{tmp_path}/shop.db", url="https://hooks.example.com") as app:
        token = Shop(app).ask().rsplit("/", 1)[1]
    assert len(token) * 6 >= 128
    everything = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b"links/" in everything and token.encode() not in everything


def test_a_link_is_made_in_a_step_and_nowhere_else(app):
    @app.flow(key="k", name="bare")
    def bare():
        return app.approval_url("charge")

    for call in (bare, lambda: app.approval_url("charge")):
        with pytest.raises(Misuse, match=r"@app\.step"):
            call()


def test_a_link_to_nowhere_known_is_refused():
    with pytest.raises(Misuse, match="TWICEPROOF_URL"):
        link_url("", "token")


# -- by id ---------------------------------------------------------------------------------------


def test_a_program_looks_and_then_decides_under_its_tokens_name(app, shop):
    shop.ask()
    client = Client(app, by="ops")
    path = f"/v1/approvals/{shop.id}"
    view = client("GET", path, status=200)
    assert view["approval"]["shown"] == shop.show
    assert client("POST", path, word(view, "approve"), 200)["decision"]["by"] == "ops"


def test_a_view_of_one_token_is_not_anothers(app, shop):
    shop.ask()
    path = f"/v1/approvals/{shop.id}"
    view = Client(app, by="ops")("GET", path)
    Client(app, by="eve")("POST", path, word(view, "approve"), 403)


def test_without_a_token_who_decides_must_say_who_they_are(client, shop):
    shop.ask()
    path = f"/v1/approvals/{shop.id}"
    view = client("GET", path)
    client("POST", path, word(view, "approve"), 400)
    assert client("POST", path, word(view, "approve", by="ann"), 200)["decision"]["by"] == "ann"


def test_what_waits_is_listed(app, client, shop):
    shop.ask(1)
    shop.ask(2)
    assert {one["key"] for one in client("GET", "/v1/approvals")["approvals"]} == {"order:1", "order:2"}
    assert client("GET", "/v1/approvals?flow=other")["approvals"] == []


def test_a_run_that_was_cancelled_asks_nobody_any_more(app, client, shop):
    path = shop.ask()
    view = client("GET", path)
    app.attach(flow="charge_order", key="order:1").cancel()
    app.worker().run(until_idle=True)
    client("POST", path, word(view, "approve"), 410)


def test_another_tenants_approval_is_not_there(app, client, shop):
    theirs = Client(app, tenant="acme")
    theirs("POST", "/v1/runs/charge_order", 1, 202)
    app.worker().run(until_idle=True)
    (foreign,) = theirs("GET", "/v1/approvals")["approvals"]
    view = theirs("GET", f"/v1/approvals/{foreign['id']}", status=200)
    assert client("GET", "/v1/approvals")["approvals"] == []
    client("GET", f"/v1/approvals/{foreign['id']}", status=404)
    client("POST", f"/v1/approvals/{foreign['id']}", word(view, "approve", by="eve"), 404)
    client("GET", "/v1/approvals/nonsense", status=404)


# -- who asks does not approve -------------------------------------------------------------------


@pytest.mark.parametrize("who", ["ann", "ANN"])
def test_who_asks_cannot_approve_but_may_take_it_back(app, client, who):
    shop = Shop(app, requester=who)
    path = shop.ask()
    view = client("GET", path)
    assert "another person" in client("POST", path, word(view, "approve"), 403)["next"]
    assert app.approvals()
    client("POST", path, word(view, "reject"), 200)


def test_who_started_a_run_over_http_is_who_asks(app):
    shop = Shop(app)
    shop.to = "bob"
    Client(app, by="ann")("POST", "/v1/runs/charge_order", 1, 202)
    app.worker().run(until_idle=True)
    path = f"/v1/approvals/{shop.id}"
    ann, bob = Client(app, by="ann"), Client(app, by="bob")
    assert ann("GET", path)["approval"]["requester"] == "ann"
    ann("POST", path, word(ann("GET", path), "approve"), 403)
    bob("POST", path, word(bob("GET", path), "approve"), 200)


@pytest.mark.parametrize("how", ["called", "started"])
def test_a_flow_within_a_flow_does_not_hide_who_asks(app, how):
    shop = Shop(app)
    shop.to = "bob"

    @app.flow(key="outer:{order}", stable=("order",))
    def outer(order: int):
        shop.flow(order) if how == "called" else shop.flow.start(order)

    ann, bob = Client(app, by="ann"), Client(app, by="bob")
    ann("POST", "/v1/runs/outer", 1, 202)
    app.worker().run(until_idle=True)
    path = f"/v1/approvals/{shop.id}"
    ann("POST", path, word(ann("GET", path), "approve"), 403)
    bob("POST", path, word(bob("GET", path), "approve"), 200)


def test_a_fork_does_not_hide_who_asks(app):
    """A person could otherwise cancel what they asked for, fork it, and approve the fork."""
    shop = Shop(app)
    shop.to = "bob"
    ann, bob, cy = Client(app, by="ann"), Client(app, by="bob"), Client(app, by="cy")
    ann("POST", "/v1/runs/charge_order", 1, 202)
    app.worker().run(until_idle=True)
    ann("POST", "/v1/runs/charge_order%2Forder:1/cancel", {}, 200)
    app.worker().run(until_idle=True)
    for key, who in (("order:2", ann), ("order:3", bob)):
        who("POST", "/v1/runs/charge_order%2Forder:1/fork", {"key": key}, 201)
        app.worker().run(until_idle=True)
        path = f"/v1/approvals/{shop.id}"
        who("POST", path, word(who("GET", path), "approve"), 403)
        cy("POST", path, word(cy("GET", path), "approve"), 200)


def test_a_fork_by_nobody_known_is_still_asked_for_by_who_started_it(app):
    shop = Shop(app)
    shop.to = "bob"
    Client(app, by="ann")("POST", "/v1/runs/charge_order", 1, 202)
    app.worker().run(until_idle=True)
    app.attach(flow="charge_order", key="order:1").cancel()
    app.worker().run(until_idle=True)
    app.fork_run("charge_order/order:1", key="order:2", by="eve")
    app.worker().run(until_idle=True)
    assert [one.requester for one in app.approvals()] == ["ann"]


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "https://hooks.example.com.evil.example", "http://localhost:1"]
)
def test_an_older_browser_on_another_sites_page_decides_nothing_either(app, client, shop, origin):
    path = shop.ask()
    body = form(client("GET", path, **HTML).text, "approve")
    client("POST", path, body, 403, content_type=FORM, origin=origin, **HTML)
    assert app.approvals()
    for own in ("https://hooks.example.com", "http://localhost", "null"):
        client("POST", path, body, 200, content_type=FORM, origin=own, **HTML)
