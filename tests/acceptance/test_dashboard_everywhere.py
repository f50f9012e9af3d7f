"""What holds for every page there is: a person of any sight, screen, browser and patience can read it."""

import contextlib
import json
import threading
from dataclasses import dataclass

import pytest

from tests.acceptance.dashboards import MailAway, Visitor, chromium, declare, different, fill, parked, serving
from tests.acceptance.test_dashboard_pictures import release
from twiceproof import App, NeedsReview
from twiceproof.inbound.dead_letters import list_letters
from twiceproof.operations import block
from twiceproof.server.tokens import Scope
from twiceproof.server.ui.pages import PAGES

DOWNLOADS = {"/runs/{name}/value", "/letters/{id}/body"}  # attachments and the event stream are not pages
STREAM = {"/live"}


@pytest.fixture(scope="module")
def board(tmp_path_factory):
    """A ledger that has something for every page."""
    folder = tmp_path_factory.mktemp("everywhere")
    with App(f"sqlite:///{folder}/shop.db") as app:
        flows = declare(app)
        release(app, folder / "flows")
        post = more_declared(app)
        with serving(app) as made:
            fill(app, flows)
            for _ in range(3):
                made.deliver(json.dumps({"event": "evt_7f3c", "id": "10600"}))
            made.deliver('{"no":"event"}')
            made.message, made.finding = parked(app)[0], different(app)[0]
            with pytest.raises(NeedsReview):
                post("10488")
            app.tally.flush()
            made.root = made.token("root", Scope.ADMIN)
            worker = app.worker(flows=["nightly"])
            thread = threading.Thread(target=worker.run, daemon=True)
            thread.start()
            yield made
            worker.drain()
            thread.join(30)


def more_declared(app):
    @app.every("1h")
    @app.flow(key="{tick}")
    def nightly(tick): ...

    @app.once(key="post:{order}", repeat="never")
    def post(order):
        raise MailAway("no answer in 30 s")

    return post


def addresses(board):
    """At least one address of each page, by its route."""
    runs = {run.key.rpartition(":")[2]: f"/runs/{run.run}" for run in board.app.runs(limit=100)}
    letter = block(list_letters(board.app.store, "default")).letters[0].id
    return {
        "/": ["/", "/?said=login"],
        "/runs": ["/runs", "/runs?state=failed&flow=sync_order", "/runs?flow=nothing"],
        "/runs/{name}": [*runs.values(), "/runs/run_unknown"],
        "/runs/{name}/retry": [runs["10496"] + "/retry"],
        "/runs/{name}/cancel": [runs["10495"] + "/cancel"],
        "/runs/{name}/fork": [runs["10488"] + "/fork"],
        "/several/{verb}": [f"/several/retry?run={runs['10496'].rpartition('/')[2]}"],
        "/several/{verb}/told": [f"/several/retry/told?done=1&left={runs['10502'].rpartition('/')[2]}"],
        "/review": ["/review"],
        "/review/alike": [f"/review/alike?run={runs['10493'].rpartition('/')[2]}&verdict=happened"],
        "/review/settled": [f"/review/settled?done=1&left={runs['10502'].rpartition('/')[2]}"],
        "/approvals": ["/approvals"],
        "/approvals/{id}": [f"/approvals/{board.app.approvals()[0].id}"],
        "/find": ["/find?q=nothing", "/find?q=shop:order:104", "/find"],
        "/keys/{operation}/{key}": [
            "/keys/sync_order/shop%3Aorder%3A10600",
            "/keys/ship/ship%3A10488",
            "/keys/post/post%3A10488",
        ],
        "/claims": ["/claims"],
        "/duplicates": ["/duplicates"],
        "/webhooks": ["/webhooks"],
        "/webhooks/{name}": ["/webhooks/shop"],
        "/letters/{id}": [f"/letters/{letter}"],
        "/messages": ["/messages"],
        "/messages/{key}": [f"/messages/{board.message}?to=main"],
        "/findings": ["/findings"],
        "/findings/{id}": [f"/findings/{board.finding}"],
        "/flows": ["/flows"],
        "/flows/{name}": ["/flows/welcome", "/flows/sync_order"],
        "/flows/{name}/{release}": ["/flows/welcome/r1"],
        "/workers": ["/workers"],
        "/schedules": ["/schedules"],
        "/health": ["/health"],
        "/tokens": ["/tokens"],
        "/tokens/{id}": ["/tokens/root"],
        "/acts": ["/acts"],
        "/login": ["/login"],
    }


def every_page(board):
    return [path for paths in addresses(board).values() for path in paths]


@pytest.fixture(scope="module")
def browser():
    with chromium() as found:
        yield found


