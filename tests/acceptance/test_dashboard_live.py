"""Live changes, in a real browser: rows change in place, forms survive, one stream for all tabs."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.acceptance.dashboards import Visitor, chromium, declare, follow, serving
from twiceproof import App
from twiceproof.server.tokens import Scope

LATER = 8_000  # milliseconds, on a busy machine; the design's 2 s is what an idle one takes


@pytest.fixture(scope="module")
def browser():
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    with App(f"sqlite:///{tmp_path_factory.mktemp('live')}/shop.db") as app:
        flows = declare(app)
        with serving(app) as board:
            yield app, flows, board


@pytest.fixture
def visitor(shop, browser):
    made = Visitor(browser, shop[2])
    yield made
    assert (made.refused(), made.elsewhere, made.errors) == ([], [], [])
    made.close()


WORKER = """
import sys
from tests.acceptance.dashboards import declare
from twiceproof import App
with App(sys.argv[1]) as app:
    declare(app)
    app.worker().run(until_idle=True)
"""


def work_elsewhere(app):
    """Carry out what is due in another process."""
    done = subprocess.run(
        [sys.executable, "-c", WORKER, app.settings.store],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def row_of(page, key):
    return page.locator(f"tr:has-text('{key}')")


def test_a_row_changes_its_state_in_place(shop, visitor):
    app, flows, _ = shop
    flows["sync_order"].start({"id": "30001"})
    flows["sync_order"].start({"id": "30002", "wait": True})
    page = visitor.go("/runs")
    before = page.locator("tbody tr").evaluate_all("rows => rows.map(row => row.dataset.run)")
    work_elsewhere(app)
    row_of(page, "30001").locator(".state[data-state=done]").wait_for(timeout=LATER)
    row_of(page, "30002").locator(".state[data-state=waiting]").wait_for(timeout=LATER)
    assert row_of(page, "30001").locator(".word").inner_text() == "done"
    assert page.locator("tbody tr").evaluate_all("rows => rows.map(row => row.dataset.run)") == before


def test_new_runs_are_announced_and_come_on_demand(shop, visitor):
    _, flows, _ = shop
    page = visitor.go("/runs")
    page.wait_for_timeout(1_500)  # past the second in which the page itself was made
    flows["sync_order"].start({"id": "30003"})
    page.locator("[data-news]:has-text('1 newer')").wait_for(timeout=25_000)
    assert row_of(page, "30003").count() == 0
    page.click("[data-news] a")
    row_of(page, "30003").wait_for()


def test_a_half_filled_form_survives_a_change_of_its_run(shop, visitor):
    app, flows, _ = shop
    flows["sync_order"].start({"id": "30004", "away": True})
    app.worker().run(until_idle=True)
    run = app.runs(key="shop:order:30004")[0].run
    page = visitor.go(f"/runs/{run}")
    page.fill("input[name=note]", "half a thought")
    app.settle_run(run, "abandon", by="bob")
    page.locator("[data-news]:has-text('has changed')").wait_for(timeout=LATER)
    assert page.input_value("input[name=note]") == "half a thought"


def test_a_page_of_a_run_without_a_touched_form_follows_it(shop, visitor):
    app, flows, _ = shop
    flows["sync_order"].start({"id": "30005"})
    page = visitor.go(f"/runs/{app.runs(key='shop:order:30005')[0].run}")
    app.worker().run(until_idle=True)
    page.locator("h1 .state[data-state=done]").wait_for(timeout=LATER)


def test_eight_tabs_hold_one_stream_and_the_next_takes_over(shop, browser):
    _, _, board = shop
    feed = board.application.dashboard.feed
    visitor = Visitor(browser, board)
    tabs = [visitor.page, *(visitor.context.new_page() for _ in range(7))]
    for tab in tabs:
        tab.goto("/runs")
    tabs[-1].locator("[data-count=review]:visible").wait_for(timeout=LATER) if board.app.review() else None
    settled(lambda: feed.streams == 1)
    tabs[0].close()
    settled(lambda: feed.streams == 1)
    for tab in tabs[1:]:
        tab.close()
    settled(lambda: feed.streams == 0)
    visitor.close()


def settled(holds):
    """Wait until it holds, and see that it still does a moment later: a leader's stream is closed and opened."""
    pause = threading.Event()
    for _ in range(100):
        if holds() and not pause.wait(0.5) and holds():
            return
        pause.wait(0.1)
    raise AssertionError("it does not hold")


