"""On which release runs begin and are carried out: starts, triggers, workers, tenants, pauses."""

from __future__ import annotations

import hmac
import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.declared.releasing import greet, make_live, write
from twiceproof import App, Misuse, Waiting, load_flows
from twiceproof.clock import Clock
from twiceproof.declared import live
from twiceproof.declared.reading import read_flow
from twiceproof.operations import block

HOOK = (
    "on:\n  - webhook: generic\n    secret: env:GREET_SECRET\n    options: {id: id, signature: X-Signature}\n"
    '    only: kind == "new"\n    give: {id: =id}\n'
)
SECRET = "whsec_" + "a" * 32
DAILY = "on:\n  - {every: 1d, give: {id: =tick}}\n"
NO_WAIT = "  - set: {said: =id}\n"


class Time:
    """Wall and monotonic time, moved by hand."""

    def __init__(self) -> None:
        self.at = 1_800_000_000.0
        self.clock = Clock(now=lambda: self.at, monotonic=lambda: self.at)


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def app(tmp_path: Path, time: Time) -> Iterator[App]:
    with App(f"sqlite:///{tmp_path}/ledger.db", clock=time.clock) as made:
        yield made


def opened(tmp_path: Path, time: Time) -> App:
    return App(f"sqlite:///{tmp_path}/ledger.db", clock=time.clock)


def loaded(app: App, folder: Path, text: str, **given: bool):
    return load_flows(app, write(folder / "flows", text), **given)["greet"]


def test_without_a_release_the_file_runs_as_it_is(app, tmp_path):
    flow = loaded(app, tmp_path, greet("file", steps=NO_WAIT))
    assert flow("a") == "file"
    assert [run.version for run in app.runs()] == ["1"]


def test_a_new_run_begins_on_what_is_live_and_stays_on_it(app, tmp_path, time):
    flow = loaded(app, tmp_path, greet("file"))
    handles = [flow.start("a")]
    for number, text in enumerate(("one", "two", "three")):
        make_live(app.store, greet(text))
        time.at += 1
        handles.append(flow.start(f"b{number}"))
    app.worker().run(until_idle=True)
    time.at += 3_601
    app.worker().run(until_idle=True)
    assert [handle.result() for handle in handles] == ["file", "one", "two", "three"]
    assert sorted(run.version for run in app.runs()) == ["1", "r1", "r2", "r3"]


def test_a_run_ends_on_its_release_after_all_workers_were_restarted(tmp_path, time):
    with opened(tmp_path, time) as first:
        flow = loaded(first, tmp_path, greet("file"))
        make_live(first.store, greet("one"))
        handle = flow.start("a")
        first.worker().run(until_idle=True)
    time.at += 3_601
    with opened(tmp_path, time) as second:
        for text in ("two", "three", "four"):
            make_live(second.store, greet(text))
        loaded(second, tmp_path, greet("another file", steps=NO_WAIT))
        second.worker().run(until_idle=True)
        assert second.attach(handle.id).result() == "one"


def test_a_call_runs_on_what_is_live(app, tmp_path):
    flow = loaded(app, tmp_path, greet("file", steps=NO_WAIT))
    make_live(app.store, greet("one", steps=NO_WAIT))
    assert flow("a") == "one"
    assert [run.version for run in app.runs()] == ["r1"]


def test_what_was_read_is_used_for_half_a_second_at_most(tmp_path, time):
    with opened(tmp_path, time) as app, opened(tmp_path, time) as other:
        flow = loaded(app, tmp_path, greet("file", steps=NO_WAIT))
        make_live(other.store, greet("one", steps=NO_WAIT))
        assert flow("a") == "one"
        make_live(other.store, greet("two", steps=NO_WAIT))
        time.at += 0.51
        assert flow("b") == "two"


def test_a_promotion_in_the_same_store_is_seen_at_once(app, tmp_path):
    flow = loaded(app, tmp_path, greet("file", steps=NO_WAIT))
    said = []
    for number, text in enumerate(("one", "two", "three")):
        make_live(app.store, greet(text, steps=NO_WAIT))
        said.append(flow(str(number)))
    assert said == ["one", "two", "three"]


def test_with_released_nothing_else_is_started(app, tmp_path, time):
    flow = loaded(app, tmp_path, greet("file", steps=NO_WAIT), released=True)
    with pytest.raises(Misuse, match="flows promote greet"):
        flow("a")
    assert app.runs() == []
    make_live(app.store, greet("one", steps=NO_WAIT))
    time.at += 0.51
    assert flow("a") == "one"


