"""Finding and reading, in a real browser."""

import json
import re

import pytest

from tests.acceptance.dashboards import DIGITS, Visitor, chromium, declare, fill, follow, serving
from twiceproof import App
from twiceproof.flows.engine.context import giving

LARGE = 5 * 1024 * 1024
LISTS = {"review": "/review", "failed": "/runs?state=failed", "approvals": "/approvals", "letters": "/webhooks"}
STATES = {"review": "10493", "failed": "10496", "done": "10488", "queued": "10499", "waiting": "10494"}


@pytest.fixture(scope="module")
def board(tmp_path_factory):
    with App(f"sqlite:///{tmp_path_factory.mktemp('reading')}/shop.db") as app:
        flows = declare(app)
        fill(app, flows)
        with serving(app) as made:
            for event in ("evt_7f3c", "evt_7f3c", "evt_7f3c"):
                made.deliver(json.dumps({"event": event, "id": "10600"}))
            made.deliver('{"no":"event"}')
            made.call(
                "POST",
                "/v1/runs/echo",
                None,
                {"content-type": "application/json"},
                f'{{"name":"digits","value":{DIGITS}}}',
            )
            flows["echo"].start("large", "x" * LARGE)
            with giving("corr-7"):
                flows["echo"].start("correlated", 1)
            app.worker(flows=["echo"]).run(until_idle=True)
            app.tally.flush()
            yield made


@pytest.fixture(scope="module")
def browser():
    with chromium() as found:
        yield found


@pytest.fixture
def visitor(browser, board):
    made = Visitor(browser, board)
    yield made
    assert (made.refused(), made.elsewhere, made.errors) == ([], [], [])
    made.close()


def run_of(board, order):
    return next(run.run for run in board.app.runs() if run.key == f"shop:order:{order}")


@pytest.mark.parametrize("name", LISTS)
def test_each_number_of_attention_is_that_of_the_list_behind_it(visitor, name):
    page = visitor.go("/")
    line = page.locator(f"[data-line={name}]")
    count = int(line.locator(".big").inner_text())
    assert line.locator("time").count() == 1
    line.locator("a").click()
    page.wait_for_url(lambda url: url.endswith(LISTS[name]))
    tables = page.locator("table.rows" if name == "review" else "table.rows >> nth=-1")
    assert tables.locator("tbody tr").count() == count


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("shop:order:10493", "/keys/sync_order/shop%3Aorder%3A10493"),
        ("sync_order/shop:order:10493", "/runs/run_"),
        ("inv_10493", "/runs/run_"),
        ("10493", "/keys/sync_order/shop%3Aorder%3A10493"),  # the number of the order is all that a person knows
        ("corr-7", "/runs/run_"),
        ("evt_7f3c", "/keys/hook.shop/evt_7f3c"),
        ("ship:10488", "/keys/ship/ship%3A10488"),
    ],
)
def test_the_box_finds_what_has_this_name(visitor, asked, found):
    page = visitor.go("/")
    page.keyboard.press("/")
    page.keyboard.type(asked)
    page.keyboard.press("Enter")
    page.wait_for_url(lambda url: "/find" not in url and url.rstrip("/") != visitor.board.url)
    assert found in page.url


def test_the_box_finds_a_run_by_its_id(visitor):
    run = run_of(visitor.board, "10493")
    assert visitor.go(f"/find?q={run}").url.endswith(f"/runs/{run}")


def test_several_hits_make_a_list(visitor):
    page = visitor.go("/find?q=shop:order:104")
    assert page.locator("tbody a.open").count() >= 5
    page.click("text=shop:order:10493")
    page.wait_for_url("**/keys/sync_order/shop%3Aorder%3A10493")


def test_what_is_not_found_says_what_was_looked_through(visitor):
    text = visitor.go("/find?q=nothing").inner_text("main")
    assert "Nothing has this name" in text and "an id of another system" in text


def test_the_key_page_of_an_order_that_came_thrice_tells_of_one_run(visitor):
    page = visitor.go("/keys/sync_order/shop%3Aorder%3A10600")
    assert "blocked 2" in page.inner_text(".facts")
    came = page.locator(".history li.came").all_inner_texts()
    assert [("new" in line, "repeat" in line) for line in came] == [(True, False), (False, True), (False, True)]
    assert all("shop" in line for line in came)
    times = page.locator(".history time").evaluate_all("all => all.map(one => one.dateTime)")
    assert times == sorted(times)


