"""Acting, in a real browser: settle, approve, retry, cancel, fork, replay, release; once each, and on record."""

import json
import os
import shlex
import subprocess
import sys
from itertools import count

import pytest
from msgspec import structs

from tests.acceptance.dashboards import DIGITS, Visitor, chromium, declare, follow, open_section, serving
from twiceproof import App
from twiceproof.claims.claim import body_of
from twiceproof.flows.waits.records import request_address, request_of
from twiceproof.records import Replace
from twiceproof.server.tokens import Scope

NUMBERS = count(20_000)


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    with App(f"sqlite:///{tmp_path_factory.mktemp('acting')}/shop.db") as made:
        made.shop_flows = declare(made)
        yield made


@pytest.fixture(scope="module")
def board(app):
    with serving(app) as made:
        yield made


@pytest.fixture(scope="module")
def tokens(board):
    every = (Scope.READ, Scope.RUN, Scope.APPROVE)
    return {
        "ann": board.token("ann", *every),
        "bob": board.token("bob", *every),
        "root": board.token("root", Scope.ADMIN),
        "shop": board.token("shop", *every),
    }


@pytest.fixture(scope="module")
def browser():
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def people(browser, board, tokens):
    made = {}
    for name in ("ann", "bob", "root", "shop"):
        made[name] = Visitor(browser, board, live=False)
        made[name].login(tokens[name])
    yield made
    for visitor in made.values():
        assert (visitor.refused(), visitor.elsewhere, visitor.errors) == ([], [], [])
        visitor.close()


def started(app, **order):
    """A run that went as far as it goes without a person."""
    number = str(next(NUMBERS))
    app.shop_flows["sync_order"].start({"id": number, **order})
    app.worker().run(until_idle=True)
    return next(run.run for run in app.runs(key=f"shop:order:{number}"))


def choose(page, verdict, **more):
    for radio in page.locator("input[name=choice]").all():
        value = json.loads(radio.get_attribute("value"))
        if value == {"verdict": verdict, **more}:
            radio.check()
            return
    raise AssertionError(f"no choice {verdict} {more}")


def say(page):
    follow(page, "button:text-is('Settle')")


@pytest.mark.parametrize(
    ("verdict", "more", "state"),
    [
        ("happened", {}, "done"),
        ("did-not-happen", {}, "review"),
        ("undo", {"did": False}, "failed"),
        ("abandon", {}, "failed"),
    ],
)
def test_a_person_settles_a_run_and_it_goes_on(app, people, verdict, more, state):
    run, ann = started(app, away=True), people["ann"]
    page = ann.go(f"/runs/{run}")
    choose(page, verdict, **more)
    if verdict == "happened":
        page.fill("textarea >> visible=true", DIGITS)
    page.fill("input[name=note]", "looked into the log")
    say(page)
    assert "Your decision is on record" in page.inner_text("main")
    settled = app.history(run).settled
    assert (settled["verdict"], settled["by"], settled["note"]) == (verdict, "ann", "looked into the log")
    app.worker().run(until_idle=True)
    assert app.history(run).run.state == state


def test_a_result_that_is_typed_is_kept_digit_by_digit(app, people):
    run, ann = started(app, away=True), people["ann"]
    page = ann.go(f"/runs/{run}")
    choose(page, "happened")
    page.fill("textarea >> visible=true", DIGITS)
    say(page)
    step = next(step for step in app.history(run).steps if step.name == "send_confirmation")
    assert bytes(step.result).decode() == DIGITS
    page.click("text=send_confirmation >> xpath=ancestor::tr >> summary")
    shown = page.locator("tr:has-text('send_confirmation') pre").inner_text()
    for number in ("9223372036854775807", "1.10", "0.1", str(2**200), "🦊"):
        assert number in shown


def test_nothing_is_chosen_beforehand(app, people):
    page = people["ann"].go(f"/runs/{started(app, away=True)}")
    assert page.locator("input:checked").count() == 0
    page.click("button:text-is('Settle')")
    assert page.evaluate("document.querySelector('form[data-form]').matches(':invalid')")


