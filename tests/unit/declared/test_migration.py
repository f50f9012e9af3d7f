"""Runs that are moved to another release: the rehearsal says what the move then does, and nothing is done twice."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.declared.releasing import TENANT, make_live, write
from twiceproof import App, load_flows
from twiceproof.clock import Clock
from twiceproof.declared.connections import Connections
from twiceproof.declared.migration import RunMove, move_run, rehearse
from twiceproof.declared.releases import release_of
from twiceproof.effects import ssh
from twiceproof.flows.runtime import own_run
from twiceproof.operations import block

WORK = "DONE = []\n\n\ndef do(name):\n    DONE.append(name)\n    return name\n"


def step(name: str, says: str = "", repeat: str = "safe") -> str:
    given = f"=id + ' {says or name}'"
    return f'  - {{step: {name}, call: "work_of_greet:do", with: {{name: "{given}"}}, repeat: {repeat}}}\n'


FIRST = step("a") + "  - {approve: go}\n" + step("b")


def flow_of(steps: str) -> str:
    return f"flow: greet\ninput: {{id: text}}\nkey: greet:{{id}}\nsteps:\n{steps}returns: =id\n"


class Moves:
    """A flow whose run waits for an approval after its first step."""

    def __init__(self, app: App, folder: Path) -> None:
        self.app = app
        self.flow = load_flows(app, write(folder / "flows", flow_of(FIRST)))["greet"]
        make_live(app.store, flow_of(FIRST))
        self.handle = self.flow.start("x")
        app.worker().run(until_idle=True)
        assert self.handle.state == "waiting"

    @property
    def done(self) -> list[str]:
        return sys.modules["work_of_greet"].DONE

    def rehearse(self, steps: str) -> tuple[RunMove, Any]:
        make_live(self.app.store, flow_of(steps))
        release = block(release_of(self.app.store, TENANT, "greet"))
        at = block(own_run(self.app.store, TENANT, self.handle.id))
        return block(rehearse(self.app.store, at, release, Connections())), release

    def go_on(self) -> None:
        for asked in self.app.approvals():
            self.app.decide(asked.id, True, by="ada")
        self.app.worker().run(until_idle=True)


@pytest.fixture
def moves(tmp_path: Path, monkeypatch) -> Iterator[Moves]:
    (tmp_path / "work_of_greet.py").write_text(WORK)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("work_of_greet", None)
    clock = Clock()
    with App(f"sqlite:///{tmp_path}/ledger.db", clock=clock) as app:
        yield Moves(app, tmp_path)
    sys.modules.pop("work_of_greet", None)


def test_a_run_goes_on_where_only_what_is_to_come_changes(moves):
    move, release = moves.rehearse(FIRST + step("c"))
    assert (move.goes_on, move.before, moves.done) == (True, "r1", ["x a"])
    assert move.says.startswith("goes on: waits for ")
    assert block(move_run(moves.app.store, move, release))
    moves.go_on()
    assert moves.done == ["x a", "x b", "x c"] and moves.handle.result() == "x"
    (run,) = moves.app.runs(flow="greet")
    assert run.version == "r2"


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        (FIRST.replace("step: a", "step: z"), "would stop: the flow changed under this run: z is new before a"),
        (step("z") + FIRST, "would stop: the flow changed under this run: z is new before a"),
        (FIRST.replace("' a'", "' a' + run.key"), "would stop: the flow changed under this run: a was called with"),
        ("  - {approve: go}\n" + step("b"), "would stop: the flow changed under this run: it no longer calls a"),
        (FIRST + "  - {flow: other, with: {id: =id}}\n", "it calls other, of which no release of a file is live"),
    ],
)
def test_what_would_drift_stays_where_it_is(moves, steps, said):
    move, release = moves.rehearse(steps)
    assert not move.goes_on and move.says.startswith(said), move.says
    assert not block(move_run(moves.app.store, move, release))
    moves.go_on()
    assert moves.handle.result() == "x" and moves.done == ["x a", "x b"]
    assert moves.app.runs(flow="greet")[0].version == "r1"


def test_a_rehearsal_does_nothing_and_changes_nothing(moves):
    before = moves.app.history(moves.handle.id)
    move, _ = moves.rehearse(step("a") + step("b") + step("c"))  # without the approval, it would act at once
    after = moves.app.history(moves.handle.id)
    assert moves.done == ["x a"] and (before.steps, before.pieces) == (after.steps, after.pieces)
    assert before.run.state == after.run.state == "waiting" and before.fence == after.fence
    assert move.says  # whatever it says: it has not been done


def test_a_run_that_comes_to_a_new_step_goes_on_with_it(moves):
    for asked in moves.app.approvals():
        moves.app.decide(asked.id, True, by="ada")
    move, release = moves.rehearse(step("a") + "  - {approve: go}\n" + step("b", "b2"))
    assert (move.goes_on, move.says, moves.done) == (True, "goes on with its next step", ["x a"])
    assert block(move_run(moves.app.store, move, release))
    moves.app.worker().run(until_idle=True)
    assert moves.done == ["x a", "x b2"]


def test_a_run_that_changed_since_its_rehearsal_is_not_moved(moves):
    move, release = moves.rehearse(FIRST + step("c"))
    moves.go_on()
    assert not block(move_run(moves.app.store, move, release))
    assert moves.done == ["x a", "x b"] and moves.app.runs(flow="greet")[0].version == "r1"
    again, _ = moves.rehearse(FIRST + step("d"))
    assert (again.goes_on, again.says) == (False, "it is done, and does not go on by itself")


def test_a_sleeping_run_keeps_its_time(tmp_path):
    at = [1_800_000_000.0]
    clock = Clock(now=lambda: at[0], monotonic=lambda: at[0])
    old, new = ("  - {sleep: 1h}\n", "  - {sleep: 1h}\n  - set: {said: =id}\n")
    with App(f"sqlite:///{tmp_path}/ledger.db", clock=clock) as app:
        flow = load_flows(app, write(tmp_path / "flows", flow_of(old)))["greet"]
        make_live(app.store, flow_of(old))
        handle = flow.start("x")
        app.worker().run(until_idle=True)
        (before,) = app.runs()
        make_live(app.store, flow_of(new))
        release = block(release_of(app.store, TENANT, "greet"))
        move = block(rehearse(app.store, block(own_run(app.store, TENANT, handle.id)), release, Connections()))
        assert block(move_run(app.store, move, release)), move.says
        (after,) = app.runs()
        assert (after.due_at, after.version) == (before.due_at, "r2")
        at[0] += 3_601
        app.worker().run(until_idle=True)
        assert handle.result() == "x"


BROKEN = (
    '  - {step: a, call: "work_of_greet:do", with: {name: "=id + \' a\'"}, repeat: safe,'
    ' undo: {step: u, call: "work_of_greet:do", with: {name: "=id + \' undone\'"}, repeat: safe}}\n'
    '  - {step: b, call: "work_of_greet:do", with: {name: "=id + 1"}, repeat: safe}\n'
)


def test_a_run_that_a_mistake_stopped_goes_on_under_the_release_that_repairs_it(moves):
    app = moves.app
    make_live(app.store, flow_of(BROKEN))
    handle = moves.flow.start("y")
    app.worker().run(until_idle=True)
    assert handle.state == "review" and moves.done == ["x a", "y a"]
    moves.handle = handle
    move, release = moves.rehearse(BROKEN.replace("=id + 1", "=id + ' b'"))
    assert move.goes_on and move.says.endswith(f"then: twiceproof runs retry {handle.id}")
    assert moves.done == ["x a", "y a"]
    assert block(move_run(app.store, move, release)) and handle.state == "review"
    app.retry_run(handle.id)
    app.worker().run(until_idle=True)
    assert handle.state == "done" and moves.done == ["x a", "y a", "y b"]


@pytest.fixture
def started(monkeypatch) -> list[str]:
    """The machines on which a command was started."""
    found: list[str] = []

    async def start(host: str, *rest: Any) -> None:
        found.append(host)

    monkeypatch.setattr(ssh, "start_command", start)
    return found


def test_a_rehearsal_that_comes_to_a_command_elsewhere_starts_none(tmp_path, started):
    text = flow_of(
        "  - {approve: go}\n  - {step: agent, remote: ssh builder, command: run, callback: done, timeout: 6h}\n"
    )
    text = text.replace("steps:", "uses: [builder]\nsteps:")
    known = write(tmp_path / "flows", text, "builder: {live: {ssh: builder.example, known_hosts: file:/known}}\n")
    with App(f"sqlite:///{tmp_path}/ledger.db", url="https://hooks.example") as app:
        flow = load_flows(app, known)["greet"]
        make_live(app.store, text)
        handle = flow.start("x")
        app.worker().run(until_idle=True)
        (asked,) = app.approvals()
        app.decide(asked.id, True, by="ada")
        make_live(app.store, text.replace("returns: =id", "returns: =agent.ok"))
        release = block(release_of(app.store, TENANT, "greet"))
        at = block(own_run(app.store, TENANT, handle.id))
        move = block(rehearse(app.store, at, release, Connections.read(known / "connections.yaml")))
        assert (move.goes_on, move.says, started) == (True, "goes on with its next step", [])
        app.worker().run(until_idle=True)
        assert started == ["builder.example"]


@pytest.mark.parametrize("came_back", [False, True], ids=["under way", "answered"])
def test_a_run_whose_command_was_started_elsewhere_is_moved_and_starts_no_second_one(tmp_path, started, came_back):
    steps = "  - {step: agent, remote: ssh builder, command: run, callback: finished, timeout: 6h}\n  - {approve: go}\n"
    text = flow_of(steps).replace("steps:", "uses: [builder]\nsteps:")
    known = "builder: {live: {ssh: builder.example, known_hosts: file:/known}}\n"
    with App(f"sqlite:///{tmp_path}/ledger.db", url="https://hooks.example") as app:
        flow = load_flows(app, write(tmp_path / "flows", text, known))["greet"]
        make_live(app.store, text)
        handle = flow.start("x")
        app.worker().run(until_idle=True)
        if came_back:
            app.deliver_to(flow="greet", key="greet:x", name="finished", payload={"ok": True})
            app.worker().run(until_idle=True)
        make_live(app.store, text.replace("returns: =id", "returns: =agent.ok"))
        release = block(release_of(app.store, TENANT, "greet"))
        at = block(own_run(app.store, TENANT, handle.id))
        connections = Connections.read(tmp_path / "flows/connections.yaml")
        move = block(rehearse(app.store, at, release, connections))
        assert move.goes_on and move.says.startswith("goes on: waits for "), move.says
        drifts = make_live(app.store, text.replace("finished", "done"))
        other = block(rehearse(app.store, at, block(release_of(app.store, TENANT, "greet", drifts.hash)), connections))
        assert not other.goes_on and started == ["builder.example"]
        assert block(move_run(app.store, move, release))
        if not came_back:
            app.deliver_to(flow="greet", key="greet:x", name="finished", payload={"ok": True})
            app.worker().run(until_idle=True)
        (asked,) = app.approvals()
        app.decide(asked.id, True, by="ada")
        app.worker().run(until_idle=True)
        assert handle.result() is True and started == ["builder.example"]