def test_a_tab_left_open_hardly_looks_when_nothing_happens(shop, visitor):
    feed = shop[2].application.dashboard.feed
    page = visitor.go("/runs")
    settled(lambda: feed.streams == 1)
    before = feed.looks
    page.wait_for_timeout(5_000)
    assert feed.looks - before <= 1


def test_a_tab_whose_session_has_ended_says_so_and_leads_to_the_login(tmp_path, browser):
    with App(f"sqlite:///{tmp_path}/shop.db") as app:
        flows = declare(app)
        with serving(app) as board:
            visitor = Visitor(browser, board)
            visitor.login(board.token("ann", Scope.READ))
            page = visitor.go("/runs?flow=echo")
            elsewhere = visitor.context.new_page()
            elsewhere.goto("/acts")
            follow(elsewhere, "button:text-is('Log out')")
            elsewhere.close()
            flows["echo"].start("new", 1)
            page.wait_for_selector("[data-news]:has-text('Your session has ended')", timeout=4 * LATER)
            follow(page, "[data-news] a")
            assert page.url.endswith("/login?next=%2Fruns%3Fflow%3Decho")
            visitor.close()


def test_a_server_that_goes_away_is_told_of_and_caught_up_with(shop, browser):
    app, flows, _ = shop
    with serving(app) as first:
        visitor = Visitor(browser, first)
        page = visitor.go("/runs")
        settled(lambda: first.application.dashboard.feed.streams == 1)
        port = first.port
    page.locator("[data-news]:has-text('The server is away')").wait_for(timeout=LATER)
    flows["sync_order"].start({"id": "30009"})
    with serving(app, port=port):
        page.locator("[data-news]:has-text('newer')").wait_for(timeout=25_000)
        visitor.close()


SHOP = """
from tests.acceptance.dashboards import declare
from twiceproof import App
app = App("sqlite:///shop.db")
sync_order = declare(app)["sync_order"]
"""


def served(folder, port=0):
    """A server in a process of its own, which can be killed. It has no worker: that would take the test's runs."""
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{folder}"}
    options = ["--port", str(port), "--no-worker", "--json"]
    command = [sys.executable, "-m", "twiceproof", "serve", "shop:app", *options]
    process = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return process, json.loads(process.stdout.readline())["url"]


def test_a_form_survives_a_server_that_is_killed_and_acts_once(tmp_path, browser):
    (tmp_path / "shop.py").write_text(SHOP)
    process, url = served(tmp_path)
    try:
        with App(f"sqlite:///{tmp_path}/shop.db") as app:
            declare(app)["sync_order"].start({"id": "1", "away": True})
            app.worker().run(until_idle=True)
            run = app.review()[0].run
            visitor = Visitor(browser, SimpleNamespace(url=url))
            page = visitor.go(f"/runs/{run}")
            page.locator(".choice").last.locator("input").check()
            page.fill("input[name=note]", "half a thought")
            process.kill()
            process.wait()
            process.stdout.close()
            page.locator("[data-news]:has-text('The server is away')").wait_for(timeout=25_000)
            assert page.input_value("input[name=note]") == "half a thought"
            process, again = served(tmp_path, int(url.rpartition(":")[2]))
            assert again == url
            page.locator("[data-news]").wait_for(state="hidden", timeout=25_000)
            page.click("button:text-is('Settle')")
            page.wait_for_url("**said=settled")
            settled = app.history(run).settled
            assert (settled["verdict"], settled["note"]) == ("abandon", "half a thought")
            assert [act.verb for act in app.acts(key=app.history(run).run.key)] == ["settle"]
            assert (visitor.refused(), visitor.elsewhere, visitor.errors) == ([], [], [])
            visitor.close()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
