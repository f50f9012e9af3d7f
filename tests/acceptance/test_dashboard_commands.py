"""Every act of the dashboard shows a command; pasted into a shell, it does what the button does.

The commands of a decision about a run, and of retry and cancel, are tried with the acts themselves.
"""

import json
import os
import re
import subprocess
from html import unescape
from itertools import count
from urllib.parse import quote

import pytest

from tests.acceptance import test_dashboard_acts
from tests.acceptance.dashboards import (
    DIGITS,
    MailAway,
    Post,
    Visitor,
    chromium,
    declare,
    different,
    open_section,
    parked,
    serving,
)
from tests.acceptance.test_dashboard_acts import shell, started
from tests.acceptance.test_dashboard_pictures import EXAMPLE, release
from tests.unit.declared.releasing import make_live
from twiceproof import App, NeedsReview
from twiceproof.declared.promotion import Releaser, pause, rollback
from twiceproof.declared.views import look_at_releases
from twiceproof.operations import block
from twiceproof.outbox.message import PARKED
from twiceproof.reconcile.findings import OPEN
from twiceproof.server.tokens import Scope, list_tokens
from twiceproof.server.ui.pages import PAGES

NUMBERS = count(40_000)


@pytest.fixture(scope="module")
def board(tmp_path_factory):
    with App(f"sqlite:///{tmp_path_factory.mktemp('commands')}/shop.db") as app:
        app.shop_flows = declare(app)
        with serving(app) as made:
            yield made


@pytest.fixture(scope="module")
def page(board):
    with chromium() as browser:
        visitor = Visitor(browser, board, live=False)
        board.root = board.token("root", Scope.ADMIN)
        visitor.login(board.root)
        yield visitor.page
        assert (visitor.refused(), visitor.elsewhere, visitor.errors) == ([], [], [])
        visitor.close()


def command_on(page, label="", nth=0):
    """The command that is shown, beside these words."""
    return page.locator(f".command:has-text('{label}') code").nth(nth).inner_text()


def done(board, command):
    found = shell(board.app, command)
    assert found.returncode == 0, found.stderr
    return found.stdout


@pytest.mark.parametrize(("verb", "word"), [("resend", "Resend"), ("drop", "Drop")])
def test_a_message_is_resent_and_dropped(board, page, verb, word):
    (one, record_of_one), (other, record_of_other) = parked(board.app), parked(board.app)
    page.goto(f"/messages/{one}?to=main")
    if verb == "drop":
        open_section(page, "Drop…")
    command = command_on(page, f" {verb} ")
    page.click(f"button.main:text-is('{word}')")
    page.wait_for_url("**said=*")
    done(board, command.replace(one, other))
    assert record_of_one().state == record_of_other().state != PARKED


@pytest.mark.parametrize(("word", "choice"), [("Acknowledge", 0), ("Suppress", 1), ("Resolve", 2)])
def test_a_finding_is_decided_about(board, page, word, choice):
    (one, record_of_one), (other, record_of_other) = different(board.app), different(board.app)
    page.goto(f"/findings/{one}")
    command = command_on(page, word)
    page.locator("input[name=decision]").nth(choice).check()
    page.click("button.main")
    page.wait_for_url("**said=found")
    done(board, command.replace(one, other))
    assert record_of_one().state == record_of_other().state != OPEN


@pytest.mark.parametrize("word", ["Approve", "Reject"])
def test_an_approval_is_decided(board, page, word):
    app, pair = board.app, []
    for _ in range(2):
        number = str(next(NUMBERS))
        app.shop_flows["sync_order"].start({"id": number, "total": 5_000})
        app.worker().run(until_idle=True)
        pair.append(next(one for one in app.approvals() if one.key.endswith(number)))
    page.goto(f"/approvals/{pair[0].id}")
    command = command_on(page, word)
    page.check(f"label:has-text('{word}') input")
    page.click("button.main")
    page.wait_for_url("**said=decided")
    done(board, command.replace(pair[0].id, pair[1].id))
    app.worker().run(until_idle=True)
    states = [app.history(one.run).run.state for one in pair]
    assert states[0] == states[1] == ("done" if word == "Approve" else "failed")