def test_a_webhook_is_read_as_the_live_release_says(app, tmp_path, monkeypatch):
    monkeypatch.setenv("GREET_SECRET", SECRET)
    loaded(app, tmp_path, greet("file", more=HOOK, steps=NO_WAIT))

    def post(number: int, kind: str) -> int:
        body = json.dumps({"id": f"e{number}", "kind": kind}).encode()
        signature = hmac.new(SECRET.encode(), body, "sha256").hexdigest()
        return app.receive("generic", body, [("x-signature", signature), ("content-type", "application/json")]).status

    make_live(app.store, greet("one", more=HOOK.replace('"new"', '"paid"'), steps=NO_WAIT))
    assert post(1, "new") == post(2, "paid") == 200
    assert [(run.key, run.version) for run in app.runs()] == [("greet:e2", "r1")]
    make_live(app.store, greet("two", steps=NO_WAIT))  # without the trigger
    assert post(3, "paid") == 401
    assert len(app.runs()) == 1


def test_a_schedule_starts_what_is_live(app, tmp_path, time):
    loaded(app, tmp_path, greet("file", more=DAILY, steps=NO_WAIT))
    make_live(app.store, greet("one", more=DAILY, steps=NO_WAIT))
    app.worker().run(until_idle=True)
    time.at += 86_401
    app.worker().run(until_idle=True)
    assert [run.version for run in app.runs(flow="greet")] == ["r1"]


def test_runs_of_a_paused_flow_wait_for_its_end(app, tmp_path, time):
    flow = loaded(app, tmp_path, greet("file", steps=NO_WAIT))
    make_live(app.store, greet("one", steps=NO_WAIT))
    assert flow("before") == "one"
    make_live(app.store, greet("one", steps=NO_WAIT), paused=True)
    handle = flow.start("a")
    with pytest.raises(Waiting):
        flow("b")
    assert flow("before") == "one"  # an earlier result is no work
    app.worker().run(until_idle=True)
    assert handle.state == "queued"
    make_live(app.store, greet("one", steps=NO_WAIT))
    time.at += 6
    app.worker().run(until_idle=True)
    assert handle.result() == "one" == flow("b")


def test_tenants_have_releases_of_their_own(app, tmp_path):
    flow = loaded(app, tmp_path, greet("file", steps=NO_WAIT))
    make_live(app.store, greet("one", steps=NO_WAIT), tenant="acme")
    acme = app.of("acme").flows["greet"]
    assert flow("a") == "file"
    handle = block(acme.start(("a",), {}))
    app.worker().run(until_idle=True)
    assert block(handle.result()) == "one"
    assert [run.version for run in app.of("acme").runs()] == ["r1"]
    assert [run.version for run in app.runs()] == ["1"]


def test_a_thousand_releases_are_read_only_when_a_run_needs_them(app, tmp_path, time, monkeypatch):
    flow = loaded(app, tmp_path, greet("file"))
    make_live(app.store, greet("release 0"))
    old = flow.start("old")
    for number in range(1, 1_000):
        make_live(app.store, greet(f"release {number}"))
    read = []
    monkeypatch.setattr(live, "read_flow", lambda text: read.append(text) or read_flow(text))
    new = flow.start("new")
    app.worker().run(until_idle=True)
    time.at += 3_601
    app.worker().run(until_idle=True)
    assert (old.result(), new.result()) == ("release 0", "release 999")
    assert len(read) == 1  # the first one was compiled when its run was started


def test_a_release_that_was_proved_with_other_code_says_so(app, tmp_path, caplog, monkeypatch):
    module = tmp_path / "helpers_of_greet.py"
    monkeypatch.syspath_prepend(str(tmp_path))
    module.write_text("def shout(text):\n    return text.upper()\n")
    steps = "  - step: said\n    call: helpers_of_greet:shout\n    with: {text: =id}\n    repeat: safe\n"
    make_live(app.store, greet("{said}", steps=steps))
    module.write_text("def shout(text):\n    return text.lower()\n")
    del sys.modules["helpers_of_greet"]
    flow = loaded(app, tmp_path, greet("file", steps=steps))
    with caplog.at_level(logging.WARNING, "twiceproof.flows"):
        flow("A")
    assert "was proved with other code of helpers_of_greet:shout" in caplog.text


def test_what_workers_list_of_a_flow_that_was_in_python_does_not_stop_its_file(app, tmp_path, time):
    """Workers list what is live; a start right after that must not look for the text of a release that has none."""
    flow = loaded(app, tmp_path, greet("file", steps=NO_WAIT))
    make_live(app.store, greet("one", steps=NO_WAIT))
    make_live(app.store, greet("two", steps=NO_WAIT), version="7")
    app.worker().run(until_idle=True)
    assert flow("a") == "file"
    time.at += 1
    assert flow("b") == "file"


def test_runs_of_a_files_releases_are_found_after_the_flow_moved_to_python(app, tmp_path, time):
    flow = loaded(app, tmp_path, greet("file"))
    for number in range(6):
        make_live(app.store, greet(f"text {number}"))
    flow.start("a")
    make_live(app.store, greet("other"), version="7")
    time.at += 10
    app.worker().run(until_idle=True)
    (run,) = app.runs()
    assert (run.version, run.state) == ("r6", "waiting")
