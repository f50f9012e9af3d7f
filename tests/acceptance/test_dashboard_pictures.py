"""The pictures of the dashboard in the documents: made here, from a shop whose orders meet bad weather.

`TWICEPROOF_PICTURES=1 pytest tests/acceptance/test_dashboard_pictures.py` writes them anew.
"""

from __future__ import annotations

import json
import os
import struct
import threading
import time
from functools import partial
from pathlib import Path

import pytest

from tests.acceptance.dashboards import MailAway, Post, Visitor, chromium, serving
from tests.unit.declared.releasing import make_live
from twiceproof import Absent, App, check, load_flows
from twiceproof.claims.duplicates import DuplicateCounter, Duplicates
from twiceproof.declared.reading import read_flow
from twiceproof.declared.releases import FlowProof, TestProof, keep_proof, push
from twiceproof.operations import block
from twiceproof.version import __version__

PICTURES = Path(__file__).parents[2] / "docs/pictures"
WIDE = 1200
EXAMPLE = Path(__file__).parents[2] / "examples/flows/welcome.flow.yaml"
PAGES = {
    "dashboard-attention": "/",
    "dashboard-run": "RUN",
    "dashboard-key": "KEY",
    "dashboard-flow": "/flows/welcome",
    "dashboard-release": "/flows/welcome/r1",
}
HEIGHTS = {
    "dashboard-attention": 720,
    "dashboard-run": 880,
    "dashboard-key": 600,
    "dashboard-flow": 1120,
    "dashboard-release": 860,
}


def shop(app):
    """What a picture shows: three orders that went well, and some that wait for somebody."""

    @app.step(repeat="never", external="{result[id]}")
    def customer(order):
        time.sleep(0.04)  # so that the time line has something to show
        return {"id": f"cust_{order['id']}"}

    @app.step(repeat=check(lambda order: Absent()), external="{result[id]}")
    def invoice(order):
        time.sleep(0.09)
        return {"id": f"inv_{order['id']}"}

    @app.step(repeat="never")
    def mark_synced(order):
        time.sleep(0.03)

    @app.step(repeat="never")
    def confirmation(order):
        time.sleep(0.12)
        if order.get("away"):
            raise MailAway("the mail server did not answer in 30 s")

    @app.flow(key="shop:order:{order[id]}")
    def sync_order(order):
        customer(order)
        if order["total"] > 1_000:
            app.approve("charge", show={"order": order["id"], "total": order["total"]}, requester="shop")
        made = invoice(order)
        if order.get("bad"):
            raise ValueError("422 unknown customer")
        mark_synced(order)
        confirmation(order)
        return {"invoice": made["id"]}

    app.webhook(Post(), secret="s3cret", name="shop", start=sync_order)


def release(app, folder):
    """The welcome flow of the examples: proved and live, and a draft that differs from it."""
    text = EXAMPLE.read_text("utf-8").replace("- manual", "- manual: Welcome a customer")
    folder.mkdir()
    (folder / EXAMPLE.name).write_text(text)
    (folder / "connections.yaml").write_text((EXAMPLE.parent / "connections.yaml").read_text())
    load_flows(app, folder)
    made = make_live(app.store, text, by="ada", at=time.time())
    draft = text.replace("good to have you here.", "good to have you with us.")
    changed, _ = block(push(app.store, "default", draft, by="bob", note="friendlier"))
    tests = read_flow(text).file.tests
    results = tuple(TestProof(test.name, count, count, True) for test, count in zip(tests, (61, 67), strict=True))
    for one in (made, changed):
        known = (one.hash, one.tests, {}, __version__, 2, results)
        block(keep_proof(app.store, FlowProof("welcome", "default", *known, by="ada", host="desk")))


# Repeats that were blocked in the hours before, the latest first: a shop has busy hours and a night.
EARLIER = (14, 19, 31, 26, 22, 12, 9, 3, 0, 1, 0, 0, 2, 5, 11, 24, 28, 17, 21, 15, 8, 6, 4)


