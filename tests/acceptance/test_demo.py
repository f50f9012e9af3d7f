"""`twiceproof demo`, from end to end: real processes, real kills, effects counted by those who were made to do them."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from pathlib import Path

import pytest

SIDE_KEYS = {
    "deliveries",
    "recognised_duplicates",
    "undelivered",
    "kills",
    "lost_responses",
    "billed_without_approval",
    "invoices",
    "duplicate_invoices",
    "missing_invoices",
    "overbilled_eur",
    "mails",
    "duplicate_mails",
    "missing_mails",
    "stale_addresses",
}
KEYS = {
    "orders",
    "seed",
    "messages",
    "naive",
    "twiceproof",
    "approved",
    "settled",
    "unresolved",
    "seconds",
    "ok",
    "ledger",
}
PYTHONPATH = os.environ.get("PYTHONPATH", "")
WITHOUT_STEPS = """
import twiceproof.app.app
step = twiceproof.app.app.App.step
twiceproof.app.app.App.step = lambda self, **words: step(self, **{**words, "repeat": "safe"})
"""
WITHOUT_CLAIMS = """
import json, uuid
import twiceproof.app.app
from twiceproof.inbound.reply import json_reply
flow = twiceproof.app.app.App.flow

def flow_of_any_key(self, key, **words):
    return flow(self, key=lambda *_, **__: uuid.uuid4().hex, **words)

def receive(self, name, body, headers):
    twiceproof.app.app.block(self.hooks[name].flow.start((json.loads(body),), {}))
    return json_reply(200, {})

