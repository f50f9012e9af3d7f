"""Approvals behind a real server: opened by browsers and scanners, raced for by people, decided once."""

from __future__ import annotations

import re
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from html import unescape
from pathlib import Path
from urllib.parse import urlencode

import pytest

from tests.acceptance.http_shop import HttpShop

CHROMIUM = Path("/usr/bin/chromium")
HTML = "text/html"


@pytest.fixture
def shop(tmp_path):
    made = HttpShop(tmp_path)
    yield made.start()
    made.kill()


def ask(shop, *approvers, **more):
    order = {"id": 1, "total": 700, "approvers": approvers, **more}
    assert shop("POST", "/v1/runs/charge_order", order).status == 202
    return shop.links(len(approvers))


def form(shop, path, decision):
    page = shop("GET", path, accept=HTML).body.decode()
    choice = re.search(rf'value="({decision}:[^"]+)"', page)[1]
    shown = unescape(re.search(r'name="shown" value="([^"]+)"', page)[1])
    return urlencode({"choice": choice, "shown": shown}).encode()


def send(shop, path, body):
    return shop("POST", path, body, content_type="application/x-www-form-urlencoded", accept=HTML)


def state(shop):
    return shop("GET", "/v1/runs")["runs"][0]["state"]


def decided(shop):
    (approval,) = [
        piece
        for piece in shop("GET", f"/v1/runs/{shop('GET', '/v1/runs')['runs'][0]['run']}")["pieces"]
        if piece["kind"] == "approval"
    ]
    return approval["body"].get("decision")


def test_two_who_race_decide_once(shop):
    paths = ask(shop, "ann", "bob")
    bodies = [form(shop, paths[0], "approve"), form(shop, paths[1], "reject")]
    for _ in range(3):
        with ThreadPoolExecutor(20) as crowd:
            heard = list(crowd.map(lambda n: send(shop, paths[n % 2], bodies[n % 2]), range(20)))
    assert Counter(one.status for one in heard) == {200: 10, 409: 10}
    stands = decided(shop)
    assert stands["by"] == ("ann" if stands["approved"] else "bob")


def test_a_form_sent_twice_is_one_decision(shop):
    (path,) = ask(shop, "ann")
    body = form(shop, path, "approve")
    first, second = send(shop, path, body), send(shop, path, body)
    assert (first.status, second.status) == (200, 200)
    assert b"This was already decided" in second.body and b"This was already decided" not in first.body


@pytest.mark.slow
@pytest.mark.skipif(not CHROMIUM.exists(), reason="there is no Chromium here")
def test_a_browser_that_opens_the_page_and_runs_what_is_on_it_decides_nothing(shop):
    sync_api = pytest.importorskip("playwright.sync_api")
    (path,) = ask(shop, "ann", note="<script>fetch(location.href, {method: 'POST'})</script>")
    with sync_api.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_context().new_page()
        alarms = []
        page.on("dialog", lambda dialog: alarms.append(dialog.message))
        page.on("request", lambda request: alarms.append(request.method) if request.method != "GET" else None)
        for _ in range(3):
            page.goto(shop.url + path)
        _prefetch(page, shop.url + path)
        page.get_by_role("button").click()  # without having chosen anything
        page.reload()
        assert (alarms, decided(shop), page.locator("script").count()) == ([], None, 0)
        page.get_by_label("Approve").check()
        page.get_by_role("button").click()
        page.wait_for_selector("text=Approved")
        browser.close()
    assert decided(shop)["by"] == "ann"


def _prefetch(page, url):
    """What browsers and scanners do with a link that somebody points at."""
    blank = page.context.new_page()
    blank.set_content(
        f'<link rel="prefetch" href="{url}"><iframe src="{url}"></iframe><a href="{url}" ping="{url}">x</a>'
    )
    blank.get_by_role("link").hover()
    blank.wait_for_load_state("networkidle")
    blank.close()


@pytest.mark.slow
@pytest.mark.skipif(not CHROMIUM.exists(), reason="there is no Chromium here")
def test_the_page_works_where_scripts_are_switched_off(shop):
    sync_api = pytest.importorskip("playwright.sync_api")
    (path,) = ask(shop, "ann")
    with sync_api.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_context(java_script_enabled=False).new_page()
        page.goto(shop.url + path)
        page.get_by_label("Reject").check()
        page.get_by_role("button").click()
        page.wait_for_selector("text=Rejected")
        browser.close()
    assert decided(shop)["approved"] is False


@pytest.mark.slow
@pytest.mark.skipif(not CHROMIUM.exists(), reason="there is no Chromium here")
def test_an_operator_decides_by_id_in_a_browser_on_the_same_machine(shop):
    """Whoever sits at the machine needs no token while none was made."""
    sync_api = pytest.importorskip("playwright.sync_api")
    ask(shop, "ann")
    approval = shop("GET", "/v1/approvals")["approvals"][0]["id"]
    with sync_api.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page()
        page.goto(f"{shop.url}/v1/approvals/{approval}")
        page.get_by_label("Your name").fill("op")
        page.get_by_label("Approve").check()
        page.get_by_role("button").click()
        page.wait_for_selector("text=Approved")
        browser.close()
    assert decided(shop)["by"] == "op"
