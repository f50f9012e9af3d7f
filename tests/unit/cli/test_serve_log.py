"""What a worker logs about runs that failed, were cancelled, or need a person."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

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
    assert "a memory:// store exists only within this process" in workshop(store="memory://")
    assert "memory://" not in workshop()