def test_a_run_is_forked(board, page):
    app, number = board.app, str(next(NUMBERS))
    app.shop_flows["sync_order"].start({"id": number})
    app.worker().run(until_idle=True)
    run = app.runs(key=f"shop:order:{number}")[0].run
    page.goto(f"/runs/{run}/fork")
    command = command_on(page)
    page.fill("input[name=key]", f"{number}:b")
    page.click("button.main")
    page.wait_for_url("**said=forked")
    done(board, f"{command} --yes")
    assert app.runs(key=f"{number}:b")[0].state == app.runs(key=f"shop:order:{number}:again")[0].state == "queued"
    app.worker().run(until_idle=True)


def test_a_claim_is_released_and_it_is_on_record(board, page):
    app, keys = board.app, [f"ship:{next(NUMBERS)}" for _ in range(2)]
    for key in keys:
        app.shop_flows["ship"](key.removeprefix("ship:"))
    page.goto(f"/keys/ship/{quote(keys[0], safe='')}")
    open_section(page, "Release…")
    command = command_on(page, " release ")
    page.fill("input[name=typed]", keys[0])
    page.click("button.main")
    page.wait_for_url("**said=released")
    done(board, command.replace(keys[0], keys[1]))
    for key in keys:
        page.goto(f"/keys/ship/{quote(key, safe='')}")
        assert page.inner_text("h1") == "No such key"
        assert [act.verb for act in app.acts(key=key)] == ["release"]


def test_a_token_is_revoked(board, page):
    names = [f"n8n-{next(NUMBERS)}" for _ in range(2)]
    for name in names:
        board.token(name, Scope.READ)
    page.goto("/tokens")
    page.click(f"a:text-is('{names[0]}')")
    open_section(page, "Revoke…")
    command = command_on(page, " revoke ")
    token = command.split()[-1]
    page.fill("input[name=typed]", names[0])
    page.click("button.main")
    page.wait_for_url("**said=revoked")
    done(board, command.replace(token, names[1]))
    page.goto("/tokens")
    for name in names:
        assert "revoked" in page.locator(f"tr:has-text('{name}')").inner_text()


def test_runs_are_settled_alike_by_one_command_each(board, page):
    app, runs = board.app, []
    for _ in range(2):
        number = str(next(NUMBERS))
        app.shop_flows["sync_order"].start({"id": number, "away": True})
        app.worker().run(until_idle=True)
        runs.append(app.runs(key=f"shop:order:{number}")[0].run)
    page.goto("/review")
    for run in runs:
        page.check(f"input[value={run}]")
    page.click("button:has-text('Leave')")
    page.wait_for_url("**/review/alike*")
    for command in page.locator(".command code").all_inner_texts():
        done(board, command)
    assert [app.history(run).settled["verdict"] for run in runs] == ["abandon", "abandon"]


@pytest.mark.parametrize(
    ("verb", "order", "state"), [("retry", {"bad": True}, "queued"), ("cancel", {"wait": True}, "queued")]
)
def test_the_ticked_runs_are_retried_and_cancelled_and_no_others(board, page, verb, order, state):
    app, runs = board.app, [started(board.app, **order) for _ in range(4)]
    ticked, changed, other = runs[:3], runs[1], runs[3]
    before = app.history(other).record_version
    page.goto("/runs")
    for run in ticked:
        page.check(f"input[value={run}]")
    page.click(f"button:text-is('{verb.capitalize()}…')")
    page.wait_for_url(f"**/several/{verb}?*")
    assert page.locator("table th[scope=row]").count() == 3
    commands = page.locator(".command code").all_inner_texts()
    done(board, next(one for one in commands if app.history(changed).run.key in one))
    app.worker().run(until_idle=True)  # it failed once more: it may be retried, but it is not what was shown
    kept = app.history(changed).record_version
    page.click("button.main")
    page.wait_for_url("**/told*")
    assert "2 runs were" in page.inner_text("main") and "1 left as it is" in page.inner_text("main")
    assert [app.history(run).run.state for run in ticked] == [state, "failed", state]
    assert app.history(changed).record_version == kept
    assert app.history(other).record_version == before
    shown = next(one for one in commands if app.history(ticked[0]).run.key in one)
    done(board, shown.replace(app.history(ticked[0]).run.key, app.history(other).run.key))
    assert app.history(other).run.state == state
    app.worker().run(until_idle=True)