twiceproof.app.app.App.flow, twiceproof.app.app.App.receive = flow_of_any_key, receive
"""


def twiceproof(*words):
    return [sys.executable, "-m", "twiceproof.cli.main", *map(str, words)]


def run(*words, code=0, env=None):
    done = subprocess.run(
        twiceproof(*words), capture_output=True, text=True, timeout=600, env={**os.environ, **(env or {})}
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def book(folder, name, side):
    lines = [json.loads(line) for line in (folder / name).read_text().splitlines()]
    return Counter(line["order"] for line in lines if line["side"] == side)


def check(report, folder):
    """The numbers agree with each other, and with the books outside."""
    assert set(report) == KEYS
    assert set(report["naive"]) == set(report["twiceproof"]) == SIDE_KEYS
    once = dict.fromkeys(range(1, report["orders"] + 1), 1)
    assert book(folder, "invoices.jsonl", "twiceproof") == once
    assert book(folder, "mails.jsonl", "twiceproof") == once
    for side in ("naive", "twiceproof"):
        assert report[side]["invoices"] == book(folder, "invoices.jsonl", side).total()
        assert report[side]["kills"] >= 1
        assert report[side]["lost_responses"] >= 1
        assert report[side]["deliveries"] >= report["messages"]
    assert len(report["approved"]) == 1
    assert "send_mail" in {settled["step"] for settled in report["settled"]}
    assert report["unresolved"] == 0


@pytest.mark.slow
def test_a_small_demo_does_everything_once_where_the_naive_script_does_not(tmp_path):
    report = json.loads(run("demo", "--orders", 20, "--seed", 3, "--dir", tmp_path, "--json"))
    check(report, tmp_path)
    assert report["naive"]["duplicate_invoices"] > 0
    assert report["naive"]["duplicate_mails"] > 0
    assert report["naive"]["billed_without_approval"] == 1
    listed = json.loads(run("--store", report["ledger"], "runs", "list", "--state", "all", "--json"))["runs"]
    assert {listed_run["state"] for listed_run in listed} == {"done"}
    assert sum(listed_run["flow"] == "bill_order" for listed_run in listed) == 20


@pytest.mark.slow
@pytest.mark.parametrize("without", [WITHOUT_STEPS, WITHOUT_CLAIMS], ids=["steps", "claims"])
def test_without_the_guard_the_demo_notices_what_is_done_twice(tmp_path, without):
    """The twin: the same demo with one guard taken away must fail, or its success would say nothing."""
    (tmp_path / "sitecustomize.py").write_text(without)
    words = ("demo", "--orders", 20, "--seed", 3, "--dir", tmp_path / "demo", "--json")
    report = json.loads(run(*words, code=1, env={"PYTHONPATH": f"{tmp_path}{os.pathsep}{PYTHONPATH}"}))
    made = book(tmp_path / "demo", "invoices.jsonl", "twiceproof")
    assert report["twiceproof"]["duplicate_invoices"] == made.total() - len(made) > 0
    assert not report["ok"]


@pytest.mark.slow
def test_the_whole_demo_tells_the_story_and_leaves_nothing(tmp_path):
    text = run("demo", env={"TMPDIR": str(tmp_path)})
    for part in ("A shop has 100 orders", "approvals approve", "review settle", "NAIVE SCRIPT", "every invoice once"):
        assert part in text
    assert list(tmp_path.iterdir()) == []


def members_of(folder):
    """The demo's processes, by the directory they were told, in their words or in their environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words, told = (process / "cmdline").read_bytes(), (process / "environ").read_bytes()
            if b"twiceproof.demo." in words and str(folder).encode() in words + told:
                found.append(int(process.name))
    return found


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="sees processes through /proc")
@pytest.mark.parametrize(("signal_", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_an_ended_demo_leaves_no_process_behind(tmp_path, signal_, code):
    orders = twiceproof("demo", "--orders", 5000, "--dir", tmp_path)
    with subprocess.Popen(orders, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as demo:
        try:
            pids = members_at_work(demo, tmp_path)
            demo.send_signal(signal_)
            _, said = demo.communicate(timeout=30)
        finally:
            demo.kill()
    assert demo.returncode == code
    assert b"Traceback" not in said
    for pid in pids:
        wait_for_the_end_of(pid)


def members_at_work(demo, folder):
    """As soon as there are six, one of whom has written an invoice: some are killed, and come again."""
    books = folder / "invoices.jsonl"
    while not (books.exists() and books.stat().st_size and len(pids := members_of(folder)) >= 6):
        with contextlib.suppress(subprocess.TimeoutExpired):
            pytest.fail(f"the demo ended by itself: {demo.wait(timeout=0.02)}")
    return pids


def wait_for_the_end_of(pid):
    """Where the parent was killed, its children read the end of their input and end by themselves."""
    try:
        watched = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    ready, _, _ = select.select([watched], [], [], 30)
    os.close(watched)
    assert ready


def find_in_review(url, key):
    """The page of a key, once it says that a person is asked."""
    for _ in range(300):
        with urllib.request.urlopen(f"{url}/find?q={key}") as answer:
            text = answer.read().decode()
        if "in review" in text and "send_mail" in text:
            return text
        time.sleep(0.1)
    raise AssertionError(text)


def test_it_opens_the_dashboard_of_the_ledger_that_it_made(tmp_path):
    pytest.importorskip("uvicorn")
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {tmp_path}/opened\n')
    browser.chmod(0o700)
    command = [sys.executable, "-m", "twiceproof", "demo", "--orders", "20", "--open", "--dir", str(tmp_path / "kept")]
    environment = {**os.environ, "BROWSER": f"{browser} %s"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            url = next(line.split()[4] for line in process.stdout if line.startswith("The dashboard is at "))
            with urllib.request.urlopen(f"{url}/runs?state=done") as answer:
                assert "order:1<" in answer.read().decode()
            with urllib.request.urlopen(f"{url}/find?q=order%3A1") as answer:
                assert "bill_order" in answer.read().decode()
            assert (tmp_path / "opened").read_text().strip() == url
            assert find_in_review(url, "order%3A21")
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(30)


def test_a_member_that_can_no_longer_report_ends_with_its_worker(tmp_path):
    """Its parent was killed while the member was starting."""
    reading, writing = os.pipe()
    os.close(reading)
    ports = dict.fromkeys(("DEMO_ACCOUNTING_PORT", "DEMO_MAIL_PORT"), "1")
    environment = os.environ | ports | {"DEMO_LEDGER": f"sqlite:///{tmp_path}/ledger.db", "DEMO_SECRET": "c2VjcmV0" * 4}
    command = [sys.executable, "-m", "twiceproof.demo.guarded", "0"]
    with subprocess.Popen(
        command, stdout=writing, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, env=environment
    ) as one:
        os.close(writing)
        try:
            assert b"BrokenPipeError" in one.communicate(timeout=60)[1]
        finally:
            one.kill()
