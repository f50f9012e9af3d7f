"""What somebody meets who uses flows for the first time: errors fit what they did, and say what to do next."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from twiceproof import App, Misuse, Retry, Waiting
from twiceproof.cli.main import cli
from twiceproof.prove.clocks import ManualClock

APP = """
from twiceproof import App, Retry
app = App("{store}")

@app.step(not_done=ValueError, retry=Retry(never_on=ValueError))
def charge(order):
    if order == "unknown":
        raise RuntimeError("what?")
    if order == "bug":
        raise ValueError("no\\n2026-03-01 INFO luck")
    raise TimeoutError("no answer")

@app.flow(key="order:{{order}}", stable=("order",))
def buy(order):
    return charge(order)

@app.every("1s", name="tick")
def tick(): ...
"""


STOPPED = """
@app.step(repeat="safe")
def stop():
    app.attach(flow="stopped", key="x").cancel(by="ann")

@app.flow(key="x")
def stopped():
    stop()
    charge("never")

stopped.start()
"""


@pytest.fixture
def workshop(tmp_path, monkeypatch):
    """A module of an app, and a process that serves it until nothing is due."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TWICEPROOF_STORE", raising=False)

    def work(more="", store="sqlite:///shop.db", *words):
        (tmp_path / "workshop.py").write_text(APP.format(store=store) + more)
        command = [sys.executable, "-m", "twiceproof", "work", "workshop:app", "--until-idle", *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=60).stderr

    return work


# -- the worker's log ------------------------------------------------------------------------------


def test_a_failure_is_told_with_its_step_and_a_traceback_that_is_set_in(workshop):
    lines = workshop("buy.start('bug')\n").splitlines()
    (failed,) = [nth for nth, line in enumerate(lines) if "failed in charge with ValueError: no 2026" in line]
    assert lines[failed + 1] == "    Traceback (most recent call last):"
    assert any("workshop.py" in line for line in lines[failed:])
    assert not any(line.startswith("2026-03-01 INFO") for line in lines)


def test_an_error_that_does_not_tell_whether_it_was_done_is_told_with_its_traceback(workshop):
    lines = workshop("buy.start('unknown')\n").splitlines()
    (told,) = [nth for nth, line in enumerate(lines) if "waits for a person: charge: its error does not tell" in line]
    assert "(RuntimeError: what?); twiceproof --store sqlite:///shop.db review show run_" in lines[told]
    assert lines[told + 1] == "    Traceback (most recent call last):"


def test_with_json_the_traceback_is_in_the_line(workshop):
    lines = [json.loads(line) for line in workshop("buy.start('bug')\n", "sqlite:///shop.db", "--json").splitlines()]
    (failed,) = [line for line in lines if line["level"] == "error"]
    assert failed["error"].startswith("Traceback")


def test_what_waits_for_a_person_is_told_with_what_to_type(workshop):
    text = workshop("handle = buy.start('timeout')\n")
    assert "waits for a person: charge: no answer came" in text
    assert "; twiceproof --store sqlite:///shop.db review show run_" in text


def test_a_cancelled_run_is_no_error(workshop):
    """Its worker stops it before its first step, for somebody has said so meanwhile."""
    text = workshop(STOPPED)
    assert "WARNING" in text and "cancelled by ann; nothing was undone: stop has no undo" in text
    assert "ERROR" not in text


def test_a_worker_on_memory_says_that_nobody_else_can_reach_it(workshop):
    assert "memory:// is this process's alone" in workshop(store="memory://")
    assert "memory://" not in workshop()


@pytest.mark.filterwarnings("error")
def test_the_key_of_a_schedule_is_no_cause_for_a_warning():
    clock = ManualClock()
    with App("memory://", clock=clock) as app:
        ticks = []

        @app.every("5s")
        def refresh():
            ticks.append(1)

        app.worker().run(until_idle=True)
        clock.advance(6)
        app.worker().run(until_idle=True)
        assert ticks == [1]


# -- words that are refused ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        ("work", "x:app", "--store", "s"),
        ("--store", "sqlite:///s", "work", "x:app"),
        ("work", "x:app", "--tenant", "t"),
    ],
)
def test_a_worker_is_told_no_store_wherever_it_stands_on_the_line(words):
    result = CliRunner().invoke(cli, words)
    assert result.exit_code == 2
    assert "An app names its own store and tenant" in result.stderr