def test_two_people_settle_one_run_and_the_second_sees_the_first_ones_word(app, people):
    run = started(app, away=True)
    pages = [people[name].go(f"/runs/{run}") for name in ("ann", "bob")]
    for page, verdict in zip(pages, ("did-not-happen", "abandon"), strict=True):
        choose(page, verdict)
        page.last_status = follow(page, "button:text-is('Settle')").status
    assert [page.last_status for page in pages] == [200, 409]
    told = pages[1].inner_text("[role=alert]")
    assert "did-not-happen by ann" in told and "in review" in told and "queued" in told
    assert app.history(run).settled["by"] == "ann"


def test_a_form_that_is_sent_twice_is_one_act_with_one_answer(app, board, people):
    run, ann = started(app, bad=True), people["ann"]
    page = ann.go(f"/runs/{run}/retry")
    fields = {name: page.input_value(f"input[name={name}] >> nth=-1") for name in ("form", "version", "before")}
    cookie = "; ".join(f"{one['name']}={one['value']}" for one in ann.context.cookies())
    answers = [board.call("POST", f"/runs/{run}/retry", fields, {"cookie": cookie})[:2] for _ in range(3)]
    assert [status for status, _ in answers] == [303, 303, 303]
    assert len({headers["location"] for _, headers in answers}) == 1
    assert [act.verb for act in app.acts(key=app.history(run).run.key)] == ["retry"]
    version = app.history(run).record_version
    page.dblclick("button.main")
    page.wait_for_url("**said=retried")
    assert app.history(run).record_version == version


def test_a_reload_of_an_act_is_no_second_act(app, people):
    run, ann = started(app, bad=True), people["ann"]
    page = ann.go(f"/runs/{run}/retry")
    page.click("button.main")
    page.wait_for_url("**said=retried")
    version = app.history(run).record_version
    page.reload()
    assert app.history(run).record_version == version
    page.go_back()
    follow(page, "button.main")
    assert app.history(run).record_version == version


def test_the_ticked_runs_and_no_others_are_settled(app, people):
    runs = [started(app, away=True) for _ in range(4)]
    ticked, changed = runs[:3], runs[1]
    page = people["ann"].go("/review")
    for run in ticked:
        page.check(f"input[value={run}]")
    page.click("button:has-text('It did not happen')")
    page.wait_for_url("**/review/alike*")
    listed = page.locator("table th[scope=row]").all_inner_texts()
    assert len(listed) == 3
    app.settle_run(changed, "abandon", by="bob")
    came_since = started(app, away=True)
    page.click("button.main")
    page.wait_for_url("**/review/settled*")
    text = page.inner_text("main")
    assert "2 runs were settled" in text and "bob: abandon" in text
    states = {run: app.history(run).run.state for run in (*runs, came_since)}
    assert list(states.values()) == ["queued", "failed", "queued", "review", "review"]
    app.worker().run(until_idle=True)


@pytest.mark.parametrize(("word", "approved"), [("Approve", True), ("Reject", False)])
def test_a_person_decides_about_what_was_shown(app, people, word, approved):
    started(app, total=5_000)
    approval = app.approvals()[-1]
    page = people["ann"].go(f"/approvals/{approval.id}")
    assert approval.digest in page.inner_text("main") and "5000" in page.inner_text("main")
    page.check(f"label:has-text('{word}') input")
    page.fill("input[name=note]", "as agreed")
    follow(page, "text=Decide >> nth=-1")
    assert f"{word}" in page.inner_text("main") and "as agreed" in page.inner_text("main")
    assert "by ann" in page.inner_text("main")
    assert approval.id not in [one.id for one in app.approvals()]
    people["ann"].go("/approvals")
    told = page.locator(f"tr:has(a[href='/approvals/{approval.id}'])").inner_text()
    assert ("approved" if approved else "rejected") in told and "ann" in told and "as agreed" in told
    app.worker().run(until_idle=True)


