"""Every act of the dashboard by keyboard alone, and where the focus is at every stop on the way."""

import json
from itertools import count
from urllib.parse import quote

import pytest

from tests.acceptance.dashboards import Visitor, chromium, declare, serving
from tests.acceptance.test_dashboard_acts import started
from tests.acceptance.test_dashboard_commands import renamed
from twiceproof import App
from twiceproof.inbound.source import Source
from twiceproof.server.tokens import Scope

NUMBERS = count(60_000)


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    with App(f"sqlite:///{tmp_path_factory.mktemp('keyboard')}/shop.db") as made:
        made.shop_flows = declare(made)
        yield made


@pytest.fixture(scope="module")
def board(app):
    with serving(app) as made:
        yield made


@pytest.fixture(scope="module")
def page(board):
    """A page that nobody clicks on."""
    with chromium() as browser:
        visitor = Visitor(browser, board, live=False)
        visitor.login(board.token("ann", Scope.ADMIN))
        yield visitor.page
        assert (visitor.refused(), visitor.elsewhere, visitor.errors) == ([], [], [])
        visitor.close()


def tab_to(page, selector, most=120):
    """Press Tab until the focus is on one of these."""
    for _ in range(most):
        page.keyboard.press("Tab")
        if page.evaluate("wanted => document.activeElement.matches(wanted)", selector):
            return
    raise AssertionError(f"no way to {selector} by Tab")


def press(page, selector, key="Enter"):
    tab_to(page, selector)
    page.keyboard.press(key)


def submit(page):
    tab_to(page, "main button.main")
    with page.expect_navigation():
        page.keyboard.press("Enter")


@pytest.mark.parametrize(
    ("downs", "verdict"), [(0, "happened"), (1, "did-not-happen"), (2, "undo"), (3, "undo"), (4, "abandon")]
)
def test_a_run_is_settled(app, page, downs, verdict):
    run = started(app, away=True)
    page.goto(f"/runs/{run}")
    press(page, "input[name=choice]", "Space")
    for _ in range(downs):
        page.keyboard.press("ArrowDown")
    tab_to(page, "input[name=note]")
    page.keyboard.type("looked into the log")
    submit(page)
    settled = app.history(run).settled
    assert (settled["verdict"], settled["by"], settled["note"]) == (verdict, "ann", "looked into the log")


def test_runs_are_settled_alike(app, page):
    runs = [started(app, away=True) for _ in range(2)]
    page.goto("/review")
    for run in sorted(runs, key=lambda run: page.locator(f"input[value={run}]").bounding_box()["y"]):
        press(page, f"input[value={run}]", "Space")
    press(page, "button[value=abandon]")
    page.wait_for_url("**/review/alike*")
    submit(page)
    assert [app.history(run).settled["verdict"] for run in runs] == ["abandon"] * 2


def test_rows_are_ticked_by_letters(app, page):
    runs = [started(app, away=True) for _ in range(2)]
    page.goto("/review")
    page.keyboard.press("j")
    page.keyboard.press("x")
    page.keyboard.press("j")
    page.keyboard.press("x")
    assert page.locator("input[name=run]:checked").count() == 2
    for run in runs:
        app.settle_run(run, "abandon", by="ann")


@pytest.mark.parametrize(("downs", "approved"), [(0, True), (1, False)])
def test_an_approval_is_decided(app, page, downs, approved):
    started(app, total=5_000)
    approval = app.approvals()[-1]
    page.goto(f"/approvals/{approval.id}")
    press(page, "input[name=choice]", "Space")
    for _ in range(downs):
        page.keyboard.press("ArrowDown")
    submit(page)
    assert ("Approved" if approved else "Rejected") in page.inner_text("main")
    app.worker().run(until_idle=True)


@pytest.mark.parametrize(("verb", "order"), [("retry", {"bad": True}), ("cancel", {"wait": True}), ("fork", {})])
def test_a_run_is_retried_cancelled_and_forked(app, page, verb, order):
    run = started(app, **order)
    page.goto(f"/runs/{run}")
    press(page, f"main a.button[href$='/{verb}']")
    page.wait_for_url(f"**/{verb}")
    submit(page)
    assert {"retry": "retried", "cancel": "cancelled", "fork": "forked"}[verb] in page.url
    app.worker().run(until_idle=True)


def test_a_dead_letter_is_replayed(app, board, page, monkeypatch):
    event = f"evt_{next(NUMBERS)}"
    board.deliver(json.dumps({"late": event, "id": event}))
    source: Source = app.hooks["shop"].source
    read = source.read
    monkeypatch.setattr(source, "read", lambda envelope: read(renamed(envelope)))
    page.goto("/webhooks")
    press(page, "a.key[href*='/letters/']")
    page.wait_for_url("**/letters/*")
    submit(page)
    assert app.runs(key=f"shop:order:{event}")[0].state == "queued"


def test_a_claim_is_released(app, page):
    key = f"ship:{next(NUMBERS)}"
    app.shop_flows["ship"](key.removeprefix("ship:"))
    page.goto(f"/keys/ship/{quote(key, safe='')}")
    press(page, "summary")
    page.wait_for_url("**open=*")  # opening a section is a navigation too
    tab_to(page, "input[name=typed]")
    page.keyboard.type(key)
    submit(page)
    assert [act.verb for act in app.acts(key=key)] == ["release"]


FOCUSED = """() => {
  const one = document.activeElement, box = one.getBoundingClientRect();
  window.stop = one;
  const x = Math.max(0, box.x + scrollX - 5), y = Math.max(0, box.y + scrollY - 5);  // an outline is drawn outside
  return one === document.body ? null : { x, y, width: box.width + 10, height: box.height + 10 };
}"""


def stops_that_do_not_show(page):
    """Go through a page by Tab, and compare each stop with itself without the focus."""
    silent, seen = [], 0
    page.keyboard.press("Tab")
    while (box := page.evaluate(FOCUSED)) is not None:
        with_focus = page.screenshot(clip=box, full_page=True)
        page.evaluate("window.stop.blur()")
        if page.screenshot(clip=box, full_page=True) == with_focus:
            silent.append(page.evaluate("window.stop.outerHTML"))
        page.evaluate("window.stop.focus({ focusVisible: true })")
        page.keyboard.press("Tab")
        seen += 1
    return silent, seen


def test_the_focus_is_seen_at_every_stop(app, page):
    run = started(app, away=True)
    for path in (f"/runs/{run}", "/review"):
        page.goto(path)
        silent, seen = stops_that_do_not_show(page)
        assert (silent, seen > 20) == ([], True), path