def test_a_replay_does_what_was_planned_and_the_letter_is_gone(board, page):
    """Its webhook began to understand what it could not read."""
    event = f"evt_{next(NUMBERS)}"
    assert board.deliver(json.dumps({"late": event, "id": event})) == 200
    page.goto("/webhooks/shop")
    page.click("a.key:has-text('ltr_')")
    page.wait_for_url("**/letters/ltr_*")
    letter = page.url.rpartition("/")[2]
    assert f"hooks replay MODULE:APP {letter}" in page.content() or page.locator("button.main").count() == 0
    source = board.app.hooks["shop"].source
    source.read = lambda envelope: Post.read(source, renamed(envelope))
    try:
        page.reload()
        plan = page.locator("section:has-text('What a replay would do') tbody tr").inner_text()
        assert event in plan and "would start a run" in plan
        assert board.app.runs(key=f"shop:order:{event}") == []
        assert command_on(page, "replay") == f"twiceproof hooks replay MODULE:APP {letter}"
        page.click("button.main")
        page.wait_for_url("**said=replayed")
        assert board.app.runs(key=f"shop:order:{event}")[0].state == "queued"
        page.goto("/webhooks/shop")
        assert letter not in page.inner_text("main")
        assert [act.verb for act in board.app.acts(by="root") if act.verb == "replay"] == ["replay"]
    finally:
        del source.read


def test_a_claim_in_review_is_settled(board, page):
    app, keys = board.app, [f"post:{next(NUMBERS)}" for _ in range(2)]

    @app.once(key="post:{order}", repeat="never")
    def post(order):
        raise MailAway("no answer in 30 s")

    for key in keys:
        with pytest.raises(NeedsReview):
            post(key.removeprefix("post:"))
    page.goto(f"/keys/post/{quote(keys[0], safe='')}")
    command = command_on(page, " settle ")
    page.check("input[value=happened]")
    page.fill("textarea[name=result]", DIGITS)
    page.click("button.main:text-is('Settle')")
    page.wait_for_url("**said=settled")
    done(board, command.replace(keys[0], keys[1]).replace("JSON", f"'{DIGITS}'"))
    for key in keys:
        page.goto(f"/keys/post/{quote(key, safe='')}")
        assert page.get_attribute("h1 .state", "data-state") == "done"
        assert str(2**200) in page.inner_text("#result ~ .value pre")


def test_a_flow_is_rolled_back_paused_and_resumed(board, page, tmp_path):
    store = board.app.store
    release(board.app, tmp_path / "flows")
    text = EXAMPLE.read_text("utf-8").replace("- manual", "- manual: Welcome a customer")
    make_live(store, text.replace("good to have you here.", "it is good to have you here."))

    def live():
        found = block(look_at_releases(store, "default", "welcome", most=10)).live
        return found.release, found.paused

    for word, before, after in [
        ("Roll back", ("r2", False), ("r1", False)),
        ("Pause", ("r1", False), ("r1", True)),
        ("Resume", ("r1", True), ("r1", False)),
    ]:
        assert live() == before
        page.goto("/flows/welcome")
        act = page.locator(f"section.card:has(h2:text-is('{word}'))")
        command = act.locator(".command code").inner_text()
        if word == "Roll back":
            act.locator("input[value=r1]").check()
        act.locator("button.main").click()
        page.wait_for_url("**said=*")
        assert live() == after
        put_back(store, word)
        assert live() == before
        done(board, command)
        assert live() == after


def put_back(store, word):
    """Undo what was done by the button, so that the command has something to do."""
    root = Releaser("root", True)
    if word == "Roll back":
        block(rollback(store, "default", "welcome", root, to="r2"))
    else:
        block(pause(store, "default", "welcome", root, paused=word == "Resume"))