def test_nobody_approves_what_they_asked_for(app, people):
    started(app, total=5_000)
    page = people["shop"].go(f"/approvals/{app.approvals()[-1].id}")
    page.check("label:has-text('Approve') input")
    answer = follow(page, "button.main")
    assert answer.status == 403 and "cannot approve it" in page.inner_text("main")
    for one in app.approvals():
        app.decide(one.id, False, by="ann")


def test_what_has_changed_since_it_was_shown_is_not_approved(app, people):
    started(app, total=5_000)
    approval = app.approvals()[-1]
    page = people["ann"].go(f"/approvals/{approval.id}")
    record = app.store.read(request_address(approval.id)).block().record
    another = structs.replace(request_of(record), digest="of another request")
    app.store.write(Replace(record.at, body_of(another), record.state, version=record.version)).block()
    page.check("label:has-text('Approve') input")
    answer = follow(page, "button.main")
    assert answer.status == 422
    assert approval.id in [one.id for one in app.approvals()]
    app.decide(approval.id, False, by="ann")


def test_retry_cancel_and_fork_do_what_they_say(app, people):
    ann = people["ann"]
    failed = started(app, bad=True)
    page = ann.go(f"/runs/{failed}")
    follow(page, "text=Retry…")
    page.click("button.main")
    page.wait_for_url("**said=retried")
    assert app.history(failed).run.state == "queued"
    waiting = started(app, wait=True)
    follow(ann.go(f"/runs/{waiting}"), "text=Cancel…")
    page.click("button.main")
    page.wait_for_url("**said=cancelled")
    app.worker().run(until_idle=True)
    assert app.history(waiting).run.state == "failed"
    done = started(app)
    follow(ann.go(f"/runs/{done}"), "text=Fork…")
    assert "Done again: make_invoice, send_confirmation" in page.inner_text("main")
    page.fill("input[name=key]", f"forked:{done}")
    page.click("button.main")
    page.wait_for_url("**said=forked")
    assert app.runs(key=f"forked:{done}")[0].state == "queued"


def test_a_letter_that_cannot_be_read_offers_no_replay(board, people):
    assert board.deliver('{"event":"evt_letter","id":') == 200
    page = people["ann"].go("/webhooks")
    page.click("a.key:has-text('ltr_')")
    page.wait_for_url("**/letters/ltr_*")
    assert "no event in the body" in page.inner_text(".reason")
    assert "still cannot be read" in page.inner_text("main") and page.locator("button.main").count() == 0


def test_a_replay_says_beforehand_what_it_would_do_and_does_it(app, board, people):
    number = str(next(NUMBERS))
    assert board.deliver(json.dumps({"event": f"evt_{number}", "id": number})) == 200
    assert board.deliver(json.dumps({"event": f"evt_{number}", "id": number, "total": 7})) in (200, 409, 422)
    page = people["ann"].go("/webhooks")
    page.click(f"tr:has-text('evt_{number}') a.key")
    page.wait_for_url("**/letters/ltr_*")
    before = [run.run for run in app.runs(limit=1_000)]
    page.reload()
    assert "would be a mismatch" in page.inner_text("main")
    assert [run.run for run in app.runs(limit=1_000)] == before
    answer = follow(page, "button.main")
    assert answer.status == 409 and "cannot be processed" in page.inner_text("main")


def test_a_claim_is_released_by_typing_its_key(app, people):
    key = f"ship:{next(NUMBERS)}"
    app.shop_flows["ship"](key.removeprefix("ship:"))
    root = people["root"]
    page = root.go(f"/keys/ship/{key.replace(':', '%3A')}")
    open_section(page, "Release…")
    page.fill("input[name=typed]", "ship")
    answer = follow(page, "button.main")
    assert answer.status == 400 and "not typed as it is" in page.inner_text("main")
    page = root.go(f"/keys/ship/{key.replace(':', '%3A')}")
    open_section(page, "Release…")
    page.fill("input[name=typed]", key)
    page.click("button.main")
    page.wait_for_url("**/claims?said=released")
    assert root.board.call("GET", f"/keys/ship/{key}")[0] == 303  # without a session
    assert root.go(f"/keys/ship/{key.replace(':', '%3A')}").inner_text("h1") == "No such key"


