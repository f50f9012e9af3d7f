"""What is left of a page when there is much of something, or little permission: long runs, many tabs, readers."""

import threading
import time

import pytest
from msgspec import Raw

from tests.acceptance.dashboards import DIGITS, Visitor, chromium, declare, fill, follow, serving
from tests.acceptance.test_dashboard_acts import choose, say, started
from tests.acceptance.test_dashboard_live import settled
from twiceproof import App
from twiceproof.claims.claim import body_of
from twiceproof.claims.queries import Evidence, evidence_write
from twiceproof.flows.engine.ledger import STEP_KIND, EntryNote
from twiceproof.records import Address, Insert
from twiceproof.server.tokens import Scope

ITEMS = 10_000


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    with App(f"sqlite:///{tmp_path_factory.mktemp('many')}/shop.db") as made:
        made.shop_flows = declare(made)
        fill(made, made.shop_flows)
        yield made


@pytest.fixture(scope="module")
def board(app):
    with serving(app) as made:
        yield made


@pytest.fixture(scope="module")
def browser():
    with chromium() as found:
        yield found


def with_items(app, count):
    """A run in review that has done so many items beside its steps."""
    run = started(app, away=True)
    space = f"default/sync_order/{app.history(run).run.key}"
    note = body_of(EntryNote(repeat="safe", began_at=time.time(), result=Raw(b'"done"'), order=3))
    writes = [[Insert(Address(space, STEP_KIND, f"item[{nth}]"), note, "done")] for nth in range(count)]
    app.store.write_each(writes).block()
    return run


def test_a_run_of_ten_thousand_items_opens_as_one_of_ten(app, board, browser):
    """As by a link in a mail, with nothing in the browser's cache: one with a route has none."""
    visitor = Visitor(browser, board, live=False)
    visitor.context.route("**/nowhere", lambda route: route.abort())
    small, large = with_items(app, 10), with_items(app, ITEMS)

    def opened(run):
        began = time.perf_counter()
        visitor.go(f"/runs/{run}")
        return time.perf_counter() - began

    fastest = {small: 60.0, large: 60.0}  # of many, as when nothing else was going on
    for nth in range(60):
        for run in fastest:
            fastest[run] = min(fastest[run], opened(run))
        if nth > 5 and fastest[large] < 2 * fastest[small]:
            break
    page = visitor.go(f"/runs/{large}")
    assert fastest[large] < 2 * fastest[small]
    assert page.locator(".steps tbody tr .word").first.inner_text() == "unknown"
    assert page.locator(".steps tbody tr").count() == 100
    assert "Everything that is not done is shown" in page.inner_text("main")
    follow(page, "text=Older")
    assert page.locator(".steps tbody tr").count() == 100
    visitor.close()


def test_a_decision_can_adopt_what_a_late_holder_reported(app, board, browser):
    run = started(app, away=True)
    key = app.history(run).run.key
    late = Evidence("worker-2", 7, Raw(b'{"mail":"late"}'), step="send_confirmation")
    app.store.write(evidence_write(f"default/sync_order/{key}", late)).block()
    visitor = Visitor(browser, board, live=False)
    page = visitor.go(f"/runs/{run}")
    assert "worker-2" in page.inner_text("section:has(#evidence)")
    choose(page, "happened", evidence="7:send_confirmation")
    page.fill("input[name=by]", "ann")
    say(page)
    app.worker().run(until_idle=True)
    step = next(step for step in app.history(run).steps if step.name == "send_confirmation")
    assert (app.history(run).run.state, bytes(step.result)) == ("done", b'{"mail":"late"}')
    visitor.close()


def test_text_that_is_copied_is_the_text_that_is_shown(app, board, browser):
    sent = {"content-type": "application/json"}
    board.call("POST", "/v1/runs/echo", None, sent, f'{{"name":"copied","value":{DIGITS}}}')
    app.worker().run(until_idle=True)
    visitor = Visitor(browser, board, permissions=["clipboard-read", "clipboard-write"])
    page = visitor.go(f"/runs/{app.runs(key='copied')[0].run}")
    page.click("#input ~ .value [data-copy]")
    page.locator("#input ~ .value [data-copy]:text-is('Copied')").wait_for()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied == page.locator("#input ~ .value pre").text_content()
    assert "9223372036854775807" in copied and str(2**200) in copied
    visitor.close()


def test_a_hidden_tab_holds_no_stream_and_a_ninth_one_opens_at_once(app, board, browser):
    feed = board.application.dashboard.feed
    visitor = Visitor(browser, board)
    tabs = [visitor.page, *(visitor.context.new_page() for _ in range(7))]
    for tab in tabs:
        tab.goto("/runs")
    settled(lambda: feed.streams == 1)
    ninth = visitor.context.new_page()
    ninth.goto("/runs", timeout=5_000)  # six streams of one origin would keep it waiting for ever
    settled(lambda: feed.streams == 1)
    for tab in [*tabs, ninth]:
        tab.evaluate(HIDE)
    settled(lambda: feed.streams == 0)
    looks = feed.looks
    threading.Event().wait(1.5)
    assert feed.looks == looks
    visitor.close()


HIDE = """() => {
  Object.defineProperty(document, "hidden", { value: true });
  document.dispatchEvent(new Event("visibilitychange"));
}"""


def test_a_run_under_way_says_so_and_can_be_stopped(app, board, browser):
    """The other states of a run are tried with reading."""
    began, go = threading.Event(), threading.Event()

    @app.flow(key="slow:{number}")
    def slow(number):
        began.set()
        go.wait(30)

    thread = threading.Thread(target=slow, args=(1,))
    thread.start()
    began.wait(10)
    visitor = Visitor(browser, board, live=False)
    run = app.runs(key="slow:1")[0].run
    page = visitor.go(f"/runs/{run}")
    assert (page.get_attribute("h1 .state", "data-state"), page.inner_text("h1 .word")) == ("held", "running")
    assert app.history(run).next[0].why.rstrip(":") in page.inner_text(".now")
    assert page.locator("a.button:text-is('Cancel…')").count() == 1
    go.set()
    thread.join(30)
    visitor.close()


ACTS = "main form[method=post], main button.main, main a.button:not([href*='/approvals/'])"
READ_ONLY = ["/", "/runs", "/review", "/approvals", "/claims", "/webhooks", "/messages", "/findings", "/flows", "/acts"]


def test_a_reader_sees_pages_and_no_button(app, board, browser):
    visitor = Visitor(browser, board, live=False)
    visitor.login(board.token("reader", Scope.READ))
    runs = {run.state: f"/runs/{run.run}" for run in app.runs(limit=100)}
    approvals = [f"/approvals/{one.id}" for one in app.approvals()]
    for path in [*READ_ONLY, *runs.values(), *approvals[:1], "/keys/ship/ship%3A10488"]:
        page = visitor.go(path)
        assert page.locator(ACTS).count() == 0, path
    visitor.close()
