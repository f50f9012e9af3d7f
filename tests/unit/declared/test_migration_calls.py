"""Runs that are moved to another release after they called flows and sent messages: none is started or sent again."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.declared.releasing import TENANT, make_live, write
from tests.unit.declared.test_migration import WORK, flow_of, step
from twiceproof import App, load_flows
from twiceproof.declared.connections import Connections
from twiceproof.declared.migration import RunMove, move_run, rehearse
from twiceproof.declared.releases import FlowRelease, release_of
from twiceproof.flows.runtime import own_run
from twiceproof.operations import block
from twiceproof.outbox.queries import list_messages

INNER = flow_of(step("i") + "  - {approve: inside}\n").replace("flow: greet", "flow: inner")
INNER = INNER.replace("key: greet", "key: inner").replace("returns: =id", "returns: =id + ' in'")
GO = "  - {approve: go}\n"
CALL = "  - {step: called, flow: inner, with: {id: =id}}\n"
SEND = "  - {publish: greet.done, payload: {id: =id}}\n"
KEYED = "  - {publish: greet.paid, payload: {id: =id}, key: 'paid:{id}', order: all}\n"


class Calls:
    """An app with a flow `inner`, and a run of `greet` as far as it comes without an approval."""

    def __init__(self, app: App, folder: Path) -> None:
        self.app = app
        self.folder = folder / "flows"

    def start(self, steps: str) -> None:
        flows = write(self.folder, flow_of(steps))
        (flows / "inner.flow.yaml").write_text(INNER)
        flow = load_flows(self.app, flows)["greet"]
        make_live(self.app.store, INNER)
        make_live(self.app.store, flow_of(steps))
        self.handle = flow.start("x")
        self.app.worker().run(until_idle=True)

    @property
    def done(self) -> list[str]:
        return sys.modules["work_of_greet"].DONE

    @property
    def sent(self) -> list[str]:
        return sorted(one.topic for one in block(list_messages(self.app.store, TENANT)))

    def runs(self) -> dict[str, str]:
        return {run.flow: run.version for run in self.app.runs()}

    def rehearse(self, steps: str) -> tuple[RunMove, FlowRelease]:
        known = make_live(self.app.store, flow_of(steps))
        release = block(release_of(self.app.store, TENANT, "greet", known.hash))
        at = block(own_run(self.app.store, TENANT, self.handle.id))
        return block(rehearse(self.app.store, at, release, Connections())), release

    def move(self, steps: str) -> None:
        move, release = self.rehearse(steps)
        assert move.goes_on and block(move_run(self.app.store, move, release)), move.says

    def approve(self, name: str) -> None:
        (asked,) = [one for one in self.app.approvals() if one.name == name]
        self.app.decide(asked.id, True, by="ada")
        self.app.worker().run(until_idle=True)


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Calls]:
    (tmp_path / "work_of_greet.py").write_text(WORK)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("work_of_greet", None)
    with App(f"sqlite:///{tmp_path}/ledger.db") as app:
        app.broker("main", "memory://")
        app.route("greet.*", to="main")
        yield Calls(app, tmp_path)
    sys.modules.pop("work_of_greet", None)


def test_a_run_that_waits_for_a_flow_it_called_is_moved(calls):
    """The called flow keeps its own run and release, and wakes the moved run at its end."""
    calls.start(CALL + step("b"))
    assert (calls.handle.state, calls.done) == ("waiting", ["x i"])
    calls.move(CALL + step("b") + step("c"))
    assert (calls.done, calls.runs()) == (["x i"], {"greet": "r2", "inner": "r1"})
    calls.approve("inside")
    assert calls.handle.result() == "x" and calls.done == ["x i", "x b", "x c"]
    assert calls.runs() == {"greet": "r2", "inner": "r1"} and len(calls.app.runs()) == 2


def test_a_run_whose_called_flow_has_ended_is_moved_and_calls_none_again(calls):
    calls.start(CALL + GO + step("b"))
    calls.approve("inside")
    make_live(calls.app.store, INNER.replace("' in'", "' other'"))  # a later release of it changes nothing here
    calls.move(CALL + GO + step("b").replace("=id", "=called"))
    calls.approve("go")
    assert calls.handle.state == "done" and calls.done == ["x i", "x in b"] and len(calls.app.runs()) == 2


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        (CALL.replace("=id", '"{id}z"') + GO, "would stop: the flow changed under this run: inner"),
        (GO, "would stop: the flow changed under this run: it no longer calls inner"),
        (
            step("z") + CALL + GO,
            "would stop: the flow changed under this run: z is new before approve:go, inner[inner:x]",
        ),
    ],
)
def test_another_call_than_the_recorded_one_stays_where_it_is(calls, steps, said):
    calls.start(CALL + GO)
    calls.approve("inside")
    move, release = calls.rehearse(steps)
    assert not move.goes_on and move.says.startswith(said), move.says
    assert not block(move_run(calls.app.store, move, release))
    calls.approve("go")
    assert calls.handle.result() == "x" and calls.runs() == {"greet": "r1", "inner": "r1"}


@pytest.mark.parametrize("call", [CALL, CALL.replace("inner", "greet")], ids=["another", "itself"])
def test_a_rehearsal_that_comes_to_a_call_starts_nothing(calls, call):
    calls.start(GO)
    (asked,) = calls.app.approvals()
    calls.app.decide(asked.id, True, by="ada")
    move, _ = calls.rehearse(GO + call)
    assert (move.goes_on, move.says) == (True, "goes on with its next step")
    assert calls.done == [] and calls.runs() == {"greet": "r1"}


@pytest.mark.parametrize(("send", "topic"), [(SEND, "greet.done"), (KEYED, "greet.paid")], ids=["own", "keyed"])
def test_a_message_that_was_sent_is_not_sent_again(calls, send, topic):
    calls.start(send + GO + step("b"))
    assert calls.sent == [topic]
    calls.move(send + GO + step("c"))
    assert calls.sent == [topic]
    calls.approve("go")
    assert calls.handle.result() == "x" and calls.done == ["x c"] and calls.sent == [topic]


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        (SEND.replace("{id: =id}", "{id: other}") + GO, "send:greet.done was called with"),
        (SEND.replace("done", "paid") + GO, "send:greet.paid is new before approve:go, send:greet.done"),
        (GO, "it no longer calls send:greet.done"),
    ],
)
def test_another_message_than_the_recorded_one_stays_where_it_is(calls, steps, said):
    calls.start(SEND + GO)
    move, _ = calls.rehearse(steps)
    assert not move.goes_on and said in move.says, move.says
    assert calls.sent == ["greet.done"]


@pytest.mark.parametrize("send", [SEND, KEYED], ids=["own", "keyed"])
def test_a_rehearsal_that_comes_to_a_new_message_sends_none(calls, send):
    calls.start(GO)
    (asked,) = calls.app.approvals()
    calls.app.decide(asked.id, True, by="ada")
    move, release = calls.rehearse(GO + send)
    assert (move.goes_on, move.says, calls.sent) == (True, "goes on to its end: everything is done", [])
    assert block(move_run(calls.app.store, move, release))
    calls.app.worker().run(until_idle=True)
    assert calls.handle.result() == "x" and len(calls.sent) == 1