class Earlier:
    """A clock that shows an hour of the past."""

    def __init__(self, hours):
        self._at = time.time() - hours * 3_600

    def now(self):
        return self._at


def blocked_earlier(app):
    for nth, count in enumerate(EARLIER):
        duplicates = Duplicates(clock=Earlier(nth + 1))
        counter = DuplicateCounter(app.store, duplicates, ids=partial(str, f"earlier-{nth}"))
        for number in range(count):
            duplicates.blocked("sync_order", f"evt_{10_100 + 40 * nth + number // 2}", "shop")
        counter.stop()


def fill(app, board):
    orders = [
        {"id": "10491", "total": 80},
        {"id": "10492", "total": 120},
        {"id": "10494", "total": 45},
        {"id": "10493", "total": 60, "away": True},
        {"id": "10502", "total": 75, "away": True},
        {"id": "10495", "total": 4_800},
        {"id": "10496", "total": 30, "bad": True},
    ]
    for order in orders:
        board.deliver(json.dumps({"event": f"evt_{order['id']}", **order}))
    app.worker().run(until_idle=True)
    for _ in range(2):
        board.deliver(json.dumps({"event": "evt_10492", **orders[1]}))
    board.deliver('{"order": 10497}')
    app.tally.flush()
    blocked_earlier(app)


@pytest.fixture(scope="module")
def visitor(tmp_path_factory):
    with App(f"sqlite:///{tmp_path_factory.mktemp('pictures')}/shop.db") as app:
        shop(app)
        release(app, tmp_path_factory.mktemp("files") / "flows")
        with serving(app) as board, chromium() as browser:
            fill(app, board)
            worker = app.worker()
            thread = threading.Thread(target=worker.run, daemon=True)
            thread.start()
            made = Visitor(
                browser, board, viewport={"width": WIDE, "height": max(HEIGHTS.values())}, color_scheme="light"
            )
            yield made
            made.close()
            worker.drain()
            thread.join(30)


def path_of(app, name):
    run = app.runs(key="shop:order:10493")[0].run
    return {"RUN": f"/runs/{run}", "KEY": "/keys/sync_order/shop%3Aorder%3A10492"}.get(PAGES[name], PAGES[name])


@pytest.mark.parametrize("name", PAGES)
def test_a_picture_of_the_documents_is_of_a_page_that_there_is(visitor, name):
    page = visitor.go(path_of(visitor.board.app, name))
    page.wait_for_load_state("load")
    page.locator("[data-count=review]").wait_for(state="visible")  # the event stream has told how many there are
    assert page.locator("h1").count() == 1 and page.locator("main").inner_text()
    taken = page.screenshot(clip={"x": 0, "y": 0, "width": WIDE, "height": HEIGHTS[name]})
    kept = PICTURES / f"{name}.png"
    if os.environ.get("TWICEPROOF_PICTURES"):
        kept.write_bytes(taken)
    assert size_of(kept.read_bytes()) == size_of(taken) == (WIDE, HEIGHTS[name])


def size_of(picture: bytes) -> tuple[int, ...]:
    assert picture.startswith(b"\x89PNG")
    return struct.unpack(">II", picture[16:24])


def test_the_pictures_show_what_the_pages_say(visitor):
    app = visitor.board.app
    page = visitor.go(path_of(app, "dashboard-run"))
    assert "confirmation: no answer came" in page.inner_text(".reason")
    assert page.locator(".steps .bar rect").count() == 4
    page = visitor.go(path_of(app, "dashboard-key"))
    assert "came 3×, worked 1×, blocked 2" in page.inner_text(".facts")
    page = visitor.go("/flows/welcome")
    assert "The draft differs from what is live: step greeting.text" in page.inner_text(".reason")
    assert page.locator("form button:text-is('Welcome a customer')").count() == 1
    page = visitor.go("/flows/welcome/r1")
    assert "the same customer, told twice under two delivery ids" in page.inner_text("main")