@contextlib.contextmanager
def visiting(browser, board, **options):
    """Opens each page, logged in, with these options of the browser."""
    visitor = Visitor(browser, board, live=False, **options)
    visitor.login(board.root)
    yield ((path, visitor.go(path)) for path in every_page(board)), visitor
    visitor.close()


WIDTHS = (320, 640)  # 320 is what is left of 1280 at 400 %
BORDERS = "[...document.querySelectorAll('.state, .chip, .tag')].map((one) => getComputedStyle(one).borderTopStyle)"
MOVING = """[...document.querySelectorAll("*")].filter((one) => {
  const look = getComputedStyle(one);
  return look.animationName !== "none" || !["0s", ""].includes(look.transitionDuration);
}).length"""
MADE_HTML = "(() => { try { document.body.innerHTML = 'x'; return true } catch { return false } })()"


@dataclass
class Look:
    """What one page was like when it was opened, made narrow, and shown in other colours and without motion."""

    refused: list[str]
    width_needed: dict[int, int]
    borders: set[str]
    moving: int
    made_html: bool

    @classmethod
    def at(cls, page):
        refused, widths = page.evaluate("window.refused"), {}
        before = page.viewport_size
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 640})
            widths[width] = page.evaluate("document.documentElement.scrollWidth")
        page.set_viewport_size(before)
        page.emulate_media(forced_colors="active", reduced_motion="reduce")
        borders, moving = page.evaluate(f"[{BORDERS}, {MOVING}]")
        page.emulate_media(forced_colors="none", reduced_motion="no-preference")
        return cls(refused, widths, set(borders), moving, page.evaluate(MADE_HTML))


@pytest.fixture(scope="module")
def looks(browser, board):
    """Of each page, by its address; and what the browser asked for elsewhere, and its errors."""
    with visiting(browser, board) as (pages, visitor):
        return {path: Look.at(page) for path, page in pages}, visitor.elsewhere, visitor.errors


def test_no_page_is_left_out(board):
    routes = {page.path for page in PAGES if page.method == "GET"} - DOWNLOADS - STREAM
    assert routes == set(addresses(board))


def test_pages_read_without_scripts(browser, board):
    with visiting(browser, board, java_script_enabled=False) as (pages, _):
        for path, page in pages:
            assert page.locator("h1").count() == 1, path
            assert all(text.endswith("UTC") for text in page.locator("time").all_inner_texts()), path


def test_no_page_breaks_its_own_policy_or_asks_elsewhere(looks):
    pages, elsewhere, errors = looks
    assert {path: look.refused for path, look in pages.items() if look.refused} == {}
    assert [path for path, look in pages.items() if look.made_html] == []
    assert (elsewhere, errors) == ([], [])


WCAG = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
SCHEMES = {"light": WCAG, "dark": ["color-contrast"]}


def test_axe_finds_nothing_at_level_aa(browser, board):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    found = {}
    with visiting(browser, board, bypass_csp=True) as (pages, _):  # axe itself is a script from elsewhere
        for path, page in pages:
            for scheme, rules in SCHEMES.items():
                page.emulate_media(color_scheme=scheme)
                options = {"runOnly": rules, "resultTypes": ["violations"]}
                violations = axe.run(page, options=options).response["violations"]
                if violations:
                    targets = [(one["id"], [node["target"] for node in one["nodes"][:2]]) for one in violations]
                    found[path, scheme] = targets
    assert found == {}


@pytest.mark.parametrize("width", WIDTHS)
def test_narrow_pages_do_not_scroll_sideways(looks, width):
    needed = {path: look.width_needed[width] for path, look in looks[0].items()}
    assert {path: found for path, found in needed.items() if found > width} == {}


HERE = """(() => {
  const { left, right } = document.querySelector(".places [aria-current]").getBoundingClientRect();
  return 0 <= left && right <= innerWidth;
})()"""


@pytest.mark.parametrize("path", ["/", "/webhooks", "/acts", "/tokens"])
def test_on_a_narrow_page_the_present_place_is_in_view(browser, board, path):
    visitor = Visitor(browser, board, live=False, viewport={"width": WIDTHS[0], "height": 640})
    visitor.login(board.root)
    assert visitor.go(path).evaluate(HERE)
    visitor.close()


def test_forced_colours_and_reduced_motion_are_honoured(looks):
    for path, look in looks[0].items():
        assert look.borders <= {"solid"}, path
        assert look.moving == 0, path


def test_every_page_is_light(board):
    import gzip

    cookie = board.call("POST", "/login", {"token": board.root})[1]["set-cookie"].partition(";")[0]
    heavy = {}
    for path in every_page(board):
        text = board.call("GET", path, None, {"cookie": cookie})[2]
        size = len(gzip.compress(text.encode()))
        if size > 60_000:
            heavy[path] = size
    assert heavy == {}