def test_the_key_page_of_a_claim_without_steps_has_its_state_and_result(visitor):
    page = visitor.go("/keys/ship/ship%3A10488")
    assert page.inner_text("h1 .word") == "done"
    assert "a claim without steps" in page.inner_text(".facts") and "last held by" in page.inner_text(".facts")
    assert json.loads(page.inner_text("#result ~ .value pre")) == {"parcel": "parcel-10488"}


@pytest.mark.parametrize("state", STATES)
def test_a_run_shows_the_word_the_reason_and_the_next_moves_that_the_command_shows(visitor, state):
    run = run_of(visitor.board, STATES[state])
    whole = visitor.board.app.history(run)
    page = visitor.go(f"/runs/{run}")
    assert page.get_attribute("h1 .state", "data-state") == whole.run.state == state
    assert page.inner_text("h1 .sign").strip() and page.inner_text("h1 .word").strip()
    if whole.run.reason:
        assert page.inner_text(".reason") == whole.run.reason
    text = page.text_content(".now")
    for move in whole.next:
        chosen = move.words[:2] == ("review", "settle")
        assert (move.statement if chosen else move.why.rstrip(":")) in text
        assert all(word in text for word in move.words)
    assert page.locator(".choice").count() == sum(move.words[:2] == ("review", "settle") for move in whole.next)


def test_unknown_steps_come_first(visitor):
    page = visitor.go(f"/runs/{run_of(visitor.board, '10493')}")
    assert page.locator(".steps tbody tr .word").all_inner_texts()[:2] == ["unknown", "done"]


def test_numbers_are_shown_digit_by_digit(visitor):
    run = next(one.run for one in visitor.board.app.runs() if one.key == "digits")
    page = visitor.go(f"/runs/{run}")
    whole = visitor.board.app.history(run)
    for name, stored in (("result", whole.result), ("input", whole.input)):
        shown = page.inner_text(f"#{name} ~ .value pre")
        assert re.sub(r"\s", "", shown) == re.sub(r"\s", "", bytes(stored).decode())
        assert "9223372036854775807" in shown and "🦊" in shown and ": 0.1," in shown


def test_a_large_value_is_cut_says_so_and_is_downloaded_whole(visitor):
    run = next(one.run for one in visitor.board.app.runs() if one.key == "large")
    page = visitor.go(f"/runs/{run}")
    assert "only its beginning is shown" in page.inner_text("#result ~ .value .about")
    assert len(page.inner_text("#result ~ .value pre")) <= 16 * 1024
    with page.expect_download() as started:
        page.click("#result ~ .value a[download]")
    assert len(started.value.path().read_bytes()) == LARGE + 2
    status, headers, _ = visitor.board.call("GET", f"/runs/{run}/value?of=result")
    assert (status, headers["content-disposition"]) == (200, 'attachment; filename="value.json"')
    assert headers["x-content-type-options"] == "nosniff"


def test_times_switch_everywhere_at_once_and_stay_so(visitor):
    page = visitor.go("/runs")
    assert all(text.endswith(" UTC") for text in page.locator("time").all_inner_texts())
    page.select_option("[data-zone]", "ago")
    assert all(re.fullmatch(r"\d+ \w+ ago|in \d+ \w+", text) for text in page.locator("time").all_inner_texts())
    page.reload()
    assert page.locator("time").first.inner_text().endswith("ago")
    page.select_option("[data-zone]", "local")
    assert not any(re.search("ago|UTC", text) for text in page.locator("time").all_inner_texts())


def test_filters_are_in_the_address_and_back_undoes_one(visitor, browser, board):
    page = visitor.go("/runs")
    page.select_option("select[name=state]", "failed")
    follow(page, "text=Filter")
    shown = page.locator("tbody a.open").all_inner_texts()
    assert shown == ["shop:order:10496"]
    other = Visitor(browser, board)
    assert other.go(page.url).locator("tbody a.open").all_inner_texts() == shown
    other.close()
    page.go_back()
    assert page.locator("tbody a.open").count() > 1


NAMED = "count => new URLSearchParams(location.search).get('open')?.split(',').length === count"