def test_a_file_is_told_from_its_module(workshop):
    result = CliRunner().invoke(cli, ["work", "workshop.py:app"])
    assert (result.exit_code, "not its file: workshop:app" in result.stderr) == (2, True)


@pytest.mark.parametrize("retry", [3, 0, "3"])
def test_a_bare_number_is_no_retry_policy(ledger, retry):
    app = ledger.app
    for declare in (app.step, app.transaction):
        with pytest.raises(Misuse, match=r"write retry=Retry\(attempts=3\)"):
            declare(retry=retry)


def test_no_policy_is_the_usual_one():
    with App("memory://") as app:
        assert app.step(retry=None)(_nothing).step.plan.retry == Retry()


def _nothing(): ...


def test_errors_about_runs_name_whole_commands(run, shop):
    shop.fill()
    assert "twiceproof --store" in run("runs", "show", "buy/nope", code=1).stderr
    assert "as FLOW/KEY, or by its key" in run("runs", "show", "order:nope", code=1).stderr
    assert "--result" in run("review", "settle", "buy/order:timeout", "--happened", code=2).stderr
    assert "--undo --did-not-happen" in run("review", "settle", "buy/order:timeout", "--undo", code=2).stderr
    told = run("review", "settle", "buy/order:timeout", "--happened", "--evidence", "1:x", code=2).stderr
    assert "twiceproof --store" in told and " review show run_" in told
    told = run("review", "settle", "buy/order:done", "--abandon", code=2).stderr
    assert "twiceproof --store" in told and " runs show run_" in told
    told = run("runs", "retry", "buy/order:done", code=2).stderr
    assert "twiceproof --store" in told and " runs show run_" in told
    assert " review show run_" in run("claims", "settle", "buy", "order:timeout", "--happened", code=2).stderr


def test_before_a_run_is_forgotten_it_is_told_that_its_steps_act_again(run, ledger, shop, monkeypatch):
    ledger.fill()
    shop.fill()
    asked = []
    monkeypatch.setattr("twiceproof.cli.claims.confirm", lambda question, yes: asked.append(question))
    for operation in ("buy", "ship"):
        run("claims", "release", operation, "order:done")
    assert ["all its steps act again" in question for question in asked] == [True, False]


# -- what waits ------------------------------------------------------------------------------------


@pytest.fixture
def waiting(ledger):
    """Runs that wait: for a word, for two words, for an arrival, for a time."""
    app = ledger.app

    @app.flow(key="{what}", name="wait")
    def wait(what: str):
        if what == "two":
            app.gather(lambda: app.approve("a"), lambda: app.approve("b"))
        if what == "one":
            app.approve("charge", timeout="2d")
        if what == "call":
            app.wait_for("paid", timeout="7d")
        app.sleep("1h")

    for what in ("one", "two", "call", "time"):
        with contextlib.suppress(Waiting):
            wait(what)


def next_of(run_json, what):
    return [(move["why"], move["command"]) for move in run_json("runs", "show", f"wait/{what}")["next"]]


def test_a_run_that_waits_for_somebody_does_not_go_on_by_itself(run_json, waiting):
    (asked, show), (until, _) = next_of(run_json, "one")
    assert "approve charge" in asked and "approvals show apr_" in show
    assert "has arrived, or its time is over" in until
    assert [why.partition(".")[0] for why, _ in next_of(run_json, "call")] == [
        "It goes on when what it waits for has arrived, or its time is over"
    ]
    assert next_of(run_json, "time")[0][0].startswith("It goes on by itself.")


def test_an_approval_is_found_by_its_run(run, run_json, waiting):
    assert run_json("approvals", "show", "wait/one")["approval"]["name"] == "charge"
    assert "approved" in run("approvals", "approve", "wait/one", "--by", "ann").stdout
    assert run_json("approvals", "show", "wait/one")["approval"]["state"] == "decided"


def test_a_run_that_asks_for_several_things_or_none_is_not_guessed_at(run, waiting):
    told = run("approvals", "approve", "wait/two", code=2).stderr
    assert told.count("apr_") == 2 and "(a)" in told and "(b)" in told
    assert "approvals list" in run("approvals", "approve", "wait/time", code=1).stderr


def test_the_list_of_approvals_fits_into_a_terminal(run, waiting):
    assert max(map(len, run("approvals", "list").stdout.splitlines()[:-1])) <= 80