def test_a_run_is_started_by_a_command_too(board, page):
    page.goto("/flows/echo")
    command = command_on(page, "/v1/runs/echo")
    page.fill("textarea[name='input.name'], input[name='input.name']", '"by-button"')
    page.fill("textarea[name='input.value'], input[name='input.value']", "1.10")
    page.locator("section.card:has(h2:text-is('Start a run')) button.main").click()
    page.wait_for_url("**said=started")
    given = '{"name":"by-command","value":1.10}'
    typed = command.replace("JSON", f"'{given}'")
    environment = {**os.environ, "TOKEN": board.root}
    found = subprocess.run(typed, shell=True, env=environment, capture_output=True, text=True, timeout=30)
    assert found.returncode == 0, found.stderr
    first, second = (board.app.runs(key=key)[0] for key in ("by-button", "by-command"))
    assert (first.flow, first.state) == (second.flow, second.state) == ("echo", "queued")


def test_the_command_of_an_empty_page_works(tmp_path, monkeypatch):
    """That of the first page, `twiceproof demo --keep --open`, is tried with the demo."""
    monkeypatch.setenv("STRIPE_SECRET", "whsec_c2VjcmV0")
    with App(f"sqlite:///{tmp_path}/empty.db") as app, serving(app) as made:
        texts = {path: made.call("GET", path)[2] for path in ("/webhooks", "/tokens", "/workers")}
        commands = {path: unescape(EMPTY_COMMAND.search(text)[1]) for path, text in texts.items()}

        @app.flow(key="{event[id]}")
        def charged(event): ...

        app.webhook("stripe", secret="whsec_c2VjcmV0", start=charged)
        tried = shell(app, commands["/webhooks"])
        assert tried.returncode == 0, tried.stdout
        tried = shell(app, commands["/tokens"].replace("NAME", "ann"))
        assert tried.returncode == 0, tried.stderr
        assert "ann" in [one.name for one in block(list_tokens(app.store))]
        assert commands["/workers"] == "twiceproof work MODULE:APP"


EMPTY_COMMAND = re.compile(r'<div class="empty">.*?<code data-copied>(.*?)</code>', re.DOTALL)


# Which test tries the command beside each act. A login has none.
TRIED = {
    "/runs/{name}/settle": "test_each_command_of_a_decision_does_what_its_choice_does",
    "/runs/{name}/retry": "test_each_command_of_an_act_does_what_its_button_does",
    "/runs/{name}/cancel": "test_each_command_of_an_act_does_what_its_button_does",
    "/runs/{name}/fork": "test_a_run_is_forked",
    "/several/{verb}": "test_the_ticked_runs_are_retried_and_cancelled_and_no_others",
    "/review/alike": "test_runs_are_settled_alike_by_one_command_each",
    "/approvals/{id}": "test_an_approval_is_decided",
    "/keys/{operation}/{key}/settle": "test_a_claim_in_review_is_settled",
    "/keys/{operation}/{key}/release": "test_a_claim_is_released_and_it_is_on_record",
    "/letters/{id}/replay": "test_a_replay_does_what_was_planned_and_the_letter_is_gone",
    "/messages/{key}/resend": "test_a_message_is_resent_and_dropped",
    "/messages/{key}/drop": "test_a_message_is_resent_and_dropped",
    "/findings/{id}": "test_a_finding_is_decided_about",
    "/flows/{name}/start": "test_a_run_is_started_by_a_command_too",
    "/flows/{name}/rollback": "test_a_flow_is_rolled_back_paused_and_resumed",
    "/flows/{name}/pause": "test_a_flow_is_rolled_back_paused_and_resumed",
    "/flows/{name}/resume": "test_a_flow_is_rolled_back_paused_and_resumed",
    "/tokens/{id}/revoke": "test_a_token_is_revoked",
}


def test_the_command_of_every_act_is_tried():
    acts = {page.path for page in PAGES if page.method == "POST" and page.scope is not Scope.OPEN}
    assert acts == set(TRIED)
    known = {**globals(), **vars(test_dashboard_acts)}
    assert all(callable(known.get(name)) for name in TRIED.values())


def renamed(envelope):
    from msgspec import structs

    return structs.replace(envelope, body=envelope.body.replace(b'"late"', b'"event"'))