def test_open_sections_are_in_the_address_and_back_closes_the_last(visitor, browser, board):
    page = visitor.go(f"/runs/{run_of(board, '10488')}")
    sections = page.locator("details[data-section]")
    assert sections.count() == 2
    for nth in range(2):
        sections.nth(nth).locator("summary").click()
        page.wait_for_function("count => document.querySelectorAll('details[open]').length === count", arg=nth + 1)
        page.wait_for_function(
            "count => new URLSearchParams(location.search).get('open')?.split(',').length === count", arg=nth + 1
        )
    for options in ({}, {"java_script_enabled": False}):
        other = Visitor(browser, board, **options)
        assert other.go(page.url).locator("details[open] pre").count() == 2
        other.close()
    page.go_back()
    page.wait_for_function("document.querySelectorAll('details[open]').length === 1")
    assert sections.first.get_attribute("open") is not None


def test_a_filter_that_hides_everything_names_itself_and_goes_by_one_click(visitor):
    page = visitor.go("/runs?flow=nothing")
    assert page.locator(".chip").all_inner_texts() == ["flow: nothing ×\nremove"]
    assert "Nothing matches these filters" in page.inner_text("main")
    follow(page, ".chip")
    assert page.locator("tbody tr").count() > 1


def close_keys(page):
    """Until the page has the focus again, which Chromium gives back some milliseconds after the key."""
    page.keyboard.press("Escape")
    page.wait_for_function("document.activeElement === document.body")


def test_the_keys_are_listed_and_are_off_in_text_fields(visitor):
    page = visitor.go("/runs")
    page.keyboard.press("?")
    assert page.locator("dialog[open] h2").inner_text() == "Keyboard"
    close_keys(page)
    page.keyboard.press("j")
    page.keyboard.press("j")
    second = page.locator("tbody tr a.open").nth(1)
    assert second.evaluate("one => one === document.activeElement")
    page.focus("#find")
    page.keyboard.type("gr?")
    assert page.input_value("#find") == "gr?" and page.locator("dialog[open]").count() == 0
    page.locator("h1").click()
    page.keyboard.press("g")
    page.keyboard.press("v")
    page.wait_for_url("**/review")


def test_the_keys_can_be_switched_off(visitor):
    page = visitor.go("/runs")
    page.keyboard.press("?")
    page.check("[data-keys-off]")
    close_keys(page)
    page.keyboard.press("g")
    page.keyboard.press("v")
    assert page.url.endswith("/runs")


EMPTY = {
    "/": "No runs yet",
    "/runs": "No runs yet",
    "/review": "Nothing is unknown",
    "/approvals": "No pending approvals",
    "/duplicates": "Nothing came twice",
    "/claims": "No claim is on record",
    "/webhooks": "No webhook is declared",
    "/messages": "Nothing waits to be sent",
    "/findings": "Nothing differs",
    "/schedules": "Nothing is scheduled",
    "/flows": "No flow is declared",
    "/workers": "No worker was heard of lately",
    "/tokens": "No token exists",
    "/acts": "No changes by hand",
}


def test_each_empty_state_shows_its_next_move():
    with App("memory://") as app, serving(app) as made:
        for path, said in EMPTY.items():
            status, _, text = made.call("GET", path)
            assert (status, said in text) == (200, True), path
            empty = re.search(r'<div class="empty">(.*?)</div>', text, re.DOTALL)[1]
            assert len(re.sub(r"<[^>]+>", "", empty).split()) > 8, path


def test_without_scripts_lists_are_filtered_and_paged(browser, board, monkeypatch):
    monkeypatch.setattr("twiceproof.server.ui.pages.runs.ROWS", 3)
    made = Visitor(browser, board, java_script_enabled=False)
    page = made.go("/runs")
    rows, first, met = "tbody a.open", page.locator("tbody a.open").all_inner_texts(), []
    while True:
        met += page.locator(rows).all_inner_texts()
        if not page.locator("a[rel=next]").count():
            break
        follow(page, "a[rel=next]")
    assert sorted(met) == sorted(run.key for run in board.app.runs(limit=100)) and len(met) > 6
    while page.locator("a[rel=prev]").count():
        follow(page, "a[rel=prev]")
    assert page.locator(rows).all_inner_texts() == first
    page.select_option("select[name=state]", "failed")
    follow(page, ".filters button")
    assert page.locator(rows).all_inner_texts() == ["shop:order:10496"]
    follow(page, ".chip")
    assert page.locator(rows).count() == 3
    made.close()