def shell(app, command):
    """What a person pastes: `twiceproof` is this package's."""
    words = shlex.split(command)
    assert words[0] == "twiceproof"
    environment = {**os.environ, "USER": "pasted"}
    return subprocess.run(
        [sys.executable, "-m", "twiceproof", *words[1:]], env=environment, capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize("nth", range(5))
def test_each_command_of_a_decision_does_what_its_choice_does(app, people, nth):
    pair = [started(app, away=True) for _ in range(2)]
    page = people["ann"].go(f"/runs/{pair[0]}")
    choice = page.locator(".choice").nth(nth)
    choice.locator("input[type=radio]").check()
    command = choice.locator("code").inner_text().replace(app.history(pair[0]).run.key, app.history(pair[1]).run.key)
    say(page)
    done = shell(app, command.replace("JSON", "null"))
    assert done.returncode == 0, done.stderr
    first, second = (app.history(run) for run in pair)
    assert (first.run.state, first.settled["verdict"]) == (second.run.state, second.settled["verdict"])
    assert [(step.name, step.state) for step in first.steps] == [(step.name, step.state) for step in second.steps]


@pytest.mark.parametrize(("verb", "order"), [("retry", {"bad": True}), ("cancel", {"wait": True})])
def test_each_command_of_an_act_does_what_its_button_does(app, people, verb, order):
    pair = [started(app, **order) for _ in range(2)]
    page = people["ann"].go(f"/runs/{pair[0]}/{verb}")
    command = page.inner_text("main .command code")
    follow(page, "button.main")
    done = shell(app, command.replace(app.history(pair[0]).run.key, app.history(pair[1]).run.key))
    assert done.returncode == 0, done.stderr
    assert app.history(pair[0]).run.state == app.history(pair[1]).run.state == "queued"
    app.worker().run(until_idle=True)


def test_a_run_is_settled_by_keyboard_alone(app, people):
    run = started(app, away=True)
    page = people["bob"].go(f"/runs/{run}")
    for _ in range(60):
        page.keyboard.press("Tab")
        name = page.evaluate("document.activeElement.name")
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none", name
        if name == "choice":
            page.keyboard.press("ArrowUp")  # from the first to the last: leave it
            break
    for _ in range(20):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.type") == "submit":
            break
    with page.expect_navigation():
        page.keyboard.press("Enter")
    assert app.history(run).settled["by"] == "bob" and app.history(run).settled["verdict"] == "abandon"


def test_without_scripts_a_person_settles_and_approves(app, browser, board, tokens):
    visitor = Visitor(browser, board, java_script_enabled=False)
    visitor.login(tokens["ann"])
    run = started(app, away=True)
    page = visitor.go(f"/runs/{run}")
    page.locator(".choice").last.locator("input").check()
    follow(page, "button:text-is('Settle')")
    assert app.history(run).settled["verdict"] == "abandon"
    started(app, total=9_000)
    approval = app.approvals()[-1]
    visitor.go(f"/approvals/{approval.id}")
    page.check("label:has-text('Reject') input")
    follow(page, "button.main")
    assert app.approvals() == [] or approval.id not in [one.id for one in app.approvals()]
    visitor.close()


def test_who_did_what_is_on_the_page_of_acts_and_in_the_story_of_the_key(app, people):
    run, ann = started(app, bad=True), people["ann"]
    page = ann.go(f"/runs/{run}/retry")
    page.click("button.main")
    page.wait_for_url("**said=retried")
    key = app.history(run).run.key
    page = ann.go("/acts")
    row = page.locator(f"tr:has-text('{key}')")
    assert row.count() == 1 and "ann" in row.inner_text() and "retry" in row.inner_text()
    row.locator("a.open").click()
    page.wait_for_url("**/keys/**")
    assert any("ann" in line and "retry" in line for line in page.locator(".history li.said").all_inner_texts())
