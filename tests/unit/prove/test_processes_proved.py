"""Plays with real processes: a kill is a SIGKILL, and what lies in memory is refused."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from twiceproof import App
from twiceproof.errors import Misuse
from twiceproof.prove.fixture import NotSafe, prove
from twiceproof.prove.prover import Prover
from twiceproof.prove.report import ProofReport
from twiceproof.prove.target import target_of
from twiceproof.prove.worlds.files import Files
from twiceproof.prove.worlds.world import CallableWorld

pytestmark = pytest.mark.slow

app = App("memory://")
told: list[str] = []
added: set[str] = set()


def add(directory: str, line: str) -> None:
    with (Path(directory) / "lines.txt").open("a") as file:
        file.write(f"{line}\n")


@app.step(repeat="never")
def add_once(directory: str) -> None:
    add(directory, "once")


@app.step(repeat="safe")
def add_again(directory: str) -> None:
    add(directory, "again")


@app.step(repeat="safe")
def nothing() -> None: ...


@app.flow(key="careful")
def careful(order: dict[str, Any]) -> None:
    nothing()
    add_once(order["out"])


def noting_the_process(order: dict[str, Any]) -> str:
    (Path(order["out"]).parent / f"pid-{os.getpid()}").touch()
    return "counted"


@app.flow(key=noting_the_process)
def counted(order: dict[str, Any]) -> None:
    add_once(order["out"])


@app.flow(key="careless")
def careless(order: dict[str, Any]) -> None:
    add_again(order["out"])


@app.flow(key="leaving")
def leaving(order: dict[str, Any]) -> None:
    try:
        nothing()
    finally:
        add(order["out"], "left")


@app.flow(key="remembering")
def remembering(order: dict[str, Any]) -> None:
    told.append("x")
    nothing()


@app.step(repeat="safe")  # as long as the process lives
def add_what_is_not_remembered(directory: str) -> None:
    if directory not in added:
        add(directory, "added")
        added.add(directory)


@app.flow(key="forgetful")
def forgetful(order: dict[str, Any]) -> None:
    add_what_is_not_remembered(order["out"])


@pytest.fixture
def out(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


def report_of(flow: Any, out: Path, only: str, *, processes: bool = True, store: str = "sqlite") -> ProofReport:
    target = target_of(flow, {"out": str(out)})
    return Prover(target, Files(out), only=only, processes=processes, store=store).run()


@pytest.mark.slow
def test_every_scenario_can_be_played_with_real_processes(out: Path) -> None:
    report = prove(careful, {"out": str(out)}, world=Files(out), processes=True, depth=1)
    assert report.complete and not [one for one in report.verdicts if one.word == "missed"]
    simulated = prove(careful, {"out": str(out)}, world=Files(out), depth=1)
    assert [(one.scenario, one.word) for one in report.verdicts] == [
        (one.scenario, one.word) for one in simulated.verdicts
    ]


@pytest.mark.slow
def test_what_is_not_safe_is_found_with_real_processes(out: Path) -> None:
    with pytest.raises(NotSafe) as caught:
        prove(careless, {"out": str(out)}, world=Files(out), processes=True, depth=1)
    bad = {one.scenario for one in caught.value.report.bad}
    assert {"kill-effect-1-after", "lost-1", "paused-1"} <= bad
    assert caught.value.report.wrong[0].step == "add_again"


def test_a_process_that_is_killed_runs_no_finally(out: Path) -> None:
    scenario = "kill-effect-1-before"
    assert report_of(leaving, out, scenario).verdicts[0].word == "same"
    assert report_of(leaving, out, scenario, processes=False, store="memory://").verdicts[0].word == "twice"


def test_what_a_simulated_process_did_in_its_finally_is_tried_with_a_real_one(out: Path) -> None:
    assert report_of(leaving, out, "kill-effect-1-before", processes=False).verdicts[0].word == "same"


@pytest.mark.parametrize("scenario", ["kill-write-2-before", "kill-effect-1-after", "paused-1"])
def test_what_a_process_remembered_is_gone_with_it(out: Path, scenario: str) -> None:
    """Simulated processes share their memory: what stands in it alone would pass for safe."""
    assert report_of(forgetful, out, scenario, processes=False).verdicts[0].word == "twice"


def test_a_process_whose_answer_was_lost_still_remembers(out: Path) -> None:
    assert report_of(forgetful, out, "lost-1", processes=False).verdicts[0].word == "same"


def test_eight_at_once_are_eight_processes(out: Path) -> None:
    target = target_of(counted, {"out": str(out)})
    prover = Prover(target, Files(out), only="at-once", processes=True)
    assert prover.run().verdicts[0].word == "same"
    assert len(prover._outcomes["at-once"].answers) == 8
    assert len(list(out.parent.glob("pid-*"))) >= 8


def test_a_world_in_memory_is_refused_rather_than_believed() -> None:
    with pytest.raises(Misuse, match="must lie outside"):
        Prover(target_of(remembering, {}), CallableWorld(lambda: list(told)), only="twice", processes=True).run()


def test_a_ledger_in_memory_is_refused(out: Path) -> None:
    with pytest.raises(Misuse, match="share no memory"):
        report_of(careful, out, "twice", store="memory://")


@pytest.mark.server
def test_real_processes_share_a_ledger_in_postgresql(out: Path, postgres_dsn: str) -> None:
    assert report_of(careless, out, "paused-1", store=postgres_dsn).verdicts[0].word == "twice"
    assert report_of(careful, out, "paused-1", store=postgres_dsn).verdicts[0].word == "same"


@pytest.mark.server
def test_real_processes_share_a_ledger_in_redis(out: Path, redis_url: str) -> None:
    assert report_of(careless, out, "kill-effect-1-after", store=redis_url).verdicts[0].word == "twice"
    assert report_of(careful, out, "at-once", store=redis_url).verdicts[0].word == "same"
